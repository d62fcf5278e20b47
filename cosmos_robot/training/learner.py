"""The policy's training step: draw rows, noise them, one forward and backward, one update."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from diffusers import Cosmos3OmniTransformer
from numpy.typing import NDArray

from cosmos_robot.backbone.cosmos3.runtime import encode_text
from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.training.batches import BatchMaker
from cosmos_robot.training.cache import placement_cells
from cosmos_robot.training.config import PolicyTraining
from cosmos_robot.training.flow import draw_noise, flow_loss
from cosmos_robot.training.grounding import GroundingHeads, offset_loss, pointing_loss
from cosmos_robot.training.optimise import Average, WorkingCopy, adamw, load_training_state, training_state
from cosmos_robot.training.optimise import step as optimiser_step
from cosmos_robot.training.validation import Validation

KEEP_FLOAT32 = ("time_embedder",)


class PolicyLearner:
    """A ``loop.Learner`` for the transformer and its grounding heads."""

    def __init__(self, transformer: Cosmos3OmniTransformer, batches: BatchMaker, config: PolicyTraining):
        if transformer.config.latent_patch_size != 1:
            raise InputError(
                f"grounding heads point at latent cells: expected latent_patch_size 1, got "
                f"{transformer.config.latent_patch_size}"
            )
        self.config, self.batches, rows = config, batches, batches.rows
        cells = torch.from_numpy(placement_cells(batches.contract.model.canvas))
        heads = GroundingHeads(transformer.config.hidden_size, cells, config.seed)
        self.model = torch.nn.ModuleDict({"transformer": transformer.float().train(), "heads": heads})
        self.average = Average(self.model, config.ema)
        dtype = getattr(torch, config.compute)
        self._work = WorkingCopy(self.model["transformer"], dtype, KEEP_FLOAT32)
        self._optimizer = adamw(self.model.parameters(), config.weight_decay)
        self._chances = [np.cumsum(rows.probabilities(stage, config.far)) for stage in config.stages]
        self._row_weight = _row_weights(batches.contract, config.tail_weight)
        self._validation = Validation(batches, config)

    def train_step(self, cycle: int, step: int, rate: float) -> Mapping[str, float]:
        stage, seed = self.config.stages[cycle], self.config.seed
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        batch = self.batches.augmented(self._draw(cycle, generator), generator)
        noise = draw_noise(batch.flow, self.batches.plan, self.batches.contract.model.sampler.shift, generator)
        self._work.refresh()
        text = encode_text(self._work.module, batch.prompts)
        flow = flow_loss(
            self._work.module, self.batches.plan, text, batch.flow, noise, self.config.hidden_at, self._row_weight
        )
        losses, weights = {"action": flow.action}, {"action": stage.action_weight}
        if flow.video is not None:
            losses["video"], weights["video"] = flow.video, stage.video_weight
        logits, offsets = self.model["heads"](self.batches.grounding_tokens(flow.hidden.float()))
        losses["pointing"] = pointing_loss(self.model["heads"], logits, batch.places)
        losses["offset"] = offset_loss(offsets, batch.places)
        weights |= {"pointing": stage.pointing_weight, "offset": stage.offset_weight}
        sum(weights[name] * loss for name, loss in losses.items() if weights[name]).backward()
        self._work.hand_over()
        found = {name: float(loss.detach()) for name, loss in losses.items()}
        norm = optimiser_step(self._optimizer, rate, self.config.clip, step, found)
        self.average.update()
        return found | {"norm": norm}

    def _draw(self, cycle: int, generator: torch.Generator) -> NDArray[np.int64]:
        """A batch of row numbers, each drawn with its probability in this cycle."""
        up_to = self._chances[cycle]
        at = torch.rand(self.config.batch, generator=generator, dtype=torch.float64).numpy() * up_to[-1]
        return np.minimum(np.searchsorted(up_to, at, side="right"), len(up_to) - 1)

    def validate(self) -> Mapping[str, float]:
        averaged = self.average.module
        work = WorkingCopy(averaged["transformer"], getattr(torch, self.config.compute), KEEP_FLOAT32)
        return self._validation(work.module, averaged["heads"])

    def adopt_heads(self, heads: Mapping[str, torch.Tensor]) -> None:
        """Begin with the grounding heads of another run."""
        for model in (self.model, self.average.module):
            model["heads"].load_state_dict(heads)

    def state(self) -> dict:
        return training_state(self.model, self.average, self._optimizer)

    def load(self, state: dict) -> None:
        load_training_state(state, self.model, self.average, self._optimizer)


def _row_weights(contract: Contract, tail: float) -> list[float]:
    """1 for the steps that are executed before the next call, ``tail`` for the rest."""
    execute, chunk = contract.model.execute, contract.model.chunk
    return [1.0] * execute + [tail] * (chunk - execute)
