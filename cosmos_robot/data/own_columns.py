"""What our own writers leave beside the usual columns of a LeRobot folder: labels, sources, and what was really sent.

Read from any recordings; those of others hold none of it. ``place`` is an episode's index in the files.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.episodes import EXECUTED, EpisodeInfo
from cosmos_robot.data.recordings import Recordings
from cosmos_robot.errors import CheckpointError, InputError

VALID_COLUMN: Final = "action_chunk_valid"
"""(T,) in each row of a dataset by ``store.py``: which commands of its chunk are recorded ones."""


def own_infos(recordings: Recordings) -> tuple[EpisodeInfo, ...]:
    """What our writer noted of each episode; () for others' datasets and those that were changed since."""
    from cosmos_robot.data.store import SIDECAR

    path = recordings.path / SIDECAR
    if not path.is_file():
        return ()
    infos = tuple(EpisodeInfo(**entry["info"]) for entry in json.loads(path.read_text())["episodes"])
    return infos if len(infos) == len(recordings) else ()


def has_executed(recordings: Recordings) -> bool:
    """Whether what was sent is recorded besides the commands that were wanted."""
    return _executed_column() in getattr(recordings, "features", {})


def executed_rows(recordings: Recordings, place: int) -> NDArray[np.float32] | None:
    """(N, Da) what was sent in each row, in the order of the recording's commands; None where it is not recorded.

    Raises InputError if it is no command's width.
    """
    from cosmos_robot.data.lerobot import LeRobotRecordings

    if not isinstance(recordings, LeRobotRecordings) or not has_executed(recordings):
        return None
    name = _executed_column()
    rows, width = recordings.column(place, name), recordings[place].actions.shape[1]
    chunked = len(recordings.features[name]["shape"]) == 2
    if rows.shape[1] != width and not (chunked and rows.shape[1] % width == 0):
        raise InputError(
            f"{recordings.path}, {recordings[place].where}: {name} is {recordings.features[name]['shape']} a row, "
            f"expected {width} numbers, as commands have; record it so, or leave it out"
        )
    return rows[:, :width]


def commanded(recordings: Recordings, place: int) -> NDArray[np.bool_] | None:
    """(N,) whether each row of an episode holds a command of its own, None where the files do not say."""
    from cosmos_robot.data.lerobot import LeRobotRecordings

    if not isinstance(recordings, LeRobotRecordings) or VALID_COLUMN not in recordings.features:
        return None
    return recordings.column(place, VALID_COLUMN)[:, 0] != 0


def successes(recordings: Recordings) -> tuple[bool | None, ...]:
    """Of each episode, None where nobody said. A LeRobot dataset is not read for it, only its tables."""
    from cosmos_robot.data.lerobot import LeRobotRecordings

    if not isinstance(recordings, LeRobotRecordings):
        return tuple(_readable_success(recordings, place) for place in range(len(recordings)))
    labels = [recordings.tables.success(place) for place in range(len(recordings))]
    ours = own_infos(recordings)
    if not ours:
        return tuple(labels)
    return tuple(own.success if label is None else label for label, own in zip(labels, ours, strict=True))


def _readable_success(recordings: Recordings, place: int) -> bool | None:
    try:
        return recordings[place].success
    except CheckpointError:  # lint names this episode and all others that are damaged
        return None


def _executed_column() -> str:
    from cosmos_robot.data.store import PRIVILEGED

    return PRIVILEGED + EXECUTED
