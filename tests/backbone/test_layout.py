"""Plans of a contract's modes, frame rates, and what cannot be laid out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import cosmos_robot
from cosmos_robot.backbone.cosmos3.layout import (
    TokenPlan,
    align,
    contract_plan,
    model_fps,
    policy_plan,
    token_plan,
    video_frames,
)
from cosmos_robot.backbone.cosmos3.positions import plan_positions
from cosmos_robot.backbone.cosmos3.untrained import untrained_contract
from cosmos_robot.contract import CameraSpec, Contract, FieldSpec, RobotSpec, read_contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import image_size, latent_content

GRID = (2, 3)
MODES = ("policy", "wam", "forward_dynamics", "inverse_dynamics")


def contract(rate_hz: float = 15, **model) -> Contract:
    robot = RobotSpec(
        name="arm",
        cameras=(CameraSpec(name="front", height=64, width=64),),
        state=(FieldSpec(name="joints", width=8, unit="rad"),),
        action=(FieldSpec(name="joints", width=8, unit="rad"),),
        action_reference="absolute",
        rate_hz=rate_hz,
    )
    made = untrained_contract(robot, "arm", chunk=32)
    return Contract(robot=robot, model=made.model.model_copy(update={"modes": MODES, **model}))


@pytest.mark.parametrize("state_row", [False, True])
@pytest.mark.parametrize("history", [0, 3])
def test_every_mode_of_a_contract(state_row: bool, history: int) -> None:
    made = contract(state_row=state_row, history_rows=3)
    plans = {mode: contract_plan(made, mode, GRID, history) for mode in MODES}
    given = history + state_row
    for mode, plan in plans.items():
        assert plan.rows == given + 32 and plan.latent_grid == ((1 if mode == "policy" else 9), *GRID)
        assert plan.action_start == (0 if state_row else 1) - history
        assert plan.noisy_rows == (() if mode == "forward_dynamics" else tuple(range(given, given + 32)))
        assert plan.noisy_frames == (tuple(range(1, 9)) if mode in ("wam", "forward_dynamics") else ())


def test_the_first_command_stands_at_frame_one_whatever_comes_before() -> None:
    made = contract(state_row=True, history_rows=3)
    for history in (0, 3):
        plan = contract_plan(made, "wam", GRID, history)
        time = plan_positions(plan, 10, 1, 15000)[0]
        first_command = plan.latent_grid[0] * 6 + plan.noisy_rows[0]
        assert float(time[first_command]) == pytest.approx(15010 + 24 / 4 / 15, abs=2e-3)


def test_rows_denser_than_the_video_keep_their_own_clock() -> None:
    """Four commands a frame: 16 rows on 5 frames, the last command at the last frame."""
    plan = contract_plan(contract(20, chunk=16, actions_per_frame=4, state_row=False), "wam", GRID)
    assert plan.latent_grid == (2, *GRID) and (plan.fps, plan.action_fps) == (5, 20)
    time = plan_positions(plan, 0, 1, 15000)[0]
    assert float(time[11]) == pytest.approx(float(time[-1]), abs=2e-3)
    told = contract_plan(contract(20, chunk=16, actions_per_frame=4, state_row=False, fps=6), "wam", GRID)
    assert (told.fps, told.action_fps) == (6, 24)


def test_what_a_contract_cannot_lay_out_is_refused() -> None:
    with pytest.raises(ContractError, match="modes are"):
        contract_plan(contract(modes=("policy",)), "wam", GRID)
    with pytest.raises(InputError, match="takes 0 to 1"):
        contract_plan(contract(history_rows=1), "policy", GRID, history=2)
    with pytest.raises(ContractError, match="multiple of 4"):
        video_frames(contract(chunk=30).model)
    with pytest.raises(ContractError, match="multiple of 12"):
        video_frames(contract(chunk=32, actions_per_frame=3).model)
    assert video_frames(contract(chunk=24, actions_per_frame=3).model) == 9


@pytest.mark.parametrize("mode, frames, rows, history", [
    ("joint", 17, 16, 0), ("wam", 0, 16, 0), ("wam", 17, 16, -1), ("wam", 17, 2, 3),
])  # fmt: skip
def test_counts_that_make_no_sample(mode: str, frames: int, rows: int, history: int) -> None:
    with pytest.raises(InputError, match=r"mode|frames"):
        align(mode, frames, rows, history)


@pytest.mark.parametrize("fps", [0, -5, float("nan"), float("inf"), True, "15"])
def test_a_frame_rate_is_positive_and_finite(fps) -> None:
    with pytest.raises(InputError, match="positive, finite"):
        TokenPlan((1, 1, 1), (True,), (False,), fps, 0)
    with pytest.raises(InputError, match="positive, finite"):
        TokenPlan((1, 1, 1), (True,), (False,), 10.0, 0, fps)
    with pytest.raises(InputError, match="positive, finite"):
        model_fps(fps)


def test_the_model_is_told_whole_frames(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert model_fps(20) == 20 and not caplog.records
        assert model_fps(12.5) == 12
    assert "12.5" in caplog.text
    assert contract_plan(contract(12.5), "policy", GRID).fps == 12
    with pytest.raises(InputError, match="cuts off to 0"):
        model_fps(0.5)


def test_nothing_to_denoise() -> None:
    with pytest.raises(InputError, match="nothing to denoise"):
        token_plan("forward_dynamics", 1, 4, GRID, 20)
    assert policy_plan(2, 3, 4, 20, state_row=False).noisy_rows == (0, 1, 2, 3)


RELEASED = sorted((Path(cosmos_robot.__file__).parent / "assets" / "contracts").glob("cosmos3-*.json"))


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_released_contracts_can_be_laid_out(path: Path) -> None:
    made = read_contract(path)
    grid = latent_content(image_size(made.model.canvas), 16)
    for mode in made.model.modes:
        plan = contract_plan(made, mode, grid)
        assert plan.latent_grid[0] == made.model.chunk // 4 + 1
        assert plan.rows == made.model.chunk + made.model.state_row


@pytest.mark.parametrize(
    "name, vision, rows, start", [("cosmos3-nano-droid", 3060, 33, 0), ("cosmos3-libero", 250, 16, 1)]
)
def test_token_counts_of_the_released_policies(name: str, vision: int, rows: int, start: int) -> None:
    """As the framework counts them: 9 frames of 17x20 patches, 5 frames of 5x10."""
    made = read_contract(next(path for path in RELEASED if path.stem == name))
    plan = contract_plan(made, "wam", latent_content(image_size(made.model.canvas), 16))
    assert (plan.latent_grid[0] * plan.patches(2), plan.rows, plan.action_start) == (vision, rows, start)
