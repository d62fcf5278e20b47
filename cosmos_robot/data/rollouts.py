"""What a policy did and what came of it: episodes for world models, values and refinement.

A rollout of N decisions has N + 1 moments: what the robot saw when each decision was made, and at the end. So a
training row is (moment i, commands i, moment i + 1, return). It is kept as an ``Episode`` of N + 1 rows, of which the
last has no commands, in a LeRobot v3 dataset (``store.py``); a failed one is kept like any other.

Axis legend: N decisions, T commands of a decision, S commands in all, Ds Da widths, H W pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.episodes import Episode, EpisodeInfo
from cosmos_robot.data.returns import value_targets
from cosmos_robot.errors import InputError


@dataclass(frozen=True, eq=False)
class Rollout:
    """One episode that a policy drove.

    instruction: the task in words. images: camera name to (N + 1, H, W, 3) uint8. state: (N + 1, Ds) float32, in the
    units and field order of the robot's spec. actions: (N, T, Da) float32, the commands that the robot received, within
    its range, in its units; what lies past the end of a decision is filled in. valid: (N, T) bool, False for these.
    success: the simulator's own check at the end. score: how much of the task was done then, 0 to 1.
    suite, task: the task in its simulator's own naming. seed: what the scene was drawn from. policy: who drove.
    noise_seeds: the seed of each decision, empty where unknown.
    """

    instruction: str
    images: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    valid: NDArray[np.bool_]
    success: bool
    score: float
    suite: str
    task: int
    seed: int
    policy: str
    noise_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        episode = self.episode()  # checks everything
        if self.noise_seeds and len(self.noise_seeds) != len(self):
            raise InputError(f"rollout: got {len(self.noise_seeds)} seeds for {len(self)} decisions")
        for name in ("images", "state"):
            object.__setattr__(self, name, getattr(episode, name))
        object.__setattr__(self, "actions", episode.actions[:-1])
        object.__setattr__(self, "valid", episode.valid[:-1])

    def __reduce__(self):  # read-only mappings cannot be pickled
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Rollout, tuple((own | {"images": dict(self.images)}).values())

    def __len__(self) -> int:
        """N, the decisions."""
        return len(self.actions)

    @property
    def steps(self) -> NDArray[np.int64]:
        """(N + 1,) control steps made before each moment; the last is S."""
        return np.concatenate([[0], np.cumsum(self.valid.sum(1))])

    @property
    def commands(self) -> NDArray[np.float32]:
        """(S, Da) all commands of the episode in order."""
        return self.actions[self.valid]

    def returns(self, gamma: float) -> NDArray[np.float32]:
        """(N + 1,) value targets in -1..1 of the moments: 2 gamma^(S - step) - 1 where the task was done, even in
        part, and -1 everywhere where nothing of it was (``value_targets``). gamma: per control step."""
        return value_targets(int(self.steps[-1]) + 1, self.score, gamma)[self.steps]

    def episode(self) -> Episode:
        """The same as an Episode of N + 1 rows, for storing. Raises InputError naming the field that does not fit."""
        info = EpisodeInfo(
            self.suite, self.task, self.seed, "rollout", self.success, self.score, self.policy, self.noise_seeds
        )
        actions, valid = np.asarray(self.actions), np.asarray(self.valid)
        if actions.ndim != 3 or not len(actions) or valid.shape != actions.shape[:2]:
            raise InputError(
                f"rollout: expected actions (N, T, Da) and valid (N, T), got {actions.shape}, {valid.shape}"
            )
        if (np.diff(valid.astype(np.int8)) > 0).any():
            raise InputError("rollout valid: a decision has commands behind a gap; they must stand at its beginning")
        last = actions[-1][valid[-1]][-1:]  # the row that ends the episode repeats the last command, as not valid
        return Episode(
            self.instruction,
            self.images,
            self.state,
            np.concatenate([actions, np.broadcast_to(last, (1, *actions.shape[1:]))]),
            np.concatenate([valid, np.zeros_like(valid[:1])]),
            info,
        )


def rollout_of(episode: Episode) -> Rollout:
    """The rollout that an episode holds. Raises InputError if it is a demonstration."""
    info = episode.info
    if info.source != "rollout":
        raise InputError(
            f"{info.suite}/{info.task} seed {info.seed} has the source {info.source!r}, expected 'rollout'; only "
            "`cosmos-robot collect --policy` records what a policy's own commands led to"
        )
    return Rollout(
        episode.instruction,
        episode.images,
        episode.state,
        episode.actions[:-1],
        episode.valid[:-1],
        info.success,
        info.done,
        info.suite,
        info.task,
        info.seed,
        info.policy,
        info.noise_seeds,
    )


def rows_per_second(robot: RobotSpec, execute: int) -> int:
    """The rate that LeRobot is told for decisions every ``execute`` control steps: the nearest whole number."""
    return max(1, round(robot.rate_hz / execute))


def write_rollouts(
    rollouts: Iterable[Rollout],
    folder: str | Path,
    robot: RobotSpec,
    *,
    execute: int,
    notes: Mapping[str, Any] | None = None,
    total: int | None = None,
    progress: bool = False,
) -> Path:
    """Write ``rollouts`` of ``robot`` as a LeRobot v3 dataset to ``folder`` and return it.

    execute: control steps between decisions. LeRobot counts whole rows per second: where ``robot.rate_hz / execute`` is
    no whole number, its timestamps follow the nearest one, and ``Rollout.steps`` tells the true moments.
    notes, total, progress, and what is raised: as for ``write_dataset``.
    """
    from cosmos_robot.data.store import write_dataset  # lerobot is heavy and only needed here

    if execute < 1:
        raise InputError(f"execute: got {execute}, expected at least 1 control step")
    return write_dataset(
        (rollout.episode() for rollout in rollouts),
        folder,
        robot,
        stride=execute,
        fps=rows_per_second(robot, execute),
        notes=notes,
        total=total,
        progress=progress,
    )


class RolloutStore(Sequence[Rollout]):
    """The rollouts of a dataset folder, read when asked for.

    robot, notes, fingerprint: as of ``EpisodeStore``. execute: control steps between decisions. chunk: T.
    infos, instructions, lengths: one per rollout, known without reading it; lengths are decisions.
    Raises CheckpointError as ``EpisodeStore`` does, InputError if it holds demonstrations.
    """

    def __init__(self, folder: str | Path):
        from cosmos_robot.data.store import EpisodeStore

        self._store = store = EpisodeStore(folder)
        self.folder = store.folder
        others = sorted({info.source for info in store.infos} - {"rollout"})
        if others:
            raise InputError(f"{folder} holds episodes of the source {', '.join(others)}, expected rollouts only")
        self.fingerprint: str = store.fingerprint
        self.robot: RobotSpec = store.robot
        self.notes: dict[str, Any] = store.notes
        self.execute: int = store.stride
        self.chunk: int = store.chunk
        self.infos: tuple[EpisodeInfo, ...] = store.infos
        self.instructions: tuple[str, ...] = store.instructions
        self.lengths = tuple(rows - 1 for rows in store.lengths)

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Rollout:  # type: ignore[override]
        return rollout_of(self._store[index])

    def rollout(self, index: int, cameras: Sequence[str] | None = None) -> Rollout:
        """Rollout ``index`` with the pictures of ``cameras`` (all by default; none costs no decoding)."""
        return rollout_of(self._store.episode(index, cameras))
