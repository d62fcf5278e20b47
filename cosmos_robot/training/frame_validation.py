"""What joint training measures on held-out demonstrations, each beside what a cheat would get.

The same rows and noise every time, sampled with the contract's sampler.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from diffusers import Cosmos3OmniTransformer
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.actions.codec import Codec, action_column
from cosmos_robot.backbone.cosmos3.runtime import encode_text
from cosmos_robot.backbone.cosmos3.sampler import Given, draw_noise, sample
from cosmos_robot.contract import WHOLE_CANVAS
from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.fill import action_rows, future_state, values
from cosmos_robot.latent_frames.layout import FUTURE, STATE, VALUE, SampleKind
from cosmos_robot.training.frame_batches import FrameBatches
from cosmos_robot.training.frame_config import FrameTraining
from cosmos_robot.training.frame_rows import DEMO

ROWS = 96
_CHUNK = 48


class FrameValidation:
    """Called with a transformer; returns named measures, those of the contract's modes.

    action_mae: mean absolute error of sampled commands, robot units, over the columns but the gripper's; action_mean:
    that of the mean command. world_latents: squared error of the predicted future picture over that of the last
    picture repeated (1 is no better). world_state, state_kept: mean absolute error of the predicted state after the
    chunk and of the state of now, normalised. value_mae, value_mean: of the value, and of the mean value.
    """

    def __init__(self, batches: FrameBatches, config: FrameTraining):
        self.batches, self.config = batches, config
        rows = batches.rows
        held_out = np.flatnonzero(rows.validation & (rows.source == DEMO))
        if not len(held_out):
            raise InputError("frame training: no episode is held out for validation; record more than one")
        order = np.random.default_rng(0).permutation(held_out)
        self._rows = np.sort(order[:ROWS])
        self._codec, shown = Codec(batches.contract), rows.training(DEMO)
        self._mean_command = self._codec.decode_actions(rows.actions[shown])[rows.valid[shown]].mean(0)

    @torch.inference_mode()
    def __call__(self, transformer: Cosmos3OmniTransformer) -> Mapping[str, float]:
        measures: dict[str, float] = {}
        layout, modes = self.batches.layout, self.batches.contract.model.modes
        if "policy" in modes:
            measures |= self._actions(self._sampled(transformer, "policy"))
        if "world_model" in modes and FUTURE + WHOLE_CANVAS in layout:
            measures |= self._future(self._sampled(transformer, "world_model"))
        if "value" in modes and VALUE in layout:
            measures |= self._values(self._sampled(transformer, "value"))
        return measures

    def _sampled(self, transformer: Cosmos3OmniTransformer, kind: SampleKind) -> Tensor:
        """(B, C, L, h, w) of all rows."""
        parts = [self._rows[i : i + _CHUNK] for i in range(0, len(self._rows), _CHUNK)]
        return torch.cat([self._chunk(transformer, kind, part) for part in parts])

    def _chunk(self, transformer: Cosmos3OmniTransformer, kind: SampleKind, index: NDArray[np.int64]) -> Tensor:
        model, batch = self.batches.contract.model, self.batches.batch(kind, index)
        noise = draw_noise(
            batch.plan, batch.given.shape[1], transformer.config.action_dim, 1, [int(i) for i in index],
            model.sampler.noise,
        )  # fmt: skip
        given = Given(batch.text_index.tolist(), batch.given, None, int(model.domain_id or 0), 1)
        texts = encode_text(transformer, batch.prompts)
        found = sample(transformer, batch.plan, texts, given, model.sampler, noise).video
        assert found is not None
        return found

    def _actions(self, found: Tensor) -> Mapping[str, float]:
        rows, shape = self.batches.rows, self.batches.rows.actions.shape[1:]
        sampled = self._codec.decode_actions(action_rows(found, self.batches.layout, *shape).double().numpy())
        truth, valid = self._codec.decode_actions(rows.actions[self._rows]), rows.valid[self._rows]
        moving = [i for i in range(shape[1]) if i not in _gripper_columns(self.batches.contract)]
        errors = {"action_mae": sampled - truth, "action_mean": self._mean_command - truth}
        return {name: float(np.abs(error)[valid][:, moving].mean()) for name, error in errors.items()}

    def _future(self, found: Tensor) -> Mapping[str, float]:
        rows, layout = self.batches.rows, self.batches.layout
        now, later = (torch.from_numpy(rows.latents(m[self._rows])).float() for m in (rows.now, rows.later))
        predicted = found[:, :, layout.index(FUTURE + WHOLE_CANVAS)]
        kept = (now - later).square().mean()
        out = {"world_latents": float((predicted - later).square().mean() / kept.clamp_min(1e-9))}
        if FUTURE + STATE in layout:
            state, after = rows.state[self._rows], rows.later_state[self._rows]
            expected = future_state(found, layout, state.shape[1]).numpy()
            out |= {"world_state": float(np.abs(expected - after).mean())}
            out |= {"state_kept": float(np.abs(state - after).mean())}
        return out

    def _values(self, found: Tensor) -> Mapping[str, float]:
        truth = (self.batches.rows.value[self._rows] + 1) / 2
        error = np.abs(values(found, self.batches.layout).numpy() - truth)
        return {"value_mae": float(error.mean()), "value_mean": float(np.abs(truth - truth.mean()).mean())}


def _gripper_columns(contract) -> list[int]:
    gripper = contract.robot.gripper
    return [] if gripper is None else [action_column(contract.robot, name) for name in gripper.fields]
