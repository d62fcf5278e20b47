"""A world model as an environment: a policy or a planner drives, and a model imagines what comes of it.

What it sees is the predicted picture, laid back into each camera's frame; what the contract's crops leave out is black.
Its state is the predicted one, where the model predicts a state. Success is what a value model says, or never.

A model imagines whole chunks. The rows of an unfinished chunk are imagined with the robot standing still after them, so
moments inside a chunk are those of a robot that stops there; a finished chunk is imagined whole, and the next one
begins at its end. Success is judged only there, and where the budget ends. So the same rows one by one or at once end
alike, success included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.actions.codec import action_column
from cosmos_robot.actions.rotations import Rotations
from cosmos_robot.contract import CanvasSpec, Contract, Placement, RobotSpec, RotationFormat
from cosmos_robot.envs.base import RobotEnv, StepResult, init_state, require_limits
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import canvas_parts
from cosmos_robot.images.steps import letterbox, turn
from cosmos_robot.types import ActionChunk, Image, LazyImages, Observation, VideoPrediction

Rows = NDArray[np.float64]
State = Mapping[str, NDArray[np.float64]]


class Imagines(Protocol):
    """What is needed of a world model; ``policies.base.WorldModel`` is one. Its ``future_states(predictions)``, the
    state after each, is used where it has one."""

    contract: Contract

    def imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]: ...

    def extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[State] | None = None,
        carry: str = "pixels",
    ) -> list[VideoPrediction]: ...


class Values(Protocol):
    """What is needed of a value model; ``policies.base.ValueModel`` is one, which environments may not import."""

    reads: Any

    def score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]: ...


ANGLES = ("rotvec", "rotvec_robosuite", "euler_xyz")
"""Rotations that are written as angles, whose unit a robot may choose; the others have no unit."""

Tells = Callable[[Sequence[VideoPrediction]], Sequence[State]]


class WorldModelEnv(RobotEnv):
    """A world model from recorded or simulated starts.

    starts: observations to begin at, each an initial state; or an environment, whose resets are the starts.
    step_budget: control steps until truncation. value, success_at: an episode is a success once the value of a
    finished chunk, or of the one that the budget cuts, reaches ``success_at``; without a value model it never is. A
    policy that runs less than a chunk of each decision is not judged after every one.
    unpredicted_state: what to do where the model predicts no state: ``refuse``, or ``hold`` that of the start, which
    misleads a policy that reads its state, and a model whose commands are rows relative to it from the second chunk on.
    carry: see ``WorldModel.extend``. Closing it closes the environment of the starts, too.

    Raises ContractError for a model that predicts no state, unless told to hold it, and for a canvas that is resized
    after composing, from which no camera can be cut. A camera without a place on the canvas is refused when it is read.
    """

    def __init__(
        self,
        world: Imagines,
        starts: Sequence[Observation] | RobotEnv,
        *,
        step_budget: int,
        value: Values | None = None,
        success_at: float = 0.5,
        unpredicted_state: Literal["refuse", "hold"] = "refuse",
        carry: str = "pixels",
    ):
        self.contract, self.robot = world.contract, world.contract.robot
        super().__init__()
        require_limits(0, step_budget)
        self.world, self.value, self.success_at, self.carry = world, value, success_at, carry
        self.step_budget = step_budget
        self._tells = state_teller(world)
        require_usable(self.contract, self._tells is not None or unpredicted_state == "hold")
        self._source = starts if isinstance(starts, RobotEnv) else None
        self._starts = () if isinstance(starts, RobotEnv) else tuple(starts)
        if self._source is None and not self._starts:
            raise InputError("world model: got no start; pass at least one observation, or an environment")
        self.init_state_count = self._source.init_state_count if self._source else len(self._starts)
        self.instruction = self._source.instruction if self._source else self._starts[0].instruction
        self.value_now: float | None = None
        """What the value model says of the last prediction."""

    def close(self) -> None:
        super().close()
        if self._source is not None:
            self._source.close()

    @property
    def imagined(self) -> tuple[VideoPrediction, ...]:
        """The predictions of this episode, chunk after chunk; the last may be of an unfinished one."""
        return tuple(self._done) if self._now is None else (*self._done, self._now)

    def run(self, rows: Rows, on_step: Callable[[RobotEnv], None] | None = None) -> StepResult:
        """As ``RobotEnv.run``, imagining at once what lies in one chunk; ``on_step`` is called after each such piece,
        since nobody looked in between."""
        self._require_open()
        if not self._running:
            raise InputError("execute() before reset(), or after the episode ended; call reset() first")
        reward, taken, success = 0.0, 0, False
        while self._running and taken < len(rows):
            room = min(self.contract.model.chunk - len(self._rows), self.step_budget - self.control_steps)
            piece = rows[taken : taken + room]
            self._moment += 1
            success = self._advance(piece)
            taken, reward = taken + len(piece), reward + float(success)
            self.control_steps += len(piece)
            self._succeeded, self._running = success, not (success or self.control_steps >= self.step_budget)
            if on_step is not None:
                on_step(self)
        return StepResult(self.observe(), reward, success, not (self._running or success), success, taken, self.score())

    def score(self) -> float:
        """1 after a success, else what the value model says of the last prediction, 0 without one."""
        return 1.0 if self._succeeded else float(np.clip(self.value_now or 0.0, 0, 1))

    def _reset(self, options: dict[str, Any]) -> None:
        if self._source is not None:
            seen, _ = self._source.reset(seed=int(self.np_random.integers(2**31)), options=options)
        else:
            index = init_state(self, options)
            seen = self._starts[int(self.np_random.integers(len(self._starts))) if index is None else index]
        self._start, self.instruction = replace(seen, time=0.0), seen.instruction
        self._seed = int(self.np_random.integers(2**31))
        self._done: list[VideoPrediction] = []
        self._now: VideoPrediction | None = None
        self._rows: Rows = np.zeros((0, self.robot.action_width))
        self._anchor = self._told = seen.state
        self.value_now = None

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        success = self._advance(action[None])
        return float(success), success, self.control_steps + 1 >= self.step_budget

    def _state(self) -> dict[str, NDArray[np.float64]]:
        return {field.name: np.array(self._told[field.name]) for field in self.robot.state}

    def _info(self) -> dict[str, Any]:
        return {"value": self.value_now}

    def _draw(self, camera: str) -> Image:
        last = self._now or (self._done[-1] if self._done else None)
        if last is None:
            return self._start.images[camera]
        model = self.contract.model
        if self._now is None:
            frame = last.frames[-1]
        else:
            stride = model.chunk if model.frames else model.actions_per_frame
            frame = last.frames[-(-len(self._rows) // stride)]
        return camera_picture(self.contract, camera, frame)

    def _advance(self, piece: Rows) -> bool:
        """Imagine what rows (k, D) lead to, no further than the end of the chunk. Returns whether that is a success."""
        self._rows = np.concatenate([self._rows, piece])
        missing = self.contract.model.chunk - len(self._rows)
        whole = np.concatenate([self._rows, standing(self.robot, self._rows[-1], missing)])
        rate, number = self.robot.rate_hz, len(self._done)
        chunk = ActionChunk(whole, rate, number * len(whole) / rate, source="world-model-env")
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        found = self._imagined_from_anchor(chunk, seed)
        self._told = self._tells([found])[0] if self._tells else self._told
        success = False
        if self.value is not None:
            futures = None if self.value.reads == "q_value" else [found]
            self.value_now = float(self.value.score([self._moment_of_anchor()], [chunk], futures, [seed])[0])
            judged = not missing or self.control_steps + len(piece) >= self.step_budget
            success = bool(judged and self.value_now >= self.success_at)
        if missing:
            self._now = found
        else:
            self._done.append(found)
            self._now, self._rows, self._anchor = None, self._rows[:0], self._told
        return success

    def _imagined_from_anchor(self, chunk: ActionChunk, seed: int) -> VideoPrediction:
        if not self._done:
            return self.world.imagine([self._start], [chunk], [seed])[0]
        states = [self._anchor] if self._tells or self.contract.reads_state else None
        return self.world.extend(self._done[-1:], [chunk], [seed], states, self.carry)[0]

    def _moment_of_anchor(self) -> Observation:
        """What is seen where the present chunk began."""
        if not self._done:
            return self._start
        last, names = self._done[-1], tuple(camera.name for camera in self.robot.cameras)
        images = LazyImages(names, lambda name: camera_picture(self.contract, name, last.frames[-1]))
        return Observation(images, self._anchor, self.instruction, last.end_time)


def state_teller(world: Imagines) -> Tells | None:
    """How ``world`` tells the state after a prediction, None if it predicts none."""
    told, frames = getattr(world, "future_states", None), world.contract.model.frames
    return None if told is None or (frames and "future state" not in frames) else told


def standing(robot: RobotSpec, last: NDArray[np.float64], count: int) -> Rows:
    """(count, D) commands after which the robot stays where ``last`` (D,) brought it, its gripper told the same."""
    rows = np.tile(last, (count, 1))
    if robot.action_reference != "per_step":
        return rows
    rows[:, motion_columns(robot)] = 0
    for columns, kind in rotation_columns(robot):
        rows[:, columns] = Rotations.of(np.zeros((1, 3)), "rotvec").to(kind)
    return rows


def rotation_columns(robot: RobotSpec) -> list[tuple[list[int], RotationFormat]]:
    """The columns of each rotation of a command and its format, by which ``Rotations`` reads them; without those whose
    angles are in another unit than radians, which nobody but the robot can turn by."""
    found: list[tuple[list[int], RotationFormat]] = []
    start = 0
    for field in robot.action:
        columns, kind = list(range(start, start + field.width)), field.rotation
        start += field.width
        if kind is not None and (kind not in ANGLES or field.unit == "rad"):
            found.append((columns, "rot9d" if kind == "matrix" else kind))
    return found


def motion_columns(robot: RobotSpec) -> list[int]:
    """The columns of a command that are no gripper's."""
    hands = gripper_columns(robot)
    return [i for i in range(robot.action_width) if i not in hands]


