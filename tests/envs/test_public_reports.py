"""Failures that people have reported, on the adapters of simulators. Each name carries the report's id."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmos_robot import envs
from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs import libero
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv
from cosmos_robot.envs.init_states import read_init_states
from cosmos_robot.envs.libero import LiberoEnv
from cosmos_robot.envs.probes import probe
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.eval.libero import EvalConfig, step_budget


def finger_gap(env: LiberoEnv, gripper: float) -> float:
    """Metres between the simulator's own finger joints after ten steps of one command."""
    execute(env, np.tile([0.0, 0, 0, 0, 0, 0, gripper], (10, 1)))
    return float(np.abs(env.sim.data.qpos[env.arm._ref_gripper_joint_pos_indexes]).sum())


def test_pc_06_fingers_open_on_open(panda: LiberoEnv) -> None:
    gripper = panda.robot.gripper
    assert gripper is not None
    panda.reset(seed=0)
    closed = finger_gap(panda, gripper.closed_value)
    opened = finger_gap(panda, gripper.open_value)
    assert opened > 0.07 > 0.02 > closed


def test_pc_06_an_inverted_adapter_is_named(panda: LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    step = panda._step
    monkeypatch.setattr(panda, "_step", lambda action: step(action * [1, 1, 1, 1, 1, 1, -1]))
    violated = probe(panda, only=["gripper"]).violated
    assert {"robot.gripper.open_value", "robot.gripper.closed_value"} <= set(violated)


class AbsoluteFake(FakeEnv):
    """The same dot, driven to absolute places."""

    robot = RobotSpec.model_validate(
        FAKE_ROBOT.model_dump() | {"action_reference": "absolute", "action_low": None, "action_high": None}
    )

    def _step(self, action):
        way = np.clip((action[:2] - self._hand) / 0.02, -1, 1)
        return super()._step(np.array([*way, action[2]]))


@pytest.mark.parametrize("kind", [FakeEnv, AbsoluteFake])
def test_pc_24_told_to_stay_it_stays(kind: type[FakeEnv]) -> None:
    env = kind(1)
    report = probe(env, only=["hold_still", "position_axes"])
    assert report.holds and {f.status for f in report.findings} == {"holds"}


@pytest.mark.parametrize(("kind", "said"), [(FakeEnv, "absolute"), (AbsoluteFake, "per_step")])
def test_pc_24_targets_taken_for_changes_and_the_reverse(kind: type[FakeEnv], said: str) -> None:
    env = kind(1)
    spec = RobotSpec.model_validate(env.robot.model_dump() | {"action_reference": said})
    assert probe(env, spec, ["hold_still"]).violated == ("robot.action_reference",)


def test_pc_24_libero(panda: LiberoEnv) -> None:
    assert probe(panda, only=["hold_still"]).holds
    spec = RobotSpec.model_validate(panda.robot.model_dump() | {"action_reference": "absolute"})
    assert probe(panda, spec, ["hold_still"]).violated == ("robot.action_reference",)


BAD_ACTIONS = {
    "NaN in one joint": ([0.0, np.nan, 0.0], "dimension 1"),
    "infinity in the gripper": ([0.0, 0.0, -np.inf], "dimension 2"),
    "the text 'nan'": ([0.0, "nan", 0.0], "dimension 1.*'nan'"),
    "True as a value": ([0.0, 0.0, True], "dimension 2.*True"),
    "None": ([None, 0.0, 0.0], "dimension 0.*None"),
    "nested": ([[0.0], [0.0, 1.0], 0.0], "rectangle|dimension"),
}


@pytest.mark.parametrize("what", BAD_ACTIONS)
def test_pc_48_nothing_but_finite_numbers_is_sent(what: str) -> None:
    action, words = BAD_ACTIONS[what]
    with envs.make("fake/1") as env:
        before, _ = env.reset(seed=0)
        with pytest.raises(InputError, match=words):
            env.step(action)
        assert env.control_steps == 0
        assert np.array_equal(env.observe().state["position"], before.state["position"])


def test_pc_48_a_chunk_with_one_bad_row_moves_nothing() -> None:
    rows = np.zeros((8, 3))
    rows[:, 0], rows[5, 1] = 1.0, np.nan
    with envs.make("fake/1") as env:
        env.reset(seed=0)
        with pytest.raises(InputError, match="row 5, dimension 1 is not finite"):
            execute(env, rows)
        assert env.control_steps == 0


# PC-62: initial states.


class Touch:
    """Unpickling this runs a command."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"])
def test_pc_62_every_suite_loads(suite: str) -> None:
    for task in libero.suites()[suite]:
        states = task.init_states()
        assert states.ndim == 2 and len(states) >= 10 and states.dtype == np.float64


@pytest.mark.parametrize("zipped", [True, False])
def test_pc_62_files_that_torch_wrote_for_libero_load(tmp_path: Path, zipped: bool) -> None:
    states = np.random.default_rng(0).normal(size=(5, 7))
    torch.save(states, tmp_path / "task.pruned_init", _use_new_zipfile_serialization=zipped)
    assert np.array_equal(read_init_states(tmp_path / "task.pruned_init"), states)


def test_pc_62_nothing_else_is_unpickled_and_the_file_is_named(tmp_path: Path) -> None:
    torch.save(Touch(tmp_path / "ran"), tmp_path / "evil.pruned_init")
    torch.save({"states": np.zeros((2, 2))}, tmp_path / "dict.pruned_init")
    (tmp_path / "cut.pruned_init").write_bytes((tmp_path / "dict.pruned_init").read_bytes()[:100])
    np.savez(tmp_path / "nan.pruned_init.npz", states=np.full((2, 2), np.nan))
    np.savez(tmp_path / "objects.pruned_init.npz", states=np.array([None, 1], dtype=object))
    for name in ("evil", "dict", "cut", "nan", "objects", "absent"):
        with pytest.raises(CheckpointError, match=f"{name}.pruned_init"):
            read_init_states(tmp_path / f"{name}.pruned_init")
    assert not (tmp_path / "ran").exists()


# PC-67: reset order and index.


def test_pc_67_libero_writes_the_state_after_its_one_reset(panda: LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    resets, reset = [], panda.sim_env.reset
    monkeypatch.setattr(panda.sim_env, "reset", lambda: resets.append(1) or reset())
    monkeypatch.setattr(panda, "settle_steps", 0)
    for index in range(3):
        panda.reset(options={"init_state": index})
        assert len(resets) == index + 1
        assert np.array_equal(panda.sim_env.get_sim_state()[1:], panda.task.init_states()[index][1:])


# PC-68: the step budget.


def test_pc_68_libero_settles_and_ends_as_the_protocol_says(panda: LiberoEnv) -> None:
    report = probe(panda, only=["rate", "steps"])
    assert [(f.field, f.status) for f in report.findings] == [
        ("robot.rate_hz", "holds"),
        ("protocol.settle_steps", "holds"),
        ("protocol.max_steps", "holds"),
    ]
    assert panda.step_budget == step_budget(EvalConfig(suite="libero_object"))


@pytest.mark.parametrize(
    "options", [{"step_budget": -1}, {"step_budget": 0}, {"settle_steps": -1}, {"step_budget": 1.5}]
)
@pytest.mark.parametrize("name", ["fake/0", "libero_object/0"])
def test_limits_out_of_range_are_refused_before_a_simulator_starts(name: str, options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        envs.make(name, **options)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'step_budget'"):
        envs.make("fake/0", step_budgets=3)


def test_a_misspelt_family_suggests_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'fake'"):
        envs.make("fkae/0")


def test_limits_are_those_of_the_worker() -> None:
    from cosmos_robot.envs.remote import RemoteEnv

    with RemoteEnv("fake/0", options={"settle_steps": 2, "step_budget": 3}) as env:
        assert isinstance(env, RobotEnv) and (env.settle_steps, env.step_budget) == (2, 3)
        env.reset(seed=0)
        assert env.running
        execute_result = env.execute(np.zeros((5, 3)))
        assert execute_result.truncated and not env.running
