"""Anybody's recordings become a contract's episodes exactly as described, or are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cosmos_robot.contract import Contract, load_contract, load_robot
from cosmos_robot.data.bridge import DataSpec, RecordedEpisodes
from cosmos_robot.data.contract_lint import check_contract
from cosmos_robot.data.episodes import Episode, EpisodeInfo, Source, chunk_rows, executed_commands
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.data.rollouts import Rollout, write_rollouts
from cosmos_robot.data.store import write_dataset
from cosmos_robot.errors import ContractError, InputError

CHUNK = 4
PUSHT = load_robot("pusht")
NAMES = ("agent_position.0", "agent_position.1")


class Held(Recordings):
    """Two short episodes of a disc that follows its commands, in memory."""

    layout, fps, robot = "memory", 10.0, "disc"

    def __init__(self, scale: float = 1.0, action_scale: float = 1.0, side: int = 96, relative: bool = False):
        rng = np.random.default_rng(0)
        self.path = Path(__file__)
        self.cameras: tuple[str, ...] = ("top",)
        self.state_names: tuple[str, ...] = NAMES
        self.action_names: tuple[str, ...] = NAMES
        self.lengths = (7, 30)
        self._side = side
        self._all = []
        for rows in self.lengths:
            targets = 256 + np.cumsum(rng.uniform(-60, 60, (rows + 1, 2)), axis=0).clip(-200, 200)
            moves = np.diff(targets, axis=0)
            commands = moves if relative else action_scale * targets[1:]
            self._all.append((scale * targets[:-1], scale * commands))

    def recording(self, index: int) -> Recording:
        state, actions = self._all[index]
        return Recording(f"episode {index}", "push", state.astype(np.float32), actions.astype(np.float32))

    def pictures(self, index: int, camera: str, rows: Sequence[int] | None = None) -> NDArray[np.uint8]:
        rows = range(self.lengths[index]) if rows is None else rows
        return np.stack([np.full((self._side, self._side, 3), row, np.uint8) for row in rows])

    def picture_count(self, index: int, camera: str) -> int:
        return self.lengths[index]


def contract(**robot: object) -> Contract:
    known = load_contract("tiny-libero")
    canvas = known.model.canvas.model_copy(update={"placements": ()})
    model = known.model.model_copy(update={"canvas": canvas, "chunk": CHUNK, "execute": 2})
    model = model.model_copy(
        update={f"{s}_normalization": getattr(known.model, f"{s}_normalization").model_copy(
            update={"method": "identity", "statistics": None}) for s in ("state", "action")}
    )  # fmt: skip
    return Contract(robot=load_robot("pusht").model_copy(update=robot), model=model)


def spec(**changes: object) -> DataSpec:
    return DataSpec.model_validate({"path": "held", "stride": 1, **changes})


def test_rows_chunks_and_tails_are_the_recordings() -> None:
    held = Held()
    episode = RecordedEpisodes(spec(stride=3), contract(), held)[0]
    state, actions = held._all[0]
    assert np.allclose(episode.state, state[[0, 3, 6]])
    assert np.allclose(episode.actions[0], actions[:4]) and np.allclose(episode.actions[1], actions[3:7])
    assert episode.valid.tolist() == [[True] * 4, [True] * 4, [True, False, False, False]]
    assert np.allclose(episode.actions[2], actions[6])
    assert [int(picture[0, 0, 0]) for picture in episode.images["top"]] == [0, 3, 6]


def test_a_camera_of_another_name_must_be_mapped() -> None:
    held = Held()
    held.cameras = ("front",)
    with pytest.raises(ContractError, match=r"camera 'top'.*data\.cameras\.top = \"front\""):
        RecordedEpisodes(spec(), contract(), held)
    assert RecordedEpisodes(spec(cameras={"top": "front"}), contract(), held).cameras == {"top": "front"}
    with pytest.raises(ContractError, match=r"data\.cameras\.wrist: the robot has no such camera"):
        RecordedEpisodes(spec(cameras={"top": "front", "wrist": "front"}), contract(), held)


def test_two_cameras_are_not_one_recorded_camera() -> None:
    held = Held()
    held.cameras = ("left", "right")
    both = tuple(PUSHT.cameras[0].model_copy(update={"name": name}) for name in held.cameras)
    with pytest.raises(ContractError, match=r"cameras 'left', 'right': all are the recording's 'right'"):
        RecordedEpisodes(spec(cameras={"left": "right"}), contract(cameras=both), held)
    crossed = {"left": "right", "right": "left"}
    assert RecordedEpisodes(spec(cameras=crossed), contract(cameras=both), held).cameras == crossed


def test_columns_of_other_names_must_be_mapped() -> None:
    held = Held()
    held.state_names = ("x", "y")
    with pytest.raises(ContractError, match=r"state 'agent_position': the recording has no column .*\['x', 'y'\]"):
        RecordedEpisodes(spec(), contract(), held)
    swapped = RecordedEpisodes(spec(state={"agent_position": ["y", "x"]}), contract(), held)
    assert np.allclose(swapped[0].state, held._all[0][0][:, ::-1])
    held.state_names = ()
    with pytest.raises(ContractError, match="no names at all"):
        RecordedEpisodes(spec(), contract(), held)
    assert np.allclose(
        RecordedEpisodes(spec(state={"agent_position": [0, 1]}), contract(), held)[0].state, held._all[0][0]
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["agent_position.0"], "got 1 columns, the field has 2"),
        ([0, 0], r"columns \[0\] are used more than once"),
        ([0, 7], "no column 7"),
        (["agent_position.0", "height"], "no column 'height'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: list, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        RecordedEpisodes(spec(action={"agent_position": columns}), contract(), Held())


def test_another_rate_is_refused() -> None:
    held = Held()
    held.fps = 20.0
    with pytest.raises(ContractError, match="20 rows per second, the robot takes 10"):
        RecordedEpisodes(spec(), contract(), held)
    held.fps = None
    with pytest.raises(ContractError, match="states no rate"):
        RecordedEpisodes(spec(), contract(), held)


def test_numbers_that_cannot_be_trained_on_are_refused() -> None:
    held = Held()
    held._all[1][1][3, 0] = np.nan
    with pytest.raises(InputError, match="episode 1: its action is not finite"):
        RecordedEpisodes(spec(), contract(), held)[1]
    with pytest.raises(InputError, match="episode cameras"):
        RecordedEpisodes(spec(), contract(), Held(side=64))[0]


def test_no_fault_in_recordings_that_are_as_described() -> None:
    assert [f for f in check_contract(RecordedEpisodes(spec(), contract(), Held())) if f.severity == "error"] == []


@pytest.mark.parametrize(
    ("held", "robot", "code"),
    [
        (Held(scale=0.001), {}, "unit"),
        (Held(scale=3.0), {}, "range"),
        (Held(action_scale=0.01), {}, "unit"),
        (Held(side=64), {}, "picture-size"),
        (Held(relative=True), {}, "reference"),
        (Held(), {"action_reference": "per_step"}, "reference"),
    ],
)
def test_each_planted_fault_is_found(held: Held, robot: dict, code: str) -> None:
    found = check_contract(RecordedEpisodes(spec(), contract(**robot), held))
    assert code in [f.code for f in found if f.severity == "error"], found


def test_small_steps_are_no_other_unit() -> None:
    """Spans are usual for places: 4 mm are too few for a robot's commands as targets, not as steps."""
    fields = tuple(f.model_copy(update={"unit": "m", "low": None, "high": None}) for f in PUSHT.action)
    held = Held(scale=0.002, relative=True)
    held._all = [(state, 0.00002 * moves) for state, moves in held._all]
    steps, targets = (
        check_contract(RecordedEpisodes(spec(), contract(state=fields, action=fields, action_reference=how), held))
        for how in ("per_step", "absolute")
    )
    assert "unit" not in [f.code for f in steps]
    assert ("unit", "action agent_position") in [(f.code, f.where) for f in targets]