def gripper_columns(robot: RobotSpec) -> list[int]:
    """The columns of a command that are a gripper's."""
    return [action_column(robot, name) for name in robot.gripper.fields] if robot.gripper else []


def camera_picture(contract: Contract, camera: str, frame: Image) -> Image:
    """A canvas (H, W, 3) as ``camera`` would show it, in its own size and orientation: what is not on the canvas is
    black. Composed again, it gives the canvas back, but for the rounding of two resizes.

    Raises ContractError for a camera without a place on the canvas.
    """
    canvas, spec = contract.model.canvas, contract.robot.camera(camera)
    out = np.zeros((spec.height, spec.width, 3), np.uint8)
    shown = turn(out, spec.orientation, canvas.orientation)
    found = False
    whole = np.zeros((canvas.height, canvas.width, 3), np.uint8)
    whole[: frame.shape[0], : frame.shape[1]] = frame  # a video lacks the rows and columns of cut latent cells
    for place, part in zip(canvas.placements, canvas_parts(canvas, whole), strict=True):
        if place.camera == camera:
            found, box = True, place.crop
            shown[box.top : box.top + box.height, box.left : box.left + box.width] = _laid_back(canvas, place, part)
    if not found:
        placed = sorted({place.camera for place in canvas.placements})
        raise ContractError(
            f"{contract.model.name!r} predicts no picture of camera {camera!r}, only of {placed}; run a policy that "
            "looks at these"
        )
    return out


