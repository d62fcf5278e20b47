"""One recorded episode, as a checked value.

An episode is a list of decision moments, every ``stride`` control steps. Each row holds what the robot saw then and
the clean commands that should follow (in a rollout: those that did), so a training sample never reaches beyond its own
episode. A rollout ends with a row without commands: what the robot saw at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.types import Image

Source = Literal["expert", "dagger", "rollout"]
SOURCES: tuple[Source, ...] = ("expert", "dagger", "rollout")
EXECUTED = "executed"
"""The extra that holds what was sent, where a demonstrator is disturbed and its clean commands are the actions."""


@dataclass(frozen=True)
class EpisodeInfo:
    """Where an episode came from.

    suite, task: the task in its simulator's own naming. seed: what the scene was drawn from.
    source: ``expert`` when the demonstrator drove, ``dagger`` when it only labelled the states of a policy,
    ``rollout`` when a policy drove and its own commands are kept.
    success: the simulator's own check at the end. score: how much of the task was done then, 0 to 1; None where it was
    not asked. policy: who drove a rollout. noise_seeds: the seed of each of its decisions.
    """

    suite: str
    task: int
    seed: int
    source: Source
    success: bool
    score: float | None = None
    policy: str = ""
    noise_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError(f"episode source: got {self.source!r}, expected one of {', '.join(SOURCES)}")
        if self.score is not None and not 0 <= self.score <= 1:
            raise InputError(f"episode score: got {self.score}, expected a share of the task from 0 to 1")
        object.__setattr__(self, "noise_seeds", tuple(self.noise_seeds))

    @property
    def done(self) -> float:
        """How much of the task was done at the end, 0 to 1: the score, or where it was not asked, the success."""
        return float(self.success) if self.score is None else self.score


@dataclass(frozen=True, eq=False)
class Episode:
    """One recorded episode of N moments.

    instruction: the task in words.
    images: camera name to (N, H, W, 3) uint8.
    state: (N, Ds) float32, in the units and field order of the robot's spec.
    actions: (N, T, Da) float32, the next T clean commands from each row; what lies past the end is filled in.
    valid: (N, T) bool, False for the filled-in commands. The first command of each row is valid, but for the last row
    of a rollout, which has none.
    info: where the episode came from.
    extras: name to (N, ...) float32, privileged columns that only training may read.
    """

    instruction: str
    images: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    valid: NDArray[np.bool_]
    info: EpisodeInfo
    extras: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise InputError("episode: the instruction is empty")
        set_field = object.__setattr__
        set_field(self, "state", _floats("state", self.state, dimensions=2))
        rows = len(self.state)
        set_field(self, "actions", _floats("actions", self.actions, dimensions=3, rows=rows))
        set_field(self, "valid", _valid(self.valid, self.actions.shape[:2], self.info.source == "rollout"))
        set_field(
            self,
            "images",
            MappingProxyType({n: _images(n, v, rows) for n, v in self.images.items()}),
        )
        extras = {name: _floats(f"extra {name!r}", value, rows=rows) for name, value in self.extras.items()}
        set_field(self, "extras", MappingProxyType(extras))

    def __len__(self) -> int:
        return len(self.state)

    @property
    def decisions(self) -> int:
        """The rows that have commands: all but the last of a rollout."""
        return len(self) - (self.info.source == "rollout")

    def __reduce__(self):  # read-only mappings cannot be pickled
        parts = (self.instruction, dict(self.images), self.state, self.actions, self.valid, self.info)
        return Episode, (*parts, dict(self.extras))


def require_robot(episode: Episode, robot: RobotSpec) -> None:
    """Raise InputError naming the field in which ``episode`` is not a recording of ``robot``.

    Cameras, their sizes and the widths of state and action are compared; every camera of the robot must be there.
    """
    expected = {c.name: (c.height, c.width) for c in robot.cameras}
    found = {name: frames.shape[1:3] for name, frames in episode.images.items()}
    if expected != found:
        raise InputError(f"episode cameras (height, width): got {found}, {robot.name} has {expected}")
    for what, width, want in (
        ("state", episode.state.shape[1], robot.state_width),
        ("actions", episode.actions.shape[2], robot.action_width),
    ):
        if width != want:
            raise InputError(f"episode {what}: got width {width}, {robot.name} has {want}")


def require_storable(episode: Episode, robot: RobotSpec) -> None:
    """``require_robot``, and at least two rows, which LeRobot's statistics of a dataset need."""
    require_robot(episode, robot)
    if len(episode) < 2:
        raise InputError("episode: got 1 row, a dataset takes episodes of 2 rows and more")


