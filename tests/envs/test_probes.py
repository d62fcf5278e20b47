"""Every environment's spec is proved by physics; and each probe finds the lie that it is there for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot import envs
from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.cli import main
from cosmos_robot.contract import Contract, FieldSpec, RobotSpec
from cosmos_robot.envs.droid import DroidEnv
from cosmos_robot.envs.droid_tasks import find_task
from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv, FakeTruth
from cosmos_robot.envs.libero import LIBERO_PANDA, LiberoEnv
from cosmos_robot.envs.probes import PROBES, probe
from cosmos_robot.envs.probes.command import published
from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import UnknownNameError

SHIPPED = find_checkpoint("tiny-libero").folder / "contract.json"


def changed(robot: RobotSpec, **fields: object) -> RobotSpec:
    """``robot`` with some of its fields replaced, checked anew."""
    return RobotSpec.model_validate(robot.model_dump() | fields)


def with_field(robot: RobotSpec, what: str, field: str, /, **changes: object) -> RobotSpec:
    """``robot`` with one state or action field changed."""
    fields = [f.model_dump() | (changes if f.name == field else {}) for f in getattr(robot, what)]
    return changed(robot, **{what: fields})


def with_camera(robot: RobotSpec, name: str, **changes: object) -> RobotSpec:
    cameras = [c.model_dump() | (changes if c.name == name else {}) for c in robot.cameras]
    return changed(robot, cameras=cameras)


def with_gripper(robot: RobotSpec, **changes: object) -> RobotSpec:
    assert robot.gripper is not None
    return changed(robot, gripper=robot.gripper.model_dump() | changes)


# Everything that is registered holds.


@pytest.mark.parametrize("name", envs.list_envs("fake"))
def test_fake(name: str) -> None:
    with envs.make(name) as env:
        report = probe(env)
    assert report.holds, [f for f in report.findings if f.status == "violated"]
    reasons = {f.probe: f.why for f in report.findings if f.status == "not applicable"}
    assert set(reasons) <= {"joints", "rotation_axes", "rate", "steps"} and all(reasons.values())


def test_libero() -> None:
    """In a process of its own, as the command is run: robosuite's pictures do not survive many worlds in one."""
    command = [sys.executable, "-m", "cosmos_robot.cli", "probe", "libero_object/0", "--contract", "tiny-libero"]
    said = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, timeout=500)
    report = json.loads(said.stdout)
    others = [f for f in report["findings"] if f["probe"] != "joints"]  # it is told positions
    assert said.returncode == 0 and report["holds"]
    assert {f["status"] for f in others} == {"holds"}, [f for f in others if f["status"] != "holds"]
    assert {f["probe"] for f in others} >= set(PROBES) - {"joints"}


NOT_FOR_JOINTS, NOT_FOR_PUSHT = {"position_axes", "rotation_axes"}, {"gripper", "joints", "rotation_axes"}
OTHERS = {
    "droid/push_red_block_to_mark": NOT_FOR_JOINTS,
    "aloha/transfer_cube": NOT_FOR_JOINTS | {"camera_views"},
    "pusht/0": NOT_FOR_PUSHT | {"camera_views"},
}


@pytest.mark.parametrize(("name", "without"), OTHERS.items())
def test_other_simulators(name: str, without: set[str]) -> None:
    with envs.make(name, step_budget=120) as env:
        report = probe(env)
    assert report.holds, [f for f in report.findings if f.status == "violated"]
    assert {f.probe for f in report.findings if f.status == "holds"} == set(PROBES) - without


def test_every_family_that_is_installed_here_is_probed() -> None:
    assert set(envs.FAMILIES) - {"robocasa"} == {"fake", "libero"} | {name.split("/")[0] for name in OTHERS}


def test_what_an_environment_in_a_process_cannot_answer_is_said() -> None:
    with RemoteEnv("fake/0") as env:
        report = probe(env)
    assert report.holds
    assert "no simulator that could be asked" in next(f.why for f in report.findings if f.probe == "gripper")


# Robots that are not what they say.


class WrongName(FakeEnv):
    def _state(self):
        return {"place": self._hand.copy(), "grip": np.array([self._grip])}


class TwoEyesAlike(FakeEnv):
    def window(self, camera):
        return super().window("table")


class UpsideDown(FakeEnv):
    def _draw(self, camera):
        return super()._draw(camera)[::-1].copy()


class Mirrored(FakeEnv):
    def _draw(self, camera):
        return super()._draw(camera)[:, ::-1].copy()


