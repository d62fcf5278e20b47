"""Demonstrations in LIBERO scenes, driven by the scripted expert.

Rows are decision moments, every ``STRIDE`` control steps; each holds the next ``CHUNK`` clean commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import state_vector
from cosmos_robot.data.episodes import EXECUTED, Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.workers import Job, NotDemonstrated
from cosmos_robot.envs import make
from cosmos_robot.envs.experts import CLOSED, OPEN, Phase, PickPlace, PickPlaceExpert
from cosmos_robot.envs.libero import LiberoEnv
from cosmos_robot.envs.libero_detours import Detours, Disturbance, Noise
from cosmos_robot.envs.libero_layouts import lay_out
from cosmos_robot.envs.libero_scene import MAX_OBJECTS, OBJECT_CLASSES, LiberoScene
from cosmos_robot.types import Observation

STRIDE = 5
CHUNK = 16
_MAX_STEPS = 260
_LAYOUTS_PER_RESET = 30
_MAX_STEPS_WITH_DETOURS = 180


@dataclass(frozen=True)
class DemoJob(Job):
    """One demonstration of task ``group`` (an environment name). start: how the arm comes to where it begins."""

    start: str = "any"


STARTS = {"home": 0.35, "elsewhere": 0.35, "missed": 0.15, "dropped": 0.15}
"""Where a demonstration begins, by share: at home, at a random place, after a missed grasp, after a dropped object."""


class LiberoDemonstrator:
    """Builds one environment at a time and demonstrates in it; layouts are drawn from the job's seed.

    The scene is rebuilt every 30 episodes only, since that costs more than an episode. detours: lead the robot astray
    now and then, for world models, and keep the episode however it ends.
    """

    def __init__(self, detours: bool = False) -> None:
        self._detours = detours
        self._env: LiberoEnv | None = None
        self._left = 0

    def episode(self, job: DemoJob) -> Episode:
        """The expert's demonstration. Raises NotDemonstrated where it did not get there."""
        rng = np.random.default_rng([job.seed, 1])
        scene, plan = self.start(job.group, rng)
        kind = str(rng.choice(list(STARTS), p=list(STARTS.values()))) if job.start == "any" else job.start
        PREPARE[kind](scene, plan, rng)
        expert = PickPlaceExpert(scene, plan)
        rows, commands, sent = [], [], []
        disturbed: Disturbance = Detours(rng) if self._detours else Noise(rng)
        most = _MAX_STEPS_WITH_DETOURS if self._detours else _MAX_STEPS
        observation, success = scene.env.observe(), False
        while not success and len(commands) < most:
            if len(commands) % STRIDE == 0:
                rows.append(observe_row(scene, observation, expert.phase))
            clean = expert.act()
            sent.append(disturbed(clean))
            observation, _, success, _, _ = scene.env.step(sent[-1])
            commands.append(clean)
        if not success and not self._detours:
            raise NotDemonstrated(f"{kind} start, {disturbed}: no success, last phase {expert.phase.name}")
        actions, valid = chunk_rows(np.array(commands), np.arange(len(rows)) * STRIDE, CHUNK)
        executed, _ = chunk_rows(np.array(sent), np.arange(len(rows)) * STRIDE, CHUNK)
        return make_episode(scene, rows, actions, valid, job.seed, "expert", success, executed)

    def start(self, name: str, rng: np.random.Generator) -> tuple[LiberoScene, PickPlace]:
        """A fresh layout of task ``name``, arm at home with joint noise, objects at rest."""
        if self._env is None or f"{self._env.task.suite}/{self._env.task.index}" != name:
            self.close()
            self._env, self._left = make(name, step_budget=10**6, settle_steps=30), 0
        if self._left == 0:
            self._env.reset(seed=int(rng.integers(2**31)))
            self._scene, self._left = LiberoScene(self._env), _LAYOUTS_PER_RESET
            self._plan, self._settled = plan_of(self._scene), self._env.snapshot()
        self._left -= 1
        lay_out(self._scene, self._settled, rng)
        return self._scene, self._plan

    def close(self) -> None:
        """Free the simulator."""
        if self._env is not None:
            self._env.close()
            self._env = None