def test_an_episode_shorter_than_a_chunk_is_told() -> None:
    held = Held()
    held.lengths = (3, 30)
    held._all[0] = tuple(part[:3] for part in held._all[0])
    [found] = check_contract(RecordedEpisodes(spec(), contract(), held))
    assert (found.code, found.severity) == ("short-episode", "warning")


def test_an_episode_of_two_tasks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    two = replace(held.recording(1), tasks=("push", "pull"))
    monkeypatch.setattr(held, "recording", lambda index: two)
    with pytest.raises(InputError, match=r"episode 1: its rows name 2 tasks, 'push', 'pull', expected one; split it"):
        RecordedEpisodes(spec(), contract(), held)[1]


class Marked(Held):
    """``Held`` with a label on each episode."""

    def __init__(self, *labels: bool | None):
        super().__init__()
        self.labels = labels

    def recording(self, index: int) -> Recording:
        return replace(super().recording(index), success=self.labels[index])


def test_failures_are_left_out_with_their_numbers_and_pictures() -> None:
    held = Marked(False, None)
    dropped = RecordedEpisodes(spec(), contract(), held)
    assert (len(dropped), dropped.places, dropped.success) == (1, (1,), (False, None))
    assert len(dropped.recordings) == 1 and dropped.recordings.lengths == (30,)
    assert np.allclose(dropped[0].state, held._all[1][0]) and len(dropped[0].images["top"]) == 30
    assert dropped[0].info.success
    kept = RecordedEpisodes(spec(failures="keep"), contract(), held)
    assert len(kept) == 2 and not kept[0].info.success
    assert kept.fingerprint != dropped.fingerprint
    with pytest.raises(ContractError, match=r'all 2 episodes are marked unsuccessful; data\.failures = "keep"'):
        RecordedEpisodes(spec(), contract(), Marked(False, False))


