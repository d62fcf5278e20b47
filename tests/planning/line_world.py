"""A point on a line: a chunk adds its rows to the position, the value is how near the goal 1.0 it ends."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from cosmos_robot.contract import (
    Box,
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)
from cosmos_robot.errors import InputError, WorkerError
from cosmos_robot.planning.best_of_n import best_of_n
from cosmos_robot.planning.evaluate import Evaluator
from cosmos_robot.planning.executors import Worker
from cosmos_robot.planning.plan import PlannerSettings
from cosmos_robot.policies.base import Policy, ValueModel, WorldModel
from cosmos_robot.types import ActionChunk, LazyFrames, Observation, VideoPrediction

GOAL, ROWS, RATE = 1.0, 4, 10.0


def contract() -> Contract:
    whole, plain = Box(top=0, left=0, height=16, width=16), Normalization(method="identity", scale_floor=1e-6)
    robot = RobotSpec(
        name="point",
        cameras=(CameraSpec(name="camera", height=16, width=16),),
        state=(FieldSpec(name="position", width=1, unit="m"),),
        action=(FieldSpec(name="step", width=1, unit="m"),),
        action_reference="per_step",
        action_low=-1,
        action_high=1,
        rate_hz=RATE,
    )
    model = ModelSpec(
        name="line",
        backbone="cosmos3",
        modes=("policy",),
        domain_id=7,
        chunk=ROWS,
        execute=ROWS,
        state_row=False,
        canvas=CanvasSpec(height=16, width=16, placements=(Placement(camera="camera", crop=whole, to=whole),)),
        state_normalization=plain,
        action_normalization=plain,
        prompt=PromptSpec(template="caption"),
        sampler=SamplerSpec(solver="unipc", steps=2, shift=5.0, guidance=1.0),
    )
    return Contract(robot=robot, model=model)


def at(position: float) -> Observation:
    return Observation({}, {"position": np.array([position])}, "go to one")


class Clock:
    """Time that goes on only when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Steps(Policy):
    """Rows all alike, drawn from the seed. Keeps the size of every batch."""

    def __init__(self, clock: Clock | None = None, cost: float = 0.0, bad_seeds: tuple[int, ...] = ()):
        self.contract, self.batches, self.bad_seeds = contract(), [], bad_seeds
        self.clock, self.cost, self.seen = clock, cost, []

    def step(self, seed: int) -> float:
        return float(np.random.default_rng(seed).uniform(-0.5, 0.5))

    def _act(self, observations, seeds):
        self.batches.append(len(seeds))
        self.seen += [float(o.state["position"][0]) for o in observations]
        if self.clock:
            self.clock.now += self.cost
        for seed in seeds:
            if seed in self.bad_seeds:
                raise InputError(f"seed {seed} is a bad one")
        return [
            ActionChunk(np.full((ROWS, 1), self.step(s)), RATE, o.time, "steps")
            for o, s in zip(observations, seeds, strict=True)
        ]

    def _continue(self, observations, seeds, committed):
        chunks = self._act(observations, seeds)
        return [
            ActionChunk(np.concatenate([rows, c.values[len(rows) :]]), RATE, c.start_time, "steps")
            for rows, c in zip(committed, chunks, strict=True)
        ]


class SameSteps(Steps):
    """Every seed gives one of two chunks."""

    def step(self, seed: int) -> float:
        return 0.25 if seed % 2 else 0.1


class Line(WorldModel):
    """``latents`` is where the chunk leads, with a little noise of the seed."""

    def __init__(self, noise: float = 0.0, clock: Clock | None = None, cost: float = 0.0, limit: float = np.inf):
        self.contract, self.noise, self.batches = contract(), noise, []
        self.clock, self.cost, self.limit = clock, cost, limit

    def _imagine(self, observations, actions, seeds):
        self.batches.append(len(seeds))
        if self.clock:
            self.clock.now += self.cost
        if any(c.values.sum() > self.limit for c in actions):
            raise RuntimeError("too far for this world")
        return [self._future(o, c, s) for o, c, s in zip(observations, actions, seeds, strict=True)]

    def _future(self, observation, chunk, seed):
        end = observation.state["position"][0] + chunk.values.sum()
        end += self.noise * np.random.default_rng(seed).normal()
        video = LazyFrames(lambda: np.full((2, 16, 16, 3), 99, np.uint8), (2, 16, 16, 3))
        return VideoPrediction(video, chunk, observation.instruction, RATE / ROWS, observation.time, "line", float(end))

    def _extend(self, *_):
        raise AssertionError("a planner imagines from the predicted moment")


class Nearness(ValueModel):
    """1 at the goal, less 1 for each metre away from it. nan_above: positions that have no value."""

    def __init__(self, reads="value", nan_above: float = np.inf, clock: Clock | None = None, cost: float = 0.0):
        self.contract, self.reads, self.batches, self.nan_above = contract(), reads, [], nan_above
        self.clock, self.cost = clock, cost

    def _score(self, observations, actions, futures, seeds):
        self.batches.append(len(seeds))
        if self.clock:
            self.clock.now += self.cost
        if futures is None:
            ends = np.array(
                [o.state["position"][0] + c.values.sum() for o, c in zip(observations, actions, strict=True)]
            )
        else:
            ends = np.array([f.latents for f in futures])
        values = np.clip(1 - np.abs(GOAL - ends), 0, 1)
        return np.where(ends > self.nan_above, np.nan, values)


def onward(observation, prediction) -> Observation:
    return Observation({}, {"position": np.array([prediction.latents])}, observation.instruction, prediction.end_time)


def planner(policy=None, world=None, value=None, clock=None, **settings):
    chosen = PlannerSettings(**{"n": 4, "futures": 2, "values": 3, **settings})
    value = value or Nearness(chosen.reads)
    hook = onward if chosen.depth > 1 else None
    more = {"clock": clock} if clock else {}
    return best_of_n(policy or Steps(), world or Line(), value, chosen, onward=hook, **more)


def evaluator(**settings) -> Evaluator:
    chosen = PlannerSettings(**{"n": 4, "futures": 2, "values": 3, **settings})
    return Evaluator(Steps(), Line(), Nearness(), chosen)


class Good(Worker):
    """Answers at once. Keeps the seeds it was given."""

    def __init__(self, name: str, **settings):
        self.name, self.seeds, self._evaluator = name, [], evaluator(**settings)

    def submit(self, task):
        self.seeds += task.seeds
        done: Future = Future()
        done.set_result(self._evaluator.evaluate(task))
        return done


class Asleep(Worker):
    """Answers only when it is woken."""

    def __init__(self, name: str = "sleeper"):
        self.name, self.asked, self._evaluator = name, [], evaluator()

    def submit(self, task):
        done: Future = Future()
        self.asked.append((task, done))
        return done

    def wake(self) -> None:
        for task, done in self.asked:
            if not done.done():
                done.set_result(self._evaluator.evaluate(task))


class Dying(Worker):
    """Dies of every task; with ``at_once`` it cannot even be asked."""

    def __init__(self, name: str = "mortal", at_once: bool = False):
        self.name, self.at_once, self.asked = name, at_once, 0

    def submit(self, task):
        self.asked += 1
        if self.at_once:
            raise WorkerError("its process is gone")
        done: Future = Future()
        done.set_exception(WorkerError("its process ended"))
        return done


class Raising(Worker):
    """Raises what nobody expected."""

    def __init__(self, name: str = "faulty", error: Exception | None = None):
        self.name, self.error = name, error or KeyError("latents")

    def submit(self, task):
        done: Future = Future()
        done.set_exception(self.error)
        return done
