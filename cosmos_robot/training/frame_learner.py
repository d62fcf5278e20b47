"""The joint training step: draw rows by the mix, one forward for each kind of sample, one update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import Cosmos3OmniTransformer
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.runtime import encode_text, velocity
from cosmos_robot.contract import WHOLE_CANVAS
from cosmos_robot.latent_frames.layout import ACTION, STATE, SampleKind
from cosmos_robot.latent_frames.volumes import averaged
from cosmos_robot.training.cache import placement_cells
from cosmos_robot.training.flow import stratified_levels
from cosmos_robot.training.frame_batches import FrameBatch, FrameBatches
from cosmos_robot.training.frame_config import FrameTraining
from cosmos_robot.training.frame_rows import DEMO, FAILURE, SUCCESS
from cosmos_robot.training.frame_validation import FrameValidation
from cosmos_robot.training.grounding import GroundingHeads, Places, offset_loss, pointing_loss
from cosmos_robot.training.mixing import SOURCES, epoch_mix
from cosmos_robot.training.objective import TIMESTEPS, noised
from cosmos_robot.training.optimise import Average, WorkingCopy, adamw, load_training_state, training_state
from cosmos_robot.training.optimise import step as optimiser_step

KEEP_FLOAT32 = ("time_embedder",)


class FrameLearner:
    """A ``loop.Learner`` for the transformer and its grounding heads. All randomness follows from the step number."""

    def __init__(self, transformer: Cosmos3OmniTransformer, batches: FrameBatches, config: FrameTraining):
        self.config, self.batches = config, batches
        heads = GroundingHeads(transformer.config.hidden_size, _places(batches, config.patch), config.seed)
        self.model = torch.nn.ModuleDict({"transformer": transformer.float().train(), "heads": heads})
        self.average = Average(self.model, config.ema)
        self._work = WorkingCopy(self.model["transformer"], getattr(torch, config.compute), KEEP_FLOAT32)
        self._optimizer = adamw(self.model.parameters(), config.weight_decay)
        self._sources = _sources(batches, config.demo_share)
        self._shuffled: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))
        counts = [len(rows) for rows in self._sources]
        self.mix = epoch_mix(counts[0], counts[1], counts[2], config.demo_share, config.success_share)
        self._pictures = batches.layout.index(WHOLE_CANVAS)
        self._validation = FrameValidation(batches, config)

    def train_step(self, cycle: int, step: int, rate: float) -> Mapping[str, float]:
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        self._work.refresh()
        losses: dict[str, float] = {}
        for kind, index in self._draw(step, generator).items():
            batch = self.batches.batch(kind, index, self.config.augmentation, generator)
            total, parts = self._loss(batch, generator)
            (total / self.config.batch).backward()
            losses |= parts
        self._work.hand_over()
        losses["norm"] = optimiser_step(self._optimizer, rate, self.config.clip, step, losses)
        self.average.update()
        return losses

    def validate(self) -> Mapping[str, float]:
        """What is measured on held-out episodes, with the averaged weights."""
        return self._validation(self.average.module["transformer"])

    def state(self) -> dict:
        return training_state(self.model, self.average, self._optimizer)

    def load(self, state: dict) -> None:
        load_training_state(state, self.model, self.average, self._optimizer)

    def _draw(self, step: int, generator: torch.Generator) -> dict[SampleKind, NDArray[np.int64]]:
        """The rows of this step by kind: the next places of the epoch, which is shuffled anew each time round;
        demonstrations train the policy, each rollout row the world model or the value by a coin."""
        drawn: dict[SampleKind, list[int]] = {"policy": [], "world_model": [], "value": []}
        size = len(self.mix)
        for number in range(step * self.config.batch, (step + 1) * self.config.batch):
            source, at = self.mix.at(int(self._order(number // size)[number % size]))
            kind: SampleKind = "policy"
            if source != SOURCES[DEMO]:
                kind = "world_model" if torch.rand(1, generator=generator) < self.config.world_share else "value"
            drawn[kind].append(int(self._sources[SOURCES.index(source)][at]))
        return {kind: np.array(rows) for kind, rows in drawn.items() if rows}

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._shuffled[0] != epoch:
            self._shuffled = epoch, np.random.default_rng([self.config.seed, epoch]).permutation(len(self.mix))
        return self._shuffled[1]

    def _loss(self, batch: FrameBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The sum over samples, and what to log."""
        hidden_at = self.config.hidden_at if self._grounded and batch.plan.clean_frames[self._pictures] else None
        found = frame_errors(self._work.module, batch, self.batches, generator, hidden_at)
        errors, hidden = found.elements, found.hidden
        total = ((errors + self.config.vector_weight * found.vectors) * batch.weights).sum()
        names = {f"{batch.kind} {slot}": e for slot, e in zip(self.batches.layout.slots, errors.mean(0), strict=True)}
        used = (batch.weights > 0).any(0)
        logged = {name: float(e.detach()) for (name, e), u in zip(names.items(), used, strict=True) if u}
        if batch.kind == "policy":
            logged["vector"] = float(found.vectors[:, self.batches.layout.index(ACTION)].mean().detach())
        if hidden is not None:
            pointing, offset = self._grounding(hidden.float(), batch)
            if batch.kind == "policy":
                logged |= {"pointing": float(pointing.detach()), "offset": float(offset.detach())}
            weighted = self.config.pointing_weight * pointing + self.config.offset_weight * offset
            total = total + len(errors) * weighted
        return total, logged

    @property
    def _grounded(self) -> bool:
        return bool(self.config.pointing_weight or self.config.offset_weight)

    def _grounding(self, hidden: Tensor, batch: FrameBatch) -> tuple[Tensor, Tensor]:
        """Pointing at the pictures' tokens, and offsets read at those of the state and the action."""
        layout, each = self.batches.layout, batch.plan.patches(self.config.patch)
        frames = [WHOLE_CANVAS, *(slot for slot in (STATE, ACTION) if slot in layout)]
        spans = [hidden[:, layout.index(slot) * each : (layout.index(slot) + 1) * each] for slot in frames]
        logits, offsets = self.model["heads"](torch.cat(spans, dim=1))
        places = Places(batch.places.cells / self.config.patch, batch.places.seen, batch.places.offset)
        return pointing_loss(self.model["heads"], logits, places), offset_loss(offsets, places)


