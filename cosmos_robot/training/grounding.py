"""Training-only heads that teach the network to look: dropped when a policy is exported.

Learning vision from the action loss alone takes hours at this size; asking for the place of the named object finds it
within a minute. Two questions are asked of the residual stream entering a middle layer:

- pointing: over the vision tokens of each camera, which one holds the target, which one the goal;
- offset: at the state row and the action rows, how far target and goal are from the hand.

Axis legend: B samples, N generation tokens, E hidden width, P placements, h w latent cells, R action rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QUESTIONS = ("target", "goal")
OFFSET_UNIT = 0.1
"""Metres per unit of the offset head."""


@dataclass(frozen=True)
class Places:
    """Where the two objects are. cells (B, P, 2, 2): row and column in latent cells of (target, goal) in each
    placement; seen (B, P, 2) bool. offset (B, 2, 3): metres from the hand to (target, goal), NaN where not recorded."""

    cells: Tensor
    seen: Tensor
    offset: Tensor


class GroundingHeads(nn.Module):
    """Linear readouts of a normalised residual stream."""

    def __init__(self, hidden: int, placement_cells: Tensor, seed: int):
        """placement_cells (P, h, w) bool: the cells of each placement."""
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.point = nn.Linear(hidden, len(QUESTIONS))
        self.offset = nn.Linear(hidden, 3 * len(QUESTIONS))
        generator = torch.Generator().manual_seed(seed)
        for layer in (self.point, self.offset):
            layer.weight.data.normal_(0, 0.02, generator=generator)
            layer.bias.data.zero_()
        self.register_buffer("placements", placement_cells.flatten(1), persistent=False)
        rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in placement_cells.shape[1:]), indexing="ij")
        self.register_buffer("centres", torch.stack([rows, columns], -1).flatten(0, 1), persistent=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden (B, N, E) with the h * w vision tokens first. Returns pointing logits (B, P, 2, h * w), -inf outside
        each placement, and offsets (B, R, 2, 3) in metres."""
        cells = self.placements.shape[1]
        x = self.norm(hidden)
        logits = self.point(x[:, :cells]).float().transpose(1, 2)
        logits = logits[:, None].masked_fill(~self.placements[None, :, None], float("-inf"))
        offsets = self.offset(x[:, cells:]).float().unflatten(-1, (len(QUESTIONS), 3)) * OFFSET_UNIT
        return logits, offsets


def pointing_loss(heads: GroundingHeads, logits: Tensor, places: Places, width: float = 0.6) -> Tensor:
    """Cross-entropy of each placement's softmax against a Gaussian (``width`` cells) around the object, over those
    objects that are on the picture."""
    distance = (heads.centres - places.cells.unsqueeze(-2)).square().sum(-1)
    goal = (-distance / (2 * width * width)).masked_fill(~heads.placements[None, :, None], float("-inf"))
    goal = goal.softmax(-1)
    log_p = logits.log_softmax(-1).masked_fill(~heads.placements[None, :, None], 0.0)
    return _mean_where(-(goal * log_p).sum(-1), places.seen)


def offset_loss(offsets: Tensor, places: Places) -> Tensor:
    """Smooth L1 in units of 0.1 m, quadratic below 2 cm, at every action row; (B, R, 2, 3) against (B, 2, 3)."""
    known = places.offset.isfinite()
    truth = places.offset.nan_to_num() / OFFSET_UNIT
    error = F.smooth_l1_loss(offsets / OFFSET_UNIT, truth[:, None].expand_as(offsets), reduction="none", beta=0.2)
    return _mean_where(error.mean(1), known)


def pointing_hits(heads: GroundingHeads, logits: Tensor, places: Places) -> Tensor:
    """(B, P, 2) bool: the most likely cell is the object's own or a direct neighbour. Meaningful where ``seen``."""
    best = heads.centres[logits.argmax(-1)]
    return ((best.floor() - places.cells.floor()).abs() <= 1).all(-1)


def _mean_where(error: Tensor, mask: Tensor) -> Tensor:
    return (error * mask).sum() / mask.sum().clamp_min(1)
