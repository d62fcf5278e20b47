"""A linear readout of latents: which object has its centre in a cell, and where in the cell.

Used only while the autoencoder is trained, so that its latents carry what is where in a form the policy can read with
one matrix product.

Axis legend: B pictures, K classes, C h w latents, P placements, S object slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOCUS = 2.0


@dataclass(frozen=True)
class ObjectTargets:
    """present (B, K, h, w) bool; place (B, K, 2, h, w): row and column of the centre inside its cell, each in 0..1,
    meaningful where present."""

    present: Tensor
    place: Tensor


def object_targets(cells: Tensor, seen: Tensor, classes: Tensor, count: int, height: int, width: int) -> ObjectTargets:
    """From cells (B, P, S, 2), seen (B, P, S) bool and classes (B, S) of ``frame_cache``; ``count`` is K. Of two
    objects of one class in one cell the later slot counts."""
    batch, placements, slots = seen.shape
    inside = (cells >= 0).all(-1) & (cells[..., 0] < height) & (cells[..., 1] < width)
    classes = classes.long()[:, None].expand(batch, placements, slots)
    b, p, s = torch.nonzero(seen & inside & (classes >= 0), as_tuple=True)
    where = cells[b, p, s]
    row, column = where.long().unbind(-1)
    kind = classes[b, p, s]
    present = torch.zeros(batch, count, height, width, dtype=torch.bool)
    place = torch.zeros(batch, count, 2, height, width)
    present[b, kind, row, column] = True
    place[b, kind, :, row, column] = where - where.floor()
    return ObjectTargets(present, place)


class ObjectHead(nn.Module):
    """1x1 convolution on batch-normalised latents."""

    def __init__(self, channels: int, classes: int, seed: int):
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm2d(channels, affine=False, momentum=0.02)
        self.read = nn.Conv2d(channels, 3 * classes + 2, 1)
        self.read.weight.data.normal_(0, 0.02, generator=torch.Generator().manual_seed(seed))
        self.read.bias.data.zero_()
        self.read.bias.data[:classes] = -4.0  # almost every cell is empty

    def forward(self, latents: Tensor, noise: Tensor | float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
        """latents (B, C, h, w) raw; ``noise`` is added after normalisation. Returns class logits (B, K, h, w), places
        (B, K, 2, h, w) and each cell's own row and column (B, 2, h, w), in cells."""
        out = self.read(self.norm(latents.float()) + noise)
        present, place, cell = out.split([self.classes, 2 * self.classes, 2], dim=1)
        scale = torch.tensor(latents.shape[-2:]).view(2, 1, 1) / 2
        return present, place.unflatten(1, (self.classes, 2)) + 0.5, (cell + 1) * scale


def object_losses(logits: Tensor, place: Tensor, targets: ObjectTargets) -> tuple[Tensor, Tensor]:
    """Focal cross-entropy over cells and classes, and smooth L1 of the place in cells, both per object present."""
    present = targets.present.float()
    count = present.sum().clamp_min(1)
    wrong = torch.where(targets.present, 1 - logits.sigmoid(), logits.sigmoid())
    focal = wrong.pow(FOCUS) * F.binary_cross_entropy_with_logits(logits, present, reduction="none")
    error = F.smooth_l1_loss(place, targets.place, reduction="none", beta=0.1).sum(2)
    return focal.sum() / count, (error * present).sum() / count


def cell_loss(cell: Tensor) -> Tensor:
    """Smooth L1 between the row and column read from each cell (B, 2, h, w) and its own.

    Rotary positions enter attention weights only, never what a token says; a policy that is to tell where the object
    it found lies needs the place in the latent itself.
    """
    height, width = cell.shape[-2:]
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return F.smooth_l1_loss(cell, torch.stack([rows, columns]).expand_as(cell), beta=0.5)


def object_scores(logits: Tensor, place: Tensor, targets: ObjectTargets) -> tuple[Tensor, Tensor]:
    """Per object, in the order of ``nonzero(present)``: whether its class scores higher within one cell of it than
    anywhere that is not within one cell of any object of that class; and how far off its place is, read at its own
    cell, in cells."""
    b, k, row, column = torch.nonzero(targets.present, as_tuple=True)
    beside = F.max_pool2d(targets.present.float(), 3, stride=1, padding=1) > 0
    elsewhere = logits.masked_fill(beside, float("-inf")).flatten(2).amax(2)
    near = F.max_pool2d(logits, 3, stride=1, padding=1)[b, k, row, column]
    error = (place[b, k, :, row, column] - targets.place[b, k, :, row, column]).norm(dim=-1)
    return near > elsewhere[b, k], error
