"""Episodes whose every number tells where it belongs, and a demonstrator that makes them in worker processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosmos_robot.contract import CameraSpec, FieldSpec, GripperSpec, RobotSpec
from cosmos_robot.data.collect import Job, NotDemonstrated
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows

SIZE = 64
CHUNK = 4
STRIDE = 5
CAMERAS = ("front", "hand")

ROBOT = RobotSpec(
    name="oracle-arm",
    cameras=tuple(CameraSpec(name=name, height=SIZE, width=SIZE) for name in CAMERAS),
    state=(FieldSpec(name="position", width=3, unit="m"),),
    action=(FieldSpec(name="move", width=2, unit="1"), FieldSpec(name="gripper", width=1, unit="1")),
    action_reference="per_step",
    action_low=-1.0,
    action_high=1.0,
    gripper=GripperSpec(field="gripper", open_value=-1.0, closed_value=1.0, kind="binary"),
    rate_hz=20.0,
)


def picture(episode: int, row: int, camera: int) -> np.ndarray:
    """A picture (SIZE, SIZE, 3) that spells episode, row and camera in 8x8 blocks of black and white."""
    bits = [(number >> bit) & 1 for number in (episode, row, camera) for bit in range(12)]
    blocks = np.zeros(64, np.uint8)
    blocks[: len(bits)] = np.array(bits, np.uint8) * 200 + 20
    return np.repeat(np.kron(blocks.reshape(8, 8), np.ones((8, 8), np.uint8))[:, :, None], 3, axis=2)


def spelled(image: np.ndarray) -> tuple[int, int, int]:
    """Episode, row and camera that a picture spells, compression noise allowed for."""
    means = image.astype(float).mean(axis=2).reshape(8, 8, 8, 8).mean(axis=(1, 3)).reshape(-1)
    bits = (means > 120).astype(int)
    episode, row, camera = (int(sum(bits[12 * n + bit] << bit for bit in range(12))) for n in range(3))
    return episode, row, camera


def episode(number: int, rows: int, *, source: str = "expert", success: bool = True) -> Episode:
    """The episode called ``number``: state and commands are counted through, never equal between episodes."""
    steps = rows * STRIDE - 3
    commands = np.stack([np.full(steps, number), np.arange(steps), np.where(np.arange(steps) > 5, 1, -1)], axis=1)
    actions, valid = chunk_rows(commands, np.arange(rows) * STRIDE, CHUNK)
    row = np.arange(rows, dtype=np.float32)
    return Episode(
        instruction=f"do task {number % 3}",
        images={name: np.stack([picture(number, r, c) for r in range(rows)]) for c, name in enumerate(CAMERAS)},
        state=np.stack([np.full(rows, number), row, row / 10], axis=1),
        actions=actions,
        valid=valid,
        info=EpisodeInfo("oracle", number % 3, number, source, success),
        extras={"goal": np.full(rows, number), "uv": np.arange(rows * 4).reshape(rows, 2, 2) + number / 1000},
    )


@dataclass(frozen=True)
class OracleJob(Job):
    """``act``: "keep", "fail", "none", "raise", "kill" (its own process, once), "always kill", "hang"."""

    act: str = "keep"


def jobs(*acts: str, per_group: int = 2) -> list[OracleJob]:
    return [OracleJob(f"oracle/{n}", f"task {n // per_group}", n, act) for n, act in enumerate(acts)]


class OracleDemonstrator:
    """Does what a job says, and writes down in ``diary`` who did it and how that process was set up."""

    def __init__(self, diary: str, seconds: float = 0.0, broken: bool = False):
        if broken:
            raise RuntimeError("the simulator is missing a part")
        self.diary, self.seconds = Path(diary), seconds

    def episode(self, job: OracleJob) -> Episode | None:
        tries = sum(line.split()[1] == job.id for line in self._lines())
        with open(self.diary, "a") as file:
            file.write(f"{os.getpid()} {job.id} {os.environ['OMP_NUM_THREADS']} {os.environ['MUJOCO_GL']}\n")
        time.sleep(self.seconds)
        if job.act == "fail":
            raise NotDemonstrated("the object slipped")
        if job.act == "none":
            return None
        if job.act == "raise":
            raise ValueError("a defect")
        if job.act == "always kill" or (job.act == "kill" and tries == 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if job.act == "hang":
            time.sleep(600)
        return episode(job.seed, rows=3 + job.seed % 3)

    def close(self) -> None:
        pass

    def _lines(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.is_file() else []