def _laid_back(canvas: CanvasSpec, place: Placement, part: Image) -> Image:
    """A place of the canvas in the size of what was cropped for it."""
    height, width = place.crop.height, place.crop.width
    if canvas.fit == "letterbox":
        fitted = letterbox(np.zeros((height, width, 3), np.uint8), place.to.height, place.to.width, canvas.resize)
        part = part[fitted.top : fitted.top + fitted.height, fitted.left : fitted.left + fitted.width]
    if not canvas.crop_fraction:
        return _sized(part, height, width)
    share = canvas.crop_fraction**0.5
    inner_height, inner_width = max(1, int(height * share)), max(1, int(width * share))
    top, left = round((height - inner_height) / 2), round((width - inner_width) / 2)
    out = _sized(part, height, width)  # around the centre nothing is known: what is seen there is never looked at
    out[top : top + inner_height, left : left + inner_width] = _sized(part, inner_height, inner_width)
    return out


def _sized(part: Image, height: int, width: int) -> Image:
    """Nearest neighbours where sizes are multiples, which an area mean undoes exactly; else bicubic."""
    whole = height % part.shape[0] == 0 and width % part.shape[1] == 0
    rule = PILImage.Resampling.NEAREST if whole else PILImage.Resampling.BICUBIC
    return np.array(PILImage.fromarray(np.ascontiguousarray(part)).resize((width, height), rule))


def require_usable(contract: Contract, state_known: bool) -> None:
    """Raise ContractError for a model that ``WorldModelEnv`` refuses. state_known: one is predicted, or held."""
    model = contract.model
    if model.canvas.tier or model.canvas.composed:
        raise ContractError(
            f"{model.name!r} resizes its canvas after composing it, so no camera can be cut from a prediction; use a "
            "contract without canvas.tier and canvas.composed"
        )
    if contract.robot.state and not state_known:
        raise ContractError(
            f"{model.name!r} predicts pictures but no state, and {contract.robot.name!r} reports one; pass "
            "unpredicted_state='hold' to keep that of the start, for policies that do not read it"
        )
