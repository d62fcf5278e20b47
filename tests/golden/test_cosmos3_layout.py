"""Token plans, packed sequences and positions of Cosmos 3."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.layout import TokenPlan, align, token_plan
from cosmos_robot.backbone.cosmos3.positions import grid_positions, plan_positions, text_positions
from cosmos_robot.backbone.cosmos3.text import frame_tokens
from cosmos_robot.errors import InputError


@pytest.mark.golden("cosmos3/sequence_plans")
def test_plan_of_a_mode(case) -> None:
    def plan():
        return align(
            case["mode"], case["video_length"], case["action_length"], case["num_history_actions"],
            case["video_temporal_downsample"],
        )  # fmt: skip

    recorded = case["plan"]
    if "error" in recorded:
        with pytest.raises(InputError):
            plan()
        return
    ours = plan()
    assert indices(ours.clean_frames) == recorded["condition_frame_indexes_vision"]
    assert indices(ours.clean_rows) == recorded["condition_frame_indexes_action"]
    assert ours.action_start == recorded["action_start_frame_offset"]
    assert len(ours.clean_rows) == case["action_length"]


def indices(flags) -> list[int]:
    return [i for i, flag in enumerate(flags) if flag]


@pytest.mark.golden("cosmos3/mrope_direct")
def test_positions(case) -> None:
    recorded, offset = np.float32(case["ids"]), case["temporal_offset"]
    if case["kind"] == "text":
        ours = text_positions(case["num_tokens"], offset if case["use_float_positions"] else int(offset))
    else:
        ours = grid_positions(
            tuple(case["grid"]), offset, case["fps"], case["base_fps"], case["temporal_compression_factor"],
            case["base_temporal_compression_factor"], case["start_frame_offset"], case["reset_spatial_indices"],
        )  # fmt: skip
    np.testing.assert_array_equal(ours.numpy(), recorded)


@pytest.mark.golden("cosmos3/packed_sequences")
def test_packed_sequence(case, golden) -> None:
    """Every sample of the pack: its text, which tokens are noisy, and all positions."""
    options, arrays = case["options"], golden.arrays_of("cosmos3/packed_sequences", case["id"])
    if options["skip_text_tokens"]:
        pytest.skip("a sequence without any text: no released model is run so")
    second = [] if case["second_sample"] is None else [{**case, **case["second_sample"]}]
    begin, read = 0, Counter()
    for number, settings in enumerate([case, *second]):
        length = case["sample_lens"][number]
        text = text_of(case, number)
        inside = (arrays["text_indexes"] >= begin) & (arrays["text_indexes"] < begin + length)
        end = [case["special_tokens"]["end_of_generation"]] if options["include_end_of_generation_token"] else []
        assert arrays["text_ids"][inside].tolist() == text + end
        positions = arrays["position_ids"][:, begin : begin + length]
        np.testing.assert_array_equal(positions[:, : len(text)], text_positions(len(text)))
        ours = generation_positions(case, settings, len(text))
        assert len(text) + sum(p.shape[1] for p in ours.values()) + len(end) == length
        for part, expected in ours.items():
            where = arrays[f"{part}_sequence_indexes"][read[part] : read[part] + expected.shape[1]]
            np.testing.assert_array_equal(arrays["position_ids"][:, where], expected)
            noisy = noisy_tokens(settings, case["latent_patch_size"], part)
            lost = arrays[f"{part}_mse_loss_indexes"][read[part, "noisy"] :][: len(noisy)]
            np.testing.assert_array_equal(lost, where[noisy])
            read.update({part: len(where), (part, "noisy"): len(noisy)})
        begin += length


def text_of(case: dict, number: int) -> list[int]:
    special = case["special_tokens"]
    return frame_tokens(
        case["text_ids_in"][number], special["eos_token_id"], special["start_of_generation"],
        special.get("bos_token_id"),
    )  # fmt: skip


def plan_of(settings: dict) -> TokenPlan:
    history = settings["num_history_actions"]
    return token_plan(
        settings["mode"], settings["video_frames"], settings["action_rows"], tuple(settings["latent_hw"]),
        settings["fps"], history,
    )  # fmt: skip


def generation_positions(case: dict, settings: dict, text_length: int) -> dict[str, np.ndarray]:
    plan, patch, margin = plan_of(settings), case["latent_patch_size"], case["options"]["margin"]
    vision = plan.latent_grid[0] * plan.patches(patch)
    if case["options"]["enable_fps_modulation"]:
        both = plan_positions(plan, text_length, patch, margin).numpy()
    else:
        frames, *sides = plan.latent_grid
        grids = ((frames, *(-(-side // patch) for side in sides)), 0), ((plan.rows, 1, 1), plan.action_start)
        both = np.concatenate([grid_positions(g, text_length + margin, None, start=s) for g, s in grids], axis=1)
    return {"vision": both[:, :vision], "action": both[:, vision:]}


def noisy_tokens(settings: dict, patch: int, part: str) -> list[int]:
    plan = plan_of(settings)
    per_frame = plan.patches(patch)
    vision = [f * per_frame + i for f in plan.noisy_frames for i in range(per_frame)]
    return vision if part == "vision" else list(plan.noisy_rows)