def plan_of(scene: LiberoScene) -> PickPlace:
    """Grasp and release for the scene's target and goal, from shapes as they stand at rest."""
    low, high = scene.box(scene.target)
    origin = scene.data.xpos[scene.objects[scene.target].body]
    table = min(scene.box(i)[0][2] for i, o in enumerate(scene.objects) if o.qpos_address is not None)
    goal_low = scene.box(scene.goal)[0][2]
    height = high[2] - low[2]
    if scene.objects[scene.target].category == "akita_black_bowl":
        grasp = (0.0, 0.043, 0.016)  # by the rim: the bowl is wider than the hand opens
        return PickPlace(grasp, low[2] - origin[2], table, goal_low + 0.004, max(goal_low + 0.19, low[2] + 0.05), 0.012)
    above = max(height - 0.03, height / 2) if height > 0.05 else height / 2
    centre = (low + high) / 2
    grasp = (centre[0] - origin[0], centre[1] - origin[1], low[2] + max(above, 0.008) - origin[2])
    return PickPlace(grasp, low[2] - origin[2], table, goal_low + 0.01, goal_low + 0.19, 0.03)


def observe_row(scene: LiberoScene, observation: Observation, phase: Phase) -> dict[str, NDArray]:
    """One decision moment: pictures, state and the privileged columns."""
    n = len(scene.objects)
    centres = np.array([scene.centre(i) for i in range(n)])
    base = scene.env.sim.data.get_body_xpos(scene.env.arm.robot_model.root_body)
    row = {f"image:{name}": observation.images[name] for name in observation.images}
    row["state"] = state_vector(scene.env.robot, observation.state)
    for camera in observation.images:
        uv = np.zeros((MAX_OBJECTS, 3))
        uv[:n] = scene.project(camera, centres)
        row[f"object_uv_{camera}"] = uv
    classes = np.full(MAX_OBJECTS, -1.0)
    classes[:n] = [OBJECT_CLASSES.index(o.category) for o in scene.objects]
    row |= {"object_class": classes, "target": np.array(scene.target), "goal": np.array(scene.goal)}
    row |= {"target_xyz": centres[scene.target] - base, "goal_xyz": scene.goal_position() - base}
    row["phase"] = np.array(int(phase))
    return row


def make_episode(scene, rows, actions, valid, seed: int, source, success: bool, executed=None) -> Episode:
    """Rows of ``observe_row`` and their labels as a checked Episode. executed: what was sent, if not the labels."""
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    images = {name.removeprefix("image:"): columns.pop(name) for name in list(columns) if name.startswith("image:")}
    state = columns.pop("state").astype(np.float32)
    if executed is not None:
        columns[EXECUTED] = executed
    task = scene.env.task
    return Episode(
        instruction=scene.env.instruction,
        images=images,
        state=state,
        actions=actions.astype(np.float32),
        valid=valid,
        info=EpisodeInfo(task.suite, task.index, seed, source, success),
        extras={name: values.astype(np.float32) for name, values in columns.items()},
    )


# Ways to begin, none of them recorded.


def _home(scene: LiberoScene, plan: PickPlace, rng: np.random.Generator) -> None:
    pass


def _elsewhere(scene: LiberoScene, plan: PickPlace, rng: np.random.Generator) -> None:
    """Drive towards a random place above the objects for 5 to 30 steps."""
    place = np.array([rng.uniform(-0.25, 0.18), rng.uniform(-0.28, 0.30), plan.table + rng.uniform(0.15, 0.30)])
    gripper = CLOSED if rng.random() < 0.15 else OPEN
    eef = PickPlaceExpert(scene, plan).eef
    for _ in range(rng.integers(5, 31)):
        scene.env.step(np.array([*np.clip(10 * (place - eef()), -1, 1), 0, 0, 0, gripper]))


def _missed(scene: LiberoScene, plan: PickPlace, rng: np.random.Generator) -> None:
    """Close the gripper 2 to 5 cm beside the object."""
    angle, radius = rng.uniform(0, 2 * np.pi), rng.uniform(0.02, 0.05)
    expert = PickPlaceExpert(scene, plan, radius * np.array([np.cos(angle), np.sin(angle)]))
    closing = False

    def done() -> bool:
        nonlocal closing
        closing = closing or expert.phase == Phase.CLOSE
        return closing and expert.phase != Phase.CLOSE

    _drive(scene, expert, done)


def _dropped(scene: LiberoScene, plan: PickPlace, rng: np.random.Generator) -> None:
    """Lift the object and let go of it on the way."""
    expert = PickPlaceExpert(scene, plan)
    after = rng.integers(3, 25)
    carried = 0

    def done() -> bool:
        nonlocal carried
        carried += expert.phase in (Phase.LIFT, Phase.TRANSPORT)
        return carried > after

    _drive(scene, expert, done)
    for _ in range(8):
        scene.env.step(np.array([0, 0, 0, 0, 0, 0, OPEN]))


def _drive(scene: LiberoScene, expert: PickPlaceExpert, done: Callable[[], bool]) -> None:
    for _ in range(150):
        scene.env.step(expert.act())
        if done():
            return


PREPARE = {"home": _home, "elsewhere": _elsewhere, "missed": _missed, "dropped": _dropped}