class LooseTable(FakeEnv):
    def window(self, camera):
        return (self._hand, 0.5 if camera == "table" else 0.2)


class Millimetres(FakeEnv):
    def _state(self):
        return {"position": 1000 * self._hand, "grip": np.array([self._grip])}


class Late(FakeEnv):
    def _step(self, action):
        self._old = self._hand.copy()
        return super()._step(action)

    def _state(self):
        return {"position": getattr(self, "_old", self._hand) + [0.01, 0], "grip": np.array([self._grip])}


class Drifting(FakeEnv):
    def _step(self, action):
        return super()._step(action + [0.1, 0, 0])


class InvertedGripper(FakeEnv):
    def _step(self, action):
        return super()._step(action * [1, 1, -1])


class CrossedAxes(FakeEnv):
    def _step(self, action):
        return super()._step(action[[1, 0, 2]])


class Backwards(FakeEnv):
    def _step(self, action):
        return super()._step(action * [1, -1, 1])


class Slow(FakeEnv):
    def _step(self, action):
        return super()._step(action * [0.05, 0.05, 1])


class Continuous(FakeEnv):
    """A hand that opens as far as it is told."""

    def ground_truth(self):
        class Truth(FakeTruth):
            def opening(self):
                return (1 - self._env._level) / 2

        return Truth(self)

    def _step(self, action):
        self._level = action[2]
        return super()._step(action)


class Clock(FakeEnv):
    """A simulator whose clock runs at 20 Hz; ``slack`` more seconds a step."""

    slack, unsettled = 0.0, False

    def ground_truth(self):
        class Truth(FakeTruth):
            def seconds(self):
                return self._env.ticks

        return Truth(self)

    def _reset(self, options):
        super()._reset(options)
        self.ticks = 0.0 if self.unsettled else self.settle_steps / 20

    def _step(self, action):
        self.ticks += 1 / 20 + self.slack
        return super()._step(action)


class SlowClock(Clock):
    slack = 0.01


class Unsettled(Clock):
    unsettled = True


class AlwaysFirst(FakeEnv):
    def init_places(self, index):
        return super().init_places(0)

    def ground_truth(self):
        class Truth(FakeTruth):
            def recorded_start(self, index):
                return np.concatenate(FakeEnv.init_places(self._env, index))

        return Truth(self)


class ShortEpisodes(FakeEnv):
    def _step(self, action):
        reward, success, out_of_time = super()._step(action)
        return reward, success, out_of_time or self.control_steps + 1 >= self.step_budget - 10


LIARS = [
    (WrongName, {}, "state_layout", "robot.state"),
    (TwoEyesAlike, {}, "mounts", "robot.cameras.hand.view"),
    (UpsideDown, {}, "orientation", "robot.cameras.table.orientation"),
    (Mirrored, {}, "orientation", "robot.cameras.hand.orientation"),
    (LooseTable, {}, "mounts", "robot.cameras.table.view"),
    (Millimetres, {}, "reported_pose", "robot.state.position.frame"),
    (Late, {}, "reported_pose", "robot.state.position.frame"),
    (Drifting, {}, "hold_still", "robot.action_reference"),
    (InvertedGripper, {}, "gripper", "robot.gripper.open_value"),
    (InvertedGripper, {}, "gripper", "robot.gripper.closed_value"),
    (Continuous, {}, "gripper", "robot.gripper.kind"),
    (CrossedAxes, {}, "position_axes", "robot.action.move.frame"),
    (Backwards, {}, "position_axes", "robot.action.move.frame"),
    (Slow, {}, "position_axes", "robot.action.move.unit"),
    (SlowClock, {}, "rate", "robot.rate_hz"),
    (Unsettled, {"settle_steps": 3}, "steps", "protocol.settle_steps"),
    (AlwaysFirst, {}, "init_states", "protocol.init_offset"),
    (ShortEpisodes, {}, "steps", "protocol.max_steps"),
]


@pytest.mark.parametrize(("kind", "options", "name", "field"), LIARS)
def test_a_robot_that_is_not_what_it_says(kind: type[FakeEnv], options: dict, name: str, field: str) -> None:
    assert field in probe(kind(1, **options), only=[name]).violated


def test_a_truthful_clock_holds() -> None:
    report = probe(Clock(1, settle_steps=3), only=["rate", "steps"])
    assert [f.status for f in report.findings] == ["holds"] * 3


# Contracts that are not the robot's.


def swapped(robot: RobotSpec) -> RobotSpec:
    return changed(robot, cameras=robot.cameras[::-1])


