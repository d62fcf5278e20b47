"""Anybody's recordings become a contract's episodes exactly as described, or are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cosmos_robot.contract import Contract, load_contract, load_robot
from cosmos_robot.data.bridge import DataSpec, RecordedEpisodes
from cosmos_robot.data.contract_lint import check_contract
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.errors import ContractError, InputError

CHUNK = 4
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


def test_an_episode_shorter_than_a_chunk_is_told() -> None:
    held = Held()
    held.lengths = (3, 30)
    held._all[0] = tuple(part[:3] for part in held._all[0])
    [found] = check_contract(RecordedEpisodes(spec(), contract(), held))
    assert (found.code, found.severity) == ("short-episode", "warning")
