"""The side-by-side benchmarks compare what they say they compare, and their two sides agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cosmos_robot import cli
from cosmos_robot.backbone.cosmos3.layout import wam_plan
from cosmos_robot.backbone.cosmos3.runtime import encode_text, velocity
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.bench.forward import Work, step_flops, stepwise
from cosmos_robot.bench.harness import Pair, interleave, matmul_rate, transient_bytes
from cosmos_robot.bench.policy import candidates_report, encode_report, policy_report
from cosmos_robot.bench.subjects import bench_contract, parameters, tiny_checkpoint
from cosmos_robot.bench.train_step import train_step_report
from cosmos_robot.errors import InputError
from cosmos_robot.policies.cosmos3 import Cosmos3JointPolicy

SHORT = bench_contract(steps=2, chunk=4)


def test_turns_alternate_and_warm_up_is_not_counted() -> None:
    order: list[str] = []
    pair = interleave(lambda: order.append("o"), lambda: order.append("p"), repeats=2, warm_up=1)
    assert "".join(order) == "opopop"
    assert len(pair.ours) == len(pair.peer) == 2


def test_ratio_is_of_medians() -> None:
    assert Pair(ours=(1.0, 2.0, 9.0), peer=(8.0, 6.0, 1.0)).ratio == 3.0


def test_impossible_repeats_are_refused() -> None:
    with pytest.raises(InputError, match="repeats >= 1"):
        interleave(lambda: None, lambda: None, repeats=0)


def test_transient_bytes_are_those_of_the_highest_moment() -> None:
    def call() -> None:
        a = torch.zeros(1000, dtype=torch.float32)
        del a
        b, c = torch.zeros(500, dtype=torch.float32), torch.zeros(1500, dtype=torch.float32)
        del b, c

    assert 8000 <= transient_bytes(call) < 8000 + 1000


def test_a_rate_is_positive() -> None:
    assert matmul_rate(torch.float32, 8, 8, 8) > 0


def test_the_model_has_about_ten_million_parameters() -> None:
    checkpoint = tiny_checkpoint(SHORT)
    assert 9e6 < parameters(checkpoint.transformer, checkpoint.vae) < 11e6


def test_a_chunk_equals_the_pipeline() -> None:
    figures = policy_report(Cosmos3JointPolicy, SHORT, repeats=1)
    assert figures["max_abs_diff"] < 1e-4
    assert figures["ratio"] == figures["peer"]["median_s"] / figures["ours"]["median_s"]
    assert figures["text_tokens"][0] > figures["text_tokens"][1] > 0


def test_candidates_equal_pipeline_calls_and_memory_is_shown() -> None:
    figures = candidates_report(Cosmos3JointPolicy, SHORT, count=2, repeats=1)
    memory = figures["memory"]
    assert figures["max_abs_diff"] < 1e-4
    assert memory["own_bytes"] < memory["peak_of_all_bytes"] - memory["held_bytes"] < 3 * memory["own_bytes"]
    with pytest.raises(InputError, match="at least 2"):
        candidates_report(Cosmos3JointPolicy, SHORT, count=1)


def test_the_first_frame_equals_that_of_the_clip() -> None:
    assert encode_report(SHORT, repeats=1, vae_width=8)["max_abs_diff"] < 1e-4


def test_gradients_of_a_batch_equal_those_of_its_samples() -> None:
    figures = train_step_report(batch=3, instructions=2, repeats=1)
    assert figures["gradient_max_abs_diff"] < 1e-4 < figures["gradient_max_abs"]
    assert figures["gradients_missing"] == [] and len(figures["text_tokens"]) == 2
    with pytest.raises(InputError, match="1 to 3 instructions"):
        train_step_report(batch=3, instructions=4)


def small_work() -> Work:
    transformer = tiny_transformer(
        16, 0, hidden_size=64, intermediate_size=96, num_hidden_layers=3, head_dim=16, rope_axes_dim=[4, 2, 2],
        latent_patch_size=2, patch_latent_dim=192,
    ).eval()  # fmt: skip
    return Work(transformer, wam_plan(2, 4, 6, chunk=4, fps=15, state_row=True), ([1, 2, 3, 4, 5], [6, 7]), 3, 8)


@torch.no_grad()
def test_steps_of_both_sides_agree() -> None:
    run = stepwise(small_work(), steps=3, dtype=torch.float32)
    assert run.difference < 1e-5 < run.largest
    assert len(run.pair.ours) == len(run.pair.peer) == len(run.rates) == 3


def test_counted_operations_are_those_that_run() -> None:
    """With gradients on, attention runs through an operator that torch's own counter knows."""
    work = small_work()
    text = encode_text(work.transformer, [list(ids) for ids in work.prompts])
    plan, rows = work.plan, torch.zeros(1, work.plan.rows, 8)
    with FlopCounterMode(display=False) as counter:
        velocity(
            work.transformer, plan, text, [[0], [1]], torch.zeros(1, 48, *plan.latent_grid), rows, torch.zeros(1), [3],
            ("video", "action"),
        )  # fmt: skip
    # Beyond ours: heads and time embedding, and attention to the shorter text's padding.
    assert step_flops(work) < counter.get_total_flops() < 1.3 * step_flops(work)


def test_json_on_the_screen_is_json_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "encode.json"
    assert cli.main(["bench", "encode", "--repeats", "1", "--vae-width", "8", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["bench"] == "encode" and "run 1 of 1" in captured.err
    assert cli.main(["bench", "encode", "--repeats", "1", "--vae-width", "8", "--json", str(out)]) == 0
    assert "ratio" in capsys.readouterr().out and json.loads(out.read_text())["threads"] == 1


def test_a_shape_of_another_dtype_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "policy", "--dtype", "bfloat16"]) == cli.REFUSED
    assert "nano-slice" in capsys.readouterr().err
