"""Joint training rows to latent volumes: what each frame holds, which are given, how much each learns.

Axis legend: B samples, C L h w latents, T chunk steps, D action width, S state width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.contract import WHOLE_CANVAS, Contract
from cosmos_robot.errors import ContractError
from cosmos_robot.latent_frames.fill import injected
from cosmos_robot.latent_frames.layout import ACTION, FUTURE, STATE, VALUE, SampleKind, layout_of
from cosmos_robot.latent_frames.objective import Targets, clean_frames, frame_weights
from cosmos_robot.latent_frames.volumes import tiled
from cosmos_robot.training.frame_config import FrameAugmentation
from cosmos_robot.training.frame_rows import FrameRows
from cosmos_robot.training.grounding import Places

_FUTURE_PICTURES = FUTURE + WHOLE_CANVAS


@dataclass(frozen=True)
class FrameBatch:
    """Samples of one kind. clean_latents (B, C, L, h, w): the truth in every frame; given: the same with noise on what
    the plan gives. weights (B, L): of each frame's loss. elements (B, C, L, h, w) or None: 0 where a chunk was filled
    in. prompts: distinct token ids; text_index (B,) into them."""

    kind: SampleKind
    plan: TokenPlan
    given: Tensor
    clean_latents: Tensor
    weights: Tensor
    elements: Tensor | None
    prompts: tuple[tuple[int, ...], ...]
    text_index: Tensor
    places: Places


class FrameBatches:
    """Rows to batches. Raises ContractError for a layout without a whole canvas: others are not trained here."""

    def __init__(self, rows: FrameRows, prompts: Sequence[Sequence[int]], contract: Contract, targets: Targets,
                 factors: dict[str, float]):  # fmt: skip
        self.rows, self.contract, self.layout, self.targets = rows, contract, layout_of(contract), targets
        if WHOLE_CANVAS not in self.layout:
            raise ContractError(
                f"frame training: the frames {list(self.layout.slots)} have no {WHOLE_CANVAS!r}; cameras in frames of "
                "their own cannot be trained here"
            )
        self._prompts = tuple(tuple(ids) for ids in prompts)
        self._factors = torch.tensor([factors.get(_part(slot), 1.0) for slot in self.layout.slots])

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        """The frames that hold a vector, and its shape."""
        state = (self.rows.state.shape[1],)
        shapes = {STATE: state, ACTION: self.rows.actions.shape[1:], FUTURE + STATE: state, VALUE: (1,)}
        return {slot: shape for slot, shape in shapes.items() if slot in self.layout}

    def plan(self, kind: SampleKind, grid: tuple[int, int]) -> TokenPlan:
        """The token plan of a kind of sample over frames of ``grid`` (rows, columns) cells."""
        clean = clean_frames(self.layout, [kind], self.targets)[0]
        return TokenPlan((len(self.layout), *grid), tuple(clean.tolist()), (), self.contract.fps, 0)

    def batch(self, kind: SampleKind, index: NDArray[np.int64], noise: FrameAugmentation | None = None,
              generator: torch.Generator | None = None) -> FrameBatch:  # fmt: skip
        """The rows ``index`` as samples of ``kind``, with ``noise`` on what is given if there is any."""
        rows = self.rows
        truth = self._volume(kind, index)
        plan = self.plan(kind, tuple(truth.shape[3:]))
        given = truth if noise is None else self._noised(truth, noise, generator)
        unique, inverse = np.unique(rows.instruction[index], return_inverse=True)
        return FrameBatch(
            kind=kind,
            plan=plan,
            given=given,
            clean_latents=truth,
            weights=frame_weights(self.layout, [kind] * len(index), self.targets) * self._factors,
            elements=self._elements(index, truth),
            prompts=tuple(self._prompts[i] for i in unique),
            text_index=torch.from_numpy(inverse),
            places=Places(*(torch.from_numpy(column[index]) for column in (rows.cells, rows.seen, rows.offset))),
        )

    def _volume(self, kind: SampleKind, index: NDArray[np.int64]) -> Tensor:
        """What is to be done for a policy; what was done, which futures and values follow from, for the others."""
        rows, layout = self.rows, self.layout
        commands = rows.actions if kind == "policy" else rows.executed
        shown = torch.from_numpy(rows.latents(rows.now[index])).float()
        out = shown.new_zeros(len(index), shown.shape[1], len(layout), *shown.shape[2:])
        out[:, :, layout.index(WHOLE_CANVAS)] = shown
        if _FUTURE_PICTURES in layout:
            out[:, :, layout.index(_FUTURE_PICTURES)] = torch.from_numpy(rows.latents(rows.later[index])).float()
        vectors = {STATE: rows.state, ACTION: commands, FUTURE + STATE: rows.later_state, VALUE: rows.value}
        return injected(out, layout, {s: torch.from_numpy(v[index]) for s, v in vectors.items() if s in layout})

    def _noised(self, truth: Tensor, noise: FrameAugmentation, generator: torch.Generator | None) -> Tensor:
        """Noise on pictures of now and on the state of now; what else is given stays exact."""
        layout, out = self.layout, truth.clone()
        at = layout.index(WHOLE_CANVAS)
        out[:, :, at] += noise.latent_noise * torch.randn(out[:, :, at].shape, generator=generator)
        if STATE in layout:
            vectors = torch.randn(len(out), self.rows.state.shape[1], generator=generator) * noise.state_noise
            out[:, :, layout.index(STATE)] += tiled(vectors, (out.shape[1], *out.shape[3:]))
        return out

    def _elements(self, index: NDArray[np.int64], truth: Tensor) -> Tensor | None:
        valid = torch.from_numpy(self.rows.valid[index])
        if valid.all():
            return None
        out = torch.ones_like(truth)
        columns = valid[..., None].float().expand(-1, -1, self.rows.actions.shape[2])
        out[:, :, self.layout.index(ACTION)] = tiled(columns, (truth.shape[1], *truth.shape[3:]))
        return out


def _part(slot: str) -> str:
    return "future" if slot.startswith(FUTURE) else slot
