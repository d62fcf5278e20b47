"""What is measured on held-out episodes while training: the same rows and the same noise every time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.actions.codec import Codec, action_column
from cosmos_robot.actions.grippers import GripperRange
from cosmos_robot.backbone.cosmos3.runtime import encode_text, join_rows
from cosmos_robot.backbone.cosmos3.sampler import Given, sample
from cosmos_robot.backbone.cosmos3.sampler import draw_noise as sampling_noise
from cosmos_robot.errors import InputError
from cosmos_robot.training.batches import BatchMaker
from cosmos_robot.training.config import PolicyTraining
from cosmos_robot.training.flow import draw_noise, flow_loss
from cosmos_robot.training.grounding import GroundingHeads, offset_loss, pointing_hits, pointing_loss

LOSS_ROWS = 192
SAMPLE_ROWS = 64
_CHUNK = 64


class Validation:
    """Called with a transformer and its heads; returns named measures.

    action, pointing, offset: losses. hit, hit_far: share of (placement, target) pairs where the pointed cell is right
    or next to it. offset_cm, offset_far_cm: median error of the target's place read at the state row. xyz_mae: mean
    absolute error of the first three action columns of sampled chunks, robot units. gripper_wrong: share of sampled
    steps with the gripper on the wrong side.
    """

    def __init__(self, batches: BatchMaker, config: PolicyTraining):
        self.batches, self.config = batches, config
        rows = batches.rows
        held_out = np.flatnonzero(rows.validation)
        if not len(held_out):
            raise InputError("training: no episode is held out for validation; record more than one")
        order = np.random.default_rng(config.seed).permutation(held_out)
        self._rows, self._sampled = np.sort(order[:LOSS_ROWS]), np.sort(order[:SAMPLE_ROWS])
        self._far = rows.far(config.far)
        self._codec = Codec(batches.contract)

    @torch.inference_mode()
    def __call__(self, transformer: Cosmos3OmniTransformer, heads: GroundingHeads) -> Mapping[str, float]:
        parts = [self._losses(transformer, heads, index) for index in _chunks(self._rows)]
        share = np.array([len(index) for index in _chunks(self._rows)]) / len(self._rows)
        means = {k: float(sum(s * p[k] for s, p in zip(share, parts, strict=True))) for k in parts[0] if k[0] != "_"}
        columns = {k: np.concatenate([p[k] for p in parts]) for k in parts[0] if k[0] == "_"}
        far = self._far[self._rows]
        seen, hit, error = columns["_seen"], columns["_hit"], columns["_error"] * 100
        measures = means | {"hit": _mean(hit[seen]), "hit_far": _mean(hit[far][seen[far]])}
        measures |= {"offset_cm": _median(error), "offset_far_cm": _median(error[far])}
        return {k: v for k, v in (measures | self._sample_errors(transformer)).items() if np.isfinite(v)}

    def _losses(self, transformer, heads, index) -> dict:
        batch = self.batches.clean(index)
        generator = torch.Generator().manual_seed(int(index[0]))
        noise = draw_noise(batch.flow, self.batches.plan, self.batches.contract.model.sampler.shift, generator)
        text = encode_text(transformer, batch.prompts)
        flow = flow_loss(transformer, self.batches.plan, text, batch.flow, noise, self.config.hidden_at)
        logits, offsets = heads(self.batches.grounding_tokens(flow.hidden.float()))
        places = batch.places
        error = (offsets[:, 0, 0] - places.offset[:, 0]).norm(dim=-1)
        losses = {"action": flow.action, "video": flow.video, "pointing": pointing_loss(heads, logits, places),
                  "offset": offset_loss(offsets, places)}  # fmt: skip
        return {k: float(v) for k, v in losses.items() if v is not None} | {
            "_hit": pointing_hits(heads, logits, places)[..., 0].numpy(),
            "_seen": places.seen[..., 0].numpy(),
            "_error": error.numpy(),
        }

    def _sample_errors(self, transformer) -> dict[str, float]:
        rows, codec = self.batches.rows, self._codec
        sampled = np.concatenate([self._sample(transformer, index) for index in _chunks(self._sampled)])
        truth, valid = codec.decode_actions(rows.actions[self._sampled]), rows.valid[self._sampled]
        chunk = codec.decode_actions(sampled)
        return {"xyz_mae": float(np.abs(chunk - truth)[..., :3][valid].mean())} | self._gripper(chunk, truth, valid)

    def _gripper(self, chunk, truth, valid) -> dict[str, float]:
        robot = self.batches.contract.robot
        if robot.gripper is None:
            return {}
        ends = GripperRange(robot.gripper.open_value, robot.gripper.closed_value)
        hands = [action_column(robot, name) for name in robot.gripper.fields]
        opened = [ends.openness(actions[..., hands]) > robot.gripper.threshold for actions in (chunk, truth)]
        return {"gripper_wrong": float((opened[0] != opened[1])[valid].mean())}

    def _sample(self, transformer, index) -> np.ndarray:
        """(B, T, D) sampled chunks in model units, with the contract's sampler."""
        batch = self.batches.clean(index)
        flow = batch.flow
        plan, model = self.batches.plan, self.batches.contract.model
        rows = join_rows(flow.state, torch.zeros_like(flow.actions))
        width = flow.actions.shape[2]
        given = Given(flow.text_index.tolist(), flow.latents, rows, model.domain_id, width)
        config = transformer.config
        noise = sampling_noise(plan, config.latent_channel, config.action_dim, width, [int(i) for i in index])
        settings = model.sampler.model_copy(update={"guidance": 1.0})
        return sample(transformer, plan, encode_text(transformer, batch.prompts), given, settings, noise).action.numpy()


def _chunks(index: np.ndarray) -> list[np.ndarray]:
    return [index[i : i + _CHUNK] for i in range(0, len(index), _CHUNK)]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


def _median(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else float("nan")
