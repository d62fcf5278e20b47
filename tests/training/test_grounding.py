import pytest
import torch

from cosmos_robot.training.grounding import (
    GroundingHeads,
    Places,
    offset_loss,
    pointing_hits,
    pointing_loss,
)
from cosmos_robot.training.object_head import ObjectHead, cell_loss, object_losses, object_scores, object_targets

H, W = 4, 6


@pytest.fixture(scope="module")
def heads() -> GroundingHeads:
    placements = torch.zeros(2, H, W, dtype=torch.bool)
    placements[0, :, :4] = True
    placements[1, :2, 4:] = True
    return GroundingHeads(32, placements, seed=0)


def places(cell=(1.5, 2.5), seen=True) -> Places:
    cells = torch.tensor([[[cell, (0.5, 0.5)], [(0.5, 4.5), (0.5, 4.5)]]])
    flags = torch.tensor([[[seen, False], [False, False]]])
    return Places(cells, flags, torch.full((1, 2, 3), torch.nan))


def logits_at(heads, row: int, column: int, height: float = 20.0) -> torch.Tensor:
    logits = torch.zeros(1, 2, 2, H, W)
    logits[..., row, column] = height
    return logits.flatten(3).masked_fill(~heads.placements[None, :, None], float("-inf"))


def test_pointing_prefers_the_object(heads):
    right, wrong = (pointing_loss(heads, logits_at(heads, *cell, 4.0), places()) for cell in ((1, 2), (3, 0)))
    assert right < wrong
    assert pointing_loss(heads, logits_at(heads, 3, 0), places(seen=False)) == 0


def test_pointing_hits_own_cell_and_neighbours(heads):
    hit = {
        cell: bool(pointing_hits(heads, logits_at(heads, *cell), places())[0, 0, 0])
        for cell in ((1, 2), (2, 3), (3, 2))
    }
    assert hit == {(1, 2): True, (2, 3): True, (3, 2): False}


def test_heads_learn_to_point_and_measure(heads):
    """Hidden states that hold the answer: the readout must find it, in the placement's own cells only."""
    torch.manual_seed(0)
    hidden = torch.randn(1, H * W + 3, 32)
    truth = places()
    truth.offset[0, 0] = torch.tensor([0.1, -0.2, 0.05])
    optimizer = torch.optim.Adam(heads.parameters(), 0.05)
    for _ in range(60):
        logits, offsets = heads(hidden)
        loss = pointing_loss(heads, logits, truth) + offset_loss(offsets, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert pointing_hits(heads, logits, truth)[0, 0, 0]
    assert logits[0, 0].isneginf().sum() == 2 * (H * W - 16)
    torch.testing.assert_close(offsets[0, :, 0], truth.offset[0, 0].expand(3, 3), atol=0.02, rtol=0)


def test_unrecorded_offsets_carry_no_loss(heads):
    offsets = torch.randn(1, 3, 2, 3, requires_grad=True)
    loss = offset_loss(offsets, places())
    loss.backward()
    assert loss == 0 and not offsets.grad.any()


def test_object_targets_follow_cells():
    cells = torch.tensor([[[[1.25, 2.5], [3.9, 5.1], [0.5, 0.5]]]])
    seen = torch.tensor([[[True, True, False]]])
    targets = object_targets(cells, seen, torch.tensor([[2, 0, 1]]), 3, H, W)
    assert [tuple(i) for i in targets.present.nonzero().tolist()] == [(0, 0, 3, 5), (0, 2, 1, 2)]
    torch.testing.assert_close(targets.place[0, 2, :, 1, 2], torch.tensor([0.25, 0.5]))
    torch.testing.assert_close(targets.place[0, 0, :, 3, 5], torch.tensor([0.9, 0.1]))


def test_objects_outside_the_canvas_are_left_out():
    cells = torch.tensor([[[[-0.2, 2.0], [4.1, 2.0], [1.0, 6.0]]]])
    targets = object_targets(cells, torch.ones(1, 1, 3, dtype=torch.bool), torch.zeros(1, 3), 1, H, W)
    assert not targets.present.any()


def test_object_losses_and_scores():
    cells, seen = torch.tensor([[[[1.25, 2.5]]]]), torch.ones(1, 1, 1, dtype=torch.bool)
    targets = object_targets(cells, seen, torch.zeros(1, 1), 2, H, W)
    sure = torch.full((1, 2, H, W), -8.0)
    sure[0, 0, 1, 2] = 8
    wrong = torch.full((1, 2, H, W), -8.0)
    wrong[0, 0, 3, 5] = 8
    place = targets.place.clone()
    place[0, 0, :, 1, 2] += torch.tensor([0.3, 0.4])
    assert object_losses(sure, targets.place, targets)[0] < 1e-3 < object_losses(wrong, targets.place, targets)[0]
    assert object_losses(sure, targets.place, targets)[1] == 0 < object_losses(sure, place, targets)[1]
    found, error = object_scores(sure, place, targets)
    assert found.tolist() == [True]
    torch.testing.assert_close(error, torch.tensor([0.5]))
    assert object_scores(wrong, place, targets)[0].tolist() == [False]


def test_cells_are_asked_for_their_own_place():
    rows, columns = torch.meshgrid(torch.arange(H) + 0.5, torch.arange(W) + 0.5, indexing="ij")
    right = torch.stack([rows, columns])[None]
    assert cell_loss(right) == 0 < cell_loss(right.flip(1))


def test_object_head_starts_with_empty_cells():
    logits, place, cell = ObjectHead(48, 5, seed=0)(torch.randn(2, 48, H, W))
    assert cell.shape == (2, 2, H, W)
    assert logits.shape == (2, 5, H, W) and place.shape == (2, 5, 2, H, W)
    assert logits.sigmoid().mean() < 0.05 and abs(place.mean() - 0.5) < 0.05