@dataclass(frozen=True)
class FrameErrors:
    """Mean squared velocity errors (B, L), zero where a frame is given. elements: over all numbers of a frame. vectors:
    of what is read from it, the mean over the copies of a vector; zero for pictures. hidden: the residual stream that
    was asked for."""

    elements: Tensor
    vectors: Tensor
    hidden: Tensor | None


def frame_errors(
    transformer: Cosmos3OmniTransformer,
    batch: FrameBatch,
    batches: FrameBatches,
    generator: torch.Generator,
    hidden_at: int | None = None,
) -> FrameErrors:
    """Errors of one noised batch, with one sigma per sample (``flow.stratified_levels``)."""
    truth, count, model = batch.clean_latents, len(batch.clean_latents), batches.contract.model
    sigma = stratified_levels(count, model.sampler.shift, generator)
    noise = torch.randn(truth.shape, generator=generator)
    noisy = torch.tensor([[float(not clean) for clean in batch.plan.clean_frames]])
    found = velocity(
        transformer, batch.plan, encode_text(transformer, batch.prompts), batch.text_index,
        torch.where(noisy[:, None, :, None, None] > 0, noised(truth, noise, sigma, noisy), batch.given), None,
        sigma * TIMESTEPS, [int(model.domain_id or 0)] * count, ("video",), hidden_at,
    )  # fmt: skip
    assert found.video is not None
    errors = (found.video - (noise - truth)) * noisy[:, None, :, None, None]
    elements = torch.ones_like(errors) if batch.elements is None else batch.elements
    vectors = torch.zeros(count, len(batches.layout))
    for slot, shape in batches.vectors.items():
        at = batches.layout.index(slot)
        valid = averaged(elements[:, :, at], shape)
        read = (averaged(errors[:, :, at], shape).square() * valid).flatten(1).sum(1)
        vectors[:, at] = read / valid.flatten(1).sum(1).clamp_min(1)
    whole = (errors.square() * elements).sum((1, 3, 4)) / elements.sum((1, 3, 4)).clamp_min(1)
    return FrameErrors(whole, vectors, found.hidden)


def _sources(batches: FrameBatches, demo_share: float) -> list[NDArray[np.int64]]:
    """Training rows of each source; where nothing was rolled out, or no demonstration trains a policy, demonstrations
    stand in as successes."""
    rows = batches.rows
    found = [rows.training(source) for source in (DEMO, SUCCESS, FAILURE)]
    if not demo_share or not (len(found[SUCCESS]) or len(found[FAILURE])):
        found[SUCCESS] = np.concatenate([found[DEMO], found[SUCCESS]])
    return found


def _places(batches: FrameBatches, patch: int) -> Tensor:
    """(P, h, w) bool: the tokens of each placement; a token belongs where most of its cells do."""
    cells = torch.from_numpy(placement_cells(batches.contract.model.canvas)).float()
    return F.avg_pool2d(cells[None], patch)[0] > 0.5