FALSE_OF_FAKE = [
    (lambda r: with_field(r, "state", "position", name="place"), "state_layout", "robot.state"),
    (lambda r: with_field(r, "action", "move", width=3), "action_layout", "robot.action"),
    (lambda r: changed(r, action_high=2.0), "action_layout", "robot.action_high"),
    (swapped, "camera_names", "robot.cameras"),
    (lambda r: with_camera(r, "hand", height=48), "camera_names", "robot.cameras.hand.size"),
    (lambda r: with_camera(r, "hand", orientation="mirror"), "orientation", "robot.cameras.hand.orientation"),
    (lambda r: with_camera(r, "table", view="from the wrist"), "mounts", "robot.cameras.table.view"),
    (lambda r: with_field(r, "state", "position", unit="mm"), "reported_pose", "robot.state.position.frame"),
    (lambda r: with_field(r, "state", "position", frame="tool"), "reported_pose", "robot.state.position.frame"),
    (lambda r: with_field(r, "action", "move", unit="1 m per step"), "position_axes", "robot.action.move.unit"),
]


@pytest.mark.parametrize(("lie", "name", "field"), FALSE_OF_FAKE)
def test_a_contract_of_another_robot(lie: Callable[[RobotSpec], RobotSpec], name: str, field: str) -> None:
    with envs.make("fake/1") as env:
        assert probe(env, lie(FAKE_ROBOT), [name]).violated == (field,)


FALSE_OF_PANDA = [
    (lambda r: with_gripper(r, open_value=1.0, closed_value=-1.0), "gripper",
     ("robot.gripper.open_value", "robot.gripper.closed_value", "robot.gripper.kind")),
    (lambda r: with_gripper(r, kind="continuous"), "gripper", ("robot.gripper.kind",)),
    (swapped, "camera_names", ("robot.cameras",)),
    (lambda r: with_camera(r, "wrist", orientation="flip_vertical"), "orientation",
     ("robot.cameras.wrist.orientation",)),
    (lambda r: with_camera(r, "agentview", orientation="rot180"), "orientation",
     ("robot.cameras.agentview.orientation",)),
    (lambda r: changed(r, rate_hz=15.0), "rate", ("robot.rate_hz",)),
    (lambda r: with_field(r, "state", "eef_position", frame="world"), "reported_pose",
     ("robot.state.eef_position.frame",)),
    (lambda r: with_field(r, "action", "position", frame="tool"), "position_axes", ("robot.action.position.frame",)),
    (lambda r: with_field(r, "action", "rotation", frame="tool"), "rotation_axes", ("robot.action.rotation.frame",)),
    (lambda r: changed(r, action_reference="absolute"), "hold_still", ("robot.action_reference",)),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "name", "fields"), FALSE_OF_PANDA)
def test_a_false_contract_of_libero(panda: LiberoEnv, lie, name: str, fields: tuple[str, ...]) -> None:
    assert probe(panda, lie(LIBERO_PANDA), [name]).violated == fields


class CrossedJoints(DroidEnv):
    def _step(self, action):
        return super()._step(action[[0, 1, 2, 3, 4, 6, 5, 7]])


class BackwardsJoint(DroidEnv):
    def _step(self, action):
        return super()._step(action * [1, 1, 1, 1, 1, 1, -1, 1])


class Deltas(DroidEnv):
    """Takes targets for changes."""

    def _step(self, action):
        return super()._step(action + np.append(self._state()["joint_position"], 0))


class DroidDegrees(DroidEnv):
    def _state(self):
        state = super()._state()
        return state | {"joint_position": np.degrees(state["joint_position"])}


class DroidOpenIsOne(DroidEnv):
    def _state(self):
        state = super()._state()
        return state | {"gripper_position": 1 - state["gripper_position"]}


FALSE_OF_DROID = [
    (CrossedJoints, "joints", "robot.action.joint_position.unit"),
    (BackwardsJoint, "joints", "robot.action.joint_position.unit"),
    (Deltas, "hold_still", "robot.action_reference"),
    (DroidDegrees, "reported_pose", "robot.state.joint_position.unit"),
    (DroidOpenIsOne, "reported_pose", "robot.state_gripper.open_value"),
]


@pytest.mark.parametrize(("kind", "name", "field"), FALSE_OF_DROID)
def test_pc_24_a_joint_robot_that_is_not_what_it_says(kind: type[DroidEnv], name: str, field: str) -> None:
    with kind(find_task("pick_red_block")) as env:
        assert field in probe(env, only=[name]).violated


