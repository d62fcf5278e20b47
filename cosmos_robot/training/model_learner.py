"""A post-training step: a pack of draws, one forward and backward for each token plan in it, one update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.runtime import TextCache, encode_text
from cosmos_robot.backbone.cosmos3.text_cache import TextStore
from cosmos_robot.training.crew import Crew, Root, begin_optimizer, load_sharded_state, sharded_state
from cosmos_robot.training.flow import sample_flow_losses
from cosmos_robot.training.model_batches import ModelBatch, PlanKey, Prompt, StreamSamples, on_device, seed_of
from cosmos_robot.training.model_config import ModelTraining
from cosmos_robot.training.objective import power_decay, power_exponent
from cosmos_robot.training.optimise import TrainedAverage, WorkingCopy
from cosmos_robot.training.optimise import step as optimiser_step
from cosmos_robot.training.order import Draw, StepOrder
from cosmos_robot.training.parameters import is_generator, optimizer

KEEP_FLOAT32 = ("transformer.time_embedder",)
TEXT_BYTES = 2**30
LOSSES = ("action", "video")
_DROPOUT = 0xD20  # tells its seeds from those of samples


@dataclass(frozen=True)
class Pass:
    """One forward pass of a step. mine: this process's draws, which count; where it has none, ``stand_in`` is run in
    their place and counts nothing, since all processes of a sharded model must run together. prompts: of all."""

    key: PlanKey
    mine: tuple[Draw, ...]
    stand_in: Draw
    prompts: tuple[Prompt, ...]


class ModelLearner:
    """A ``loop.Learner`` of one transformer on several streams. The state's data position makes a resumed run take the
    samples that the stopped one would have taken."""

    def __init__(
        self,
        transformer: Cosmos3OmniTransformer,
        streams: Sequence[StreamSamples],
        order: StepOrder,
        config: ModelTraining,
        crew: Crew,
    ):
        self.config, self.streams, self.order, self.crew = config, list(streams), order, crew
        dtype = getattr(torch, config.compute)
        if config.checkpoint_layers:
            transformer.enable_gradient_checkpointing()
        self.root = crew.root(transformer.to(crew.device), dtype).train()
        # Sharded weights are gathered in the working precision, so they need no copy in it.
        copied = torch.float32 if crew.sharded else dtype
        self._work = WorkingCopy(self.root, copied, KEEP_FLOAT32)
        self.optimizer = optimizer(self.root, config.recipe)
        if crew.sharded:
            begin_optimizer(self.optimizer)
        rate = config.recipe.ema_rate
        exponent = None if rate is None else power_exponent(rate)
        self.average = TrainedAverage(self.root, None if exponent is None else lambda n: power_decay(exponent, n))
        self._text_trained = any(p.requires_grad and not is_generator(n) for n, p in self.root.named_parameters())
        self._texts = TextStore(self._encode_prompt, TEXT_BYTES)
        self._weights = {"action": config.recipe.action_weight, "video": config.recipe.video_weight}
        self._names = sorted({f"{mode}_{loss}" for s in config.streams for mode in s.modes for loss in LOSSES})

    @property
    def transformer(self) -> Cosmos3OmniTransformer:
        """The one whose weights are trained."""
        return self.root.transformer

    def train_step(self, cycle: int, step: int, rate: float) -> Mapping[str, float]:
        packs = self.order.step(step)
        count = sum(len(pack) for pack in packs)
        sums = {name: [0.0, 0.0] for name in self._names}
        wrong: list[str] = []
        self._work.refresh()
        with self._seeded(step):
            for each in self._passes(packs):
                losses = self._pass(each, count)
                for name, values in losses.items() if each.mine else ():
                    tally = sums[f"{each.key.mode}_{name}"]
                    tally[0], tally[1] = tally[0] + sum(values), tally[1] + len(values)
                    wrong += self._not_finite(each, name, values)
        self._work.hand_over()
        found = {name: total for name, (total, _) in sums.items()}
        norm = optimiser_step(self.optimizer, rate, self.config.recipe.clip, step, found, "; ".join(wrong))
        self.average.update()
        return self._means(sums, count) | {"norm": norm}

    def _pass(self, each: Pass, count: int) -> dict[str, list[float]]:
        """Forward and backward; the losses of each sample. count: samples of the step, of all processes."""
        batch = self.streams[each.key.stream].batch(each.mine or (each.stand_in,), each.prompts)
        losses = self._losses(on_device(batch, self.crew.device))
        total = sum(self._weights[name] * loss.sum() for name, loss in losses.items())
        # The mean over the samples of all processes, whose gradients are added up.
        (total * (bool(each.mine) / count)).backward()
        return {name: loss.detach().tolist() for name, loss in losses.items()}

    def _not_finite(self, each: Pass, name: str, values: Sequence[float]) -> list[str]:
        bad = [draw for draw, value in zip(each.mine, values, strict=True) if not isfinite(value)]
        if not bad:
            return []
        stream = self.config.streams[each.key.stream].name
        places = ", ".join(f"episode {draw.episode} sample {draw.row}" for draw in bad)
        return [f"mode {each.key.mode}, {name}, stream {stream!r}: {places}"]

    @contextmanager
    def _seeded(self, step: int) -> Iterator[None]:
        """What draws from torch's own generators (dropout) follows from the step, and leaves them as they were."""
        devices = [] if self.crew.device.type == "cpu" else [self.crew.device]
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed_of(self.config.seed, _DROPOUT, step, self.crew.rank))
            yield

    def _passes(self, packs: Sequence[Sequence[Draw]]) -> Iterator[Pass]:
        """The passes that any process has, in one order for all."""
        keys: dict[PlanKey, list[list[Draw]]] = {}
        for rank, pack in enumerate(packs):
            for draw in pack:
                key = self.streams[draw.stream].key(draw)
                keys.setdefault(key, [[] for _ in packs])[rank].append(draw)
        for key in sorted(keys):
            members = [draw for part in keys[key] for draw in part]
            prompts = tuple(dict.fromkeys(self.streams[key.stream].prompt(draw) for draw in members))
            yield Pass(key, tuple(keys[key][self.crew.rank]), members[0], prompts)

    def _losses(self, batch: ModelBatch) -> dict[str, Tensor]:
        """Of each sample, (B,), as far as the plan has them."""
        text = None if self._text_trained else self.texts(batch.prompts)
        return run_losses(self._work.module, batch, text, self.config.recipe.by_active)

    def texts(self, prompts: Sequence[Prompt]) -> TextCache:
        """Of prompts that nothing trains: each is run once."""
        return self._texts.get(prompts)

    @torch.no_grad()
    def _encode_prompt(self, prompt: Prompt) -> TextCache:
        return self._work.module(encode_text, [list(prompt)])

    def _means(self, sums: Mapping[str, list[float]], count: int) -> dict[str, float]:
        """Over the samples of all processes: the loss, and each mode's parts."""
        totals = self.crew.total(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
        loss = sum(
            self._weights[name.rpartition("_")[2]] * total for name, (total, _) in zip(sums, totals, strict=True)
        )
        return {"loss": loss / count} | {name: total / n for name, (total, n) in zip(sums, totals, strict=True) if n}

    @contextmanager
    def averaged(self) -> Iterator[Root]:
        """The transformer with the averaged weights, in evaluation mode; afterwards it trains on as before."""
        self.crew.settle(self.root)
        with self.average.in_place(), torch.no_grad():
            self._work.refresh()
            self._forget_text()
            self.root.eval()
            self._work.module.eval()
            try:
                yield self._work.module
            finally:
                self.root.train()
                self._work.module.train()
                self._forget_text()
                self.crew.settle(self.root)

    def _forget_text(self) -> None:
        if self._text_trained:
            self._texts.clear()

    def state(self) -> dict:
        state = {"order": self.order.state(), "average_updates": self.average.updates, "average": self.average.weights}
        if self.crew.sharded:
            return state | sharded_state(self.root, self.optimizer)
        trained = {n: p.detach() for n, p in self.root.named_parameters() if p.requires_grad}
        return state | {"model": trained, "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict) -> None:
        self.order.load(state["order"])
        self.average.updates = state["average_updates"]
        for name, own in self.average.weights.items():
            own.copy_(state["average"][name])
        if self.crew.sharded:
            load_sharded_state(self.root, self.optimizer, state)
            return
        own = dict(self.root.named_parameters())
        with torch.no_grad():
            for name, value in state["model"].items():
                own[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


def run_losses(root: Root, batch: ModelBatch, text: TextCache | None, by_active: bool) -> dict[str, Tensor]:
    """The losses of each sample (B,), those that the plan has. text: of the batch's prompts; None runs them here."""
    found = root(_run, batch, text, by_active)
    return {name: loss for name, loss in zip(LOSSES, found, strict=True) if loss is not None}


def _run(transformer, batch: ModelBatch, text: TextCache | None, by_active: bool) -> tuple[Tensor | None, ...]:
    if text is None:
        text = encode_text(transformer, batch.prompts)
    return sample_flow_losses(transformer, batch.plan, text, batch.flow, batch.noise, by_active)