def test_a_rollouts_success_is_read_and_its_end_is_no_command(tmp_path: Path) -> None:
    rollouts = [_rollout(success) for success in (True, False)]
    write_rollouts(rollouts, tmp_path / "rollouts", load_robot("pusht"), execute=1)
    episodes = RecordedEpisodes(spec(path=str(tmp_path / "rollouts")), contract())
    assert episodes.success == (True, False) and episodes.places == (0,)
    state, commands = episodes.numbers(0)
    assert len(state) == len(commands) == 5 and np.allclose(commands, rollouts[0].actions[:, 0])
    episode = episodes[0]
    assert len(episode) == 5 and episode.valid.sum(1).tolist() == [4, 4, 3, 2, 1]
    assert len(RecordedEpisodes(spec(path=str(tmp_path / "rollouts"), failures="keep"), contract())) == 2


def test_what_was_sent_and_who_labelled_come_along(tmp_path: Path) -> None:
    demos = [_demo(seed, source) for seed, source in enumerate(("expert", "dagger"))]
    write_dataset(demos, tmp_path / "demos", PUSHT, stride=1)
    crossed = spec(path=str(tmp_path / "demos"), stride=3, action={"agent_position": NAMES[::-1]})
    expert, labels = RecordedEpisodes(crossed, contract())
    sent = demos[0].extras["executed"][:, ::-1]
    expected, _ = chunk_rows(sent, np.arange(0, 7, 3), CHUNK)
    assert np.allclose(executed_commands(expert, 3), expected) and not np.allclose(expert.actions, expected)
    assert (expert.info.source, labels.info.source) == ("expert", "dagger")
    with pytest.raises(InputError, match="its commands are labels that were never sent"):
        executed_commands(labels, 3)
    plain = RecordedEpisodes(spec(path=str(tmp_path / "demos"), action_column="privileged.executed",
                                  action={"agent_position": [0, 1]}), contract())[0]  # fmt: skip
    assert not plain.extras and np.allclose(plain.actions[:, 0], demos[0].extras["executed"])


def test_what_was_sent_must_be_commands(tmp_path: Path) -> None:
    demo = _demo(0, "expert")
    write_dataset([replace(demo, extras={"executed": demo.state[:, :1]})], tmp_path / "demos", PUSHT, stride=1)
    with pytest.raises(InputError, match=r"episode 0: privileged\.executed is .* expected 2 numbers"):
        RecordedEpisodes(spec(path=str(tmp_path / "demos")), contract())[0]


def _demo(seed: int, source: Source) -> Episode:
    wanted = np.random.default_rng(seed).uniform(100, 400, (7, 2)).astype(np.float32)
    actions, valid = chunk_rows(wanted, np.arange(7), 2)
    pictures = {"top": np.zeros((7, 96, 96, 3), np.uint8)}
    info = EpisodeInfo("pusht", 0, seed, source, True)
    return Episode("push", pictures, wanted - 3, actions, valid, info, {"executed": wanted + 9})


def _rollout(success: bool) -> Rollout:
    rng = np.random.default_rng(3)
    numbers = rng.uniform(100, 400, (6, 2)).astype(np.float32)
    pictures = {"top": np.zeros((6, 96, 96, 3), np.uint8)}
    valid = np.ones((5, 1), bool)
    return Rollout("push", pictures, numbers, numbers[:5, None] + 3, valid, success, float(success), "pusht", 0, 3, "p")