def test_pc_24_a_contract_that_takes_joint_targets_for_changes() -> None:
    with envs.make("droid/pick_red_block") as env:
        assert probe(env, only=["hold_still"]).holds
        lie = changed(env.robot, action_reference="per_step")
        assert probe(env, lie, ["hold_still"]).violated == ("robot.action_reference",)


def test_a_rotation_format_is_told_from_another_of_its_width(panda: LiberoEnv, monkeypatch) -> None:
    """Quaternions, scalar first and last: the same four numbers in another order."""
    spec = changed(LIBERO_PANDA, state=[FieldSpec(name="q", width=4, unit="1", kind="rotation", rotation="quat_wxyz",
                                                  frame="world").model_dump()])  # fmt: skip
    wxyz = panda.sim.data.get_body_xquat(panda.arm.robot_model.eef_name)
    monkeypatch.setattr(panda, "_state", lambda: {"q": np.roll(wxyz, -1)})
    panda.reset(seed=0)
    monkeypatch.setattr(panda, "_state", lambda: {
        "q": np.roll(panda.sim.data.get_body_xquat(panda.arm.robot_model.eef_name), -1)})  # fmt: skip
    finding = probe(panda, spec, ["reported_pose"]).findings[0]
    assert finding.field == "robot.state.q.rotation" and finding.status == "violated"
    assert "which is quat_xyzw" in finding.measured


def test_a_mark_is_put_before_what_stands_there(panda: LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the mark: the table must not hide it."""
    panda.reset(seed=0)
    truth = panda.ground_truth()
    near = truth.seen_at("wrist", 0.66, 0.3)
    monkeypatch.setattr("cosmos_robot.envs.mujoco_truth.MARK_SHARE", 0.001)
    far = truth.seen_at("wrist", 0.66, 0.3)
    assert far[2] <= near[2]
    # The table's top is what the ray meets.
    assert far[2] > panda.sim.data.get_body_xpos(panda.arm.robot_model.root_body)[2] - 0.1


def test_every_probe_has_been_seen_to_fail() -> None:
    seen = {case[2] for case in LIARS} | {case[1] for case in (*FALSE_OF_FAKE, *FALSE_OF_PANDA, *FALSE_OF_DROID)}
    assert seen | {"camera_views"} == set(PROBES)


def test_cameras_that_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with envs.make("fake/1") as env:
        monkeypatch.setattr(env, "_draw", lambda camera: np.full((48, 64, 3), 90, np.uint8))
        assert probe(env, only=["camera_views"]).violated == ("robot.cameras.hand.view",)


# The command.


def test_command_prints_json_and_names_the_false_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(SHIPPED.read_text())
    content["robot"]["gripper"] |= {"open_value": 1.0, "closed_value": -1.0}
    (tmp_path / "false.json").write_text(json.dumps(content))
    arguments = ["probe", "libero_object/0", "--only", "gripper", "--json", "-"]
    assert main([*arguments, "--contract", str(tmp_path / "false.json")]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["holds"] is False and "robot.gripper.open_value" in printed["violated"]


@pytest.mark.parametrize("what", ["placements", "orientation"])
def test_a_canvas_that_is_not_the_published_one_is_named(what: str) -> None:
    contract = json.loads(SHIPPED.read_text())
    canvas = contract["model"]["canvas"]
    if what == "orientation":
        canvas["orientation"] = "rot180"
    else:
        for placement in canvas["placements"]:
            placement["camera"] = {"agentview": "wrist", "wrist": "agentview"}[placement["camera"]]
    findings = published(Contract.model_validate(contract))
    assert [f.field for f in findings if f.status == "violated"] == [f"model.canvas.{what}"]
    assert all(f.status == "holds" for f in published(Contract.load(SHIPPED.parent)))


def test_a_model_of_no_published_name_is_not_judged() -> None:
    contract = json.loads(SHIPPED.read_text())
    contract["model"]["name"] = "mine"
    (finding,) = published(Contract.model_validate(contract))
    assert finding.status == "not applicable" and "mine" in finding.why


def test_command_shows_a_table_and_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "fake/0", "--only", "gripper", "rate", "--json", str(tmp_path / "deep" / "out.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "every claim holds" in printed and "simulated time" in printed
    assert json.loads((tmp_path / "deep" / "out.json").read_text())["env"] == "fake/0"


def test_unknown_probe_suggests_the_nearest() -> None:
    with envs.make("fake/0") as env, pytest.raises(UnknownNameError, match="did you mean 'gripper'"):
        probe(env, only=["griper"])