def chunk_rows(
    commands: NDArray[np.floating], starts: NDArray[np.integer], chunk: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Cut a run of commands (S, Da) into rows of ``chunk`` commands that begin at ``starts`` (N,).

    Returns actions (N, chunk, Da) and valid (N, chunk). Steps past the end repeat the last command, not valid.
    Raises InputError if a start lies outside the run.
    """
    commands = _floats("commands", commands, dimensions=2)
    steps = np.asarray(starts)[:, None] + np.arange(chunk)
    if len(steps) and (steps.min() < 0 or steps[:, 0].max() >= len(commands)):
        raise InputError(f"chunk starts {steps[:, 0].tolist()} leave the run of {len(commands)} commands")
    return commands[np.minimum(steps, len(commands) - 1)], steps < len(commands)


def _images(name: str, value: Image, rows: int) -> NDArray[np.uint8]:
    value = np.asarray(value)
    if value.dtype != np.uint8 or value.ndim != 4 or value.shape[3] != 3 or len(value) != rows:
        raise InputError(f"episode camera {name!r}: expected ({rows}, H, W, 3) uint8, got {value.shape} {value.dtype}")
    return _locked(value)


def _floats(
    name: str,
    value: NDArray[np.floating],
    dimensions: int | None = None,
    rows: int | None = None,
) -> NDArray[np.float32]:
    value = np.asarray(value, dtype=np.float32)
    if dimensions is not None and value.ndim != dimensions:
        raise InputError(f"episode {name}: expected {dimensions} dimensions, got shape {value.shape}")
    if not value.ndim or 0 in value.shape or (rows is not None and len(value) != rows):
        raise InputError(f"episode {name}: expected {'some' if rows is None else rows} rows, got shape {value.shape}")
    if not np.isfinite(value).all():
        raise InputError(f"episode {name}: not finite at {np.argwhere(~np.isfinite(value))[0].tolist()}")
    return _locked(value)


def _valid(value: NDArray[np.bool_], shape: tuple[int, ...], ends: bool) -> NDArray[np.bool_]:
    """``value`` checked; with ``ends``, the last row must have no command."""
    value = np.asarray(value)
    if value.dtype != np.bool_ or value.shape != shape:
        raise InputError(f"episode valid: expected {shape} bool, got {value.shape} {value.dtype}")
    first = value[: len(value) - ends, 0]
    if not first.all():
        raise InputError(f"episode valid: row {int(np.argmin(first))} has no valid command")
    if ends and (value[-1].any() or not len(first)):
        raise InputError(f"episode valid: a rollout ends with a row without commands; got {value[-1].tolist()}")
    return _locked(value)


def _locked(value: NDArray) -> NDArray:
    view = value.view()
    view.setflags(write=False)
    return view


def executed_commands(episode: Episode, stride: int, where: str = "episode") -> NDArray[np.float32]:
    """(N, T, Da) what was sent from each row on; the recorded commands where nothing else is.

    stride: control steps between rows. where: names the episode in errors. Raises InputError for labels, which were
    never sent, and for an extra that is not of the robot's commands."""
    if episode.info.source == "dagger":
        raise InputError(
            f"{where}: its commands are labels that were never sent (source 'dagger'), so neither its "
            "pictures nor a history follow from them; put such episodes into a stream of mode 'policy' without "
            "history_rows"
        )
    sent = episode.extras.get(EXECUTED)
    if sent is None:
        return episode.actions
    rows, chunk, width = episode.actions.shape
    if sent.shape == (rows, width) and stride == 1:
        return chunk_rows(sent, np.arange(rows), chunk)[0]
    if sent.ndim != 3 or sent.shape[1] < chunk or sent.shape[2] != width:
        raise InputError(
            f"{where}: extra {EXECUTED!r} is {sent.shape} at stride {stride}; expected "
            f"({rows}, {chunk}, {width}), or ({rows}, {width}) at stride 1; record it so, or leave it out"
        )
    return sent[:, :chunk]
