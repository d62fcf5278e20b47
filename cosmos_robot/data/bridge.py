"""Anybody's recordings as episodes of a contract's robot: the bridge from ``Recordings`` to training.

Nothing is guessed. A camera or field of the contract is taken from the recording's camera or columns of the same name,
or from those that a ``DataSpec`` names; anything else is refused. Rows of a recording are control steps, so its rate is
the robot's. Episodes marked unsuccessful are left out unless asked for, and a last row that holds no command, as a
rollout's does, is no control step.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cosmos_robot.contract import Contract, FieldSpec
from cosmos_robot.contract.base import Spec
from cosmos_robot.data.episodes import EXECUTED, Episode, EpisodeInfo, Source, chunk_rows, require_robot
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.own_columns import (
    VALID_COLUMN,
    commanded,
    executed_rows,
    has_executed,
    own_infos,
    successes,
)
from cosmos_robot.data.recordings import SPLIT, Chosen, Recording, Recordings
from cosmos_robot.errors import ContractError, InputError

FPS_TOLERANCE: Final = 0.01
SMALL_FILE: Final = 4_000_000
Column = int | str


class DataSpec(Spec):
    """Where recordings lie, and what in them is what of a contract's robot.

    path: a LeRobot folder, an HDF5 file or a folder of those. state_column, action_column: what to read for state and
    action where it is not the usual one. cameras: the contract's camera to the recording's, where names differ.
    state, action: a field of the contract to the recording's columns, by name or number, where names differ or the
    recording names none. stride: rows from one decision to the next. instruction: the task, where episodes name none.
    failures: whether episodes marked unsuccessful are imitated as well.
    """

    path: Path
    state_column: str | None = None
    action_column: str | None = None
    cameras: dict[str, str] = Field(default_factory=dict)
    state: dict[str, tuple[Column, ...]] = Field(default_factory=dict)
    action: dict[str, tuple[Column, ...]] = Field(default_factory=dict)
    stride: int = Field(ge=1)
    instruction: str | None = None
    failures: Literal["drop", "keep"] = "drop"

    def open(self) -> Recordings:
        """The recordings. Raises CheckpointError as ``open_recordings`` does."""
        return open_recordings(self.path, state=self.state_column, action=self.action_column)


class RecordedEpisodes:
    """Recordings as an ``EpisodeSource``. Episodes are read when asked for; a row is a decision moment, every
    ``data.stride`` control steps, with the next ``chunk`` commands, those past the end not valid.

    columns: for ``state`` and ``action``, the recording's columns in the contract's order. cameras: the contract's
    cameras to the recording's. stride: that of ``data``. success: of each episode in the files, None where they do not
    say. sources: of each episode in the files, ``expert`` where they do not say. places: those that are kept, in their
    order; ``recordings`` and all indices here count only these. Where our own collector kept what was really sent, it
    is the extra ``executed``, cut as the commands are.
    Raises ContractError naming every camera, field and number that does not fit.
    """

    def __init__(self, data: DataSpec, contract: Contract, recordings: Recordings | None = None):
        self.data, self.contract = data, contract
        found = data.open() if recordings is None else recordings
        self.success = successes(found)
        self.sources: tuple[Source, ...] = tuple(info.source for info in own_infos(found)) or ("expert",) * len(found)
        self._found, self._sent = found, has_executed(found) and data.action_column in (None, "action")
        kept = data.failures == "keep"
        self.places = tuple(i for i, success in enumerate(self.success) if kept or success is not False)
        self.recordings = found if len(self.places) == len(found) else Chosen(found, self.places)
        faults: list[str] = []
        self.cameras = _cameras(data, contract, self.recordings, faults)
        self.columns = {
            "state": _columns("state", contract.robot.state, data.state, self.recordings.state_names, faults),
            "action": _columns("action", contract.robot.action, data.action, self.recordings.action_names, faults),
        }
        faults += _rate_fault(self.recordings.fps, contract.robot.rate_hz)
        if not len(found):
            faults.append("there are no episodes")
        elif not self.places:
            faults.append(f'all {len(found)} episodes are marked unsuccessful; data.failures = "keep" imitates them')
        if faults:
            raise ContractError(
                f"{data.path} is no recording of {contract.robot.name!r} as described:"
                + "".join(f"\n  - {line}" for line in faults)
            )
        self.fingerprint = _fingerprint(data, contract, self.recordings, self._sent or "dagger" in self.sources)
        self.stride = data.stride

    def __len__(self) -> int:
        return len(self.recordings)

    def __getitem__(self, index: int) -> Episode:
        return self.episode(index)

    def episode(self, index: int, stride: int | None = None) -> Episode:
        """Episode ``index``, with a decision at every ``stride`` rows (the description's if None).

        Raises InputError naming the episode and its fault, CheckpointError if a file is damaged.
        """
        index = range(len(self))[operator.index(index)]
        recording = self.recordings[index]
        state, actions = self.numbers(index)
        starts = np.arange(0, len(actions), self.data.stride if stride is None else stride)
        rows, valid = chunk_rows(actions, starts, self.contract.model.chunk)
        pictures = {
            name: self.recordings.pictures(index, theirs, starts.tolist()) for name, theirs in self.cameras.items()
        }
        text = self._text(recording)
        extras = {}
        if (sent := self._executed(index, len(actions))) is not None:
            extras[EXECUTED], _ = chunk_rows(sent, starts, self.contract.model.chunk)
        episode = Episode(text, pictures, state[starts], rows, valid, self._info(index), extras)
        try:
            require_robot(episode, self.contract.robot)
        except InputError as error:
            raise InputError(f"{self.data.path}, {recording.where}: {error}") from error
        return episode

    def numbers(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """State (N, Ds) and commands (N, Da) of episode ``index`` at every control step, in the contract's order.

        Raises InputError if they are of another length or width than the description says, or not finite, or if a row
        before the last ones has no command.
        """
        recording, found = self.recordings[index], []
        for what, values in (("state", recording.state), ("action", recording.actions)):
            columns = self.columns[what]
            if values.ndim != 2 or len(values) != len(recording) or max(columns, default=-1) >= values.shape[1]:
                raise InputError(
                    f"{self.data.path}, {recording.where}: {what} is {values.shape}, expected ({len(recording)}, D) "
                    f"with column {max(columns)}; run cosmos-robot data lint"
                )
            found.append(np.asarray(values[:, columns], np.float32))
            if not np.isfinite(found[-1]).all():
                raise InputError(
                    f"{self.data.path}, {recording.where}: its {what} is not finite; run cosmos-robot data lint"
                )
        steps = self._control_steps(index, len(recording))
        return found[0][:steps], found[1][:steps]

    def _text(self, recording: Recording) -> str:
        if len(recording.tasks) > 1:
            raise InputError(
                f"{self.data.path}, {recording.where}: its rows name {len(recording.tasks)} tasks, "
                f"{', '.join(map(repr, recording.tasks))}, expected one; {SPLIT}"
            )
        text = recording.instruction.strip() or self.data.instruction
        if not text:
            raise InputError(f"{recording.where}: no task text; give one as data.instruction in the description")
        return text

    def _info(self, index: int) -> EpisodeInfo:
        place = self.places[index]
        # A rollout has lost the row that ends it, so what is left has the form of a demonstration.
        source: Source = "dagger" if self.sources[place] == "dagger" else "expert"
        return EpisodeInfo(Path(self.data.path).name, 0, index, source, self.success[place] is not False)

    def _executed(self, index: int, steps: int) -> NDArray[np.float32] | None:
        """(steps, Da) what was sent, in the contract's order; None where it is not recorded."""
        sent = executed_rows(self._found, self.places[index]) if self._sent else None
        return None if sent is None else sent[:steps, self.columns["action"]]

    def _control_steps(self, index: int, rows: int) -> int:
        """Rows up to the last one with a command."""
        recorded = commanded(self._found, self.places[index])
        if recorded is None:
            return rows
        steps = int(recorded.sum())
        if not steps or not recorded[:steps].all():
            raise InputError(
                f"{self.data.path}, {self.recordings[index].where}: row {int(np.argmin(recorded))} has no command "
                f"({VALID_COLUMN}), though later ones have or there is none at all; drop the episode"
            )
        return steps


def _cameras(data: DataSpec, contract: Contract, recordings: Recordings, faults: list[str]) -> dict[str, str]:
    ours = [camera.name for camera in contract.robot.cameras]
    found = {name: data.cameras.get(name, name) for name in ours}
    for name, theirs in found.items():
        if theirs not in recordings.cameras:
            faults.append(
                f"camera {name!r}: the recording has no camera {theirs!r}, only {list(recordings.cameras)}; say which "
                f'one it is, such as data.cameras.{name} = "{next(iter(recordings.cameras), "NAME")}"'
            )
    for theirs in dict.fromkeys(found.values()):
        sharing = [name for name in ours if found[name] == theirs]
        if len(sharing) > 1:
            faults.append(
                f"cameras {', '.join(map(repr, sharing))}: all are the recording's {theirs!r}; say which others are, "
                f'such as data.cameras.{sharing[-1]} = "NAME", or leave them out of the robot'
            )
    faults += [f"data.cameras.{n}: the robot has no such camera, only {ours}" for n in data.cameras if n not in ours]
    return found


def _columns(
    what: str,
    fields: Sequence[FieldSpec],
    given: dict[str, tuple[Column, ...]],
    names: Sequence[str],
    faults: list[str],
) -> list[int]:
    """The recording's columns of all ``fields``, in their order; what is wrong goes to ``faults``."""
    known = [field.name for field in fields]
    faults += [f"data.{what}.{n}: the robot's {what} has no such field, only {known}" for n in given if n not in known]
    found: list[int] = []
    for field in fields:
        wanted = given.get(field.name, column_names(field))
        if len(wanted) != field.width:
            faults.append(f"data.{what}.{field.name}: got {len(wanted)} columns, the field has {field.width}")
            continue
        missing = [c for c in wanted if (c not in names if isinstance(c, str) else names and not 0 <= c < len(names))]
        if missing:
            there = list(names) or "no names at all, so columns are given by number"
            faults.append(
                f"{what} {field.name!r}: the recording has no column {', '.join(map(repr, missing))}; it has {there}; "
                f"say which they are, such as data.{what}.{field.name} = {list(range(field.width))}"
            )
            continue
        found += [names.index(c) if isinstance(c, str) else c for c in wanted]
    doubled = sorted({c for c in found if found.count(c) > 1})
    if doubled:
        faults.append(f"{what}: columns {doubled} are used more than once")
    return found


def column_names(field: FieldSpec) -> tuple[str, ...]:
    """What the columns of a field are called in a recording that needs no mapping (as ``write_dataset`` calls them)."""
    return (field.name,) if field.width == 1 else tuple(f"{field.name}.{i}" for i in range(field.width))


def _rate_fault(fps: float | None, rate: float) -> list[str]:
    if fps is None:
        return ["the recording states no rate; write it with one (cosmos-robot data convert --fps)"]
    if abs(fps - rate) > FPS_TOLERANCE * rate:
        return [
            f"the recording has {fps:g} rows per second, the robot takes {rate:g} commands per second "
            "(robot.rate_hz); correct the one that is wrong, or resample the recording"
        ]
    return []


def _fingerprint(data: DataSpec, contract: Contract, recordings: Recordings, sent: bool) -> str:
    """Changes with every file of the dataset (a small one's content, a large one's size and time), the description and
    the robot. sent: whether it says what was sent: what was made before this was read is of other commands."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(recordings.path)
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    for path in files:
        about = path.stat()
        digest.update(f"{path.relative_to(root)} {about.st_size}\n".encode())
        digest.update(path.read_bytes() if about.st_size <= SMALL_FILE else str(about.st_mtime_ns).encode())
    digest.update(data.model_dump_json(exclude={"path"}).encode() + EXECUTED.encode() * sent)
    digest.update(contract.robot.model_dump_json().encode() + str(contract.model.chunk).encode())
    return digest.hexdigest()
