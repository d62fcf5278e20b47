"""Which tokens a sample has and which of them are given: the token plan of every mode.

Generation tokens stand in the order [vision patches, row-major over (frame, row, column) | action rows]. A clean token
is an input and carries no time embedding; a noisy one is denoised and read out. Several cameras are one picture, so
there is one vision grid.

Action rows, in order: ``history`` past rows (clean), the state row where there is one (clean), then the commands. On
the video's clock the state stands at frame 0 and the first command at frame 1.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cosmos_robot.contract import Contract, ModelSpec
from cosmos_robot.errors import ContractError, InputError

TEMPORAL_COMPRESSION = 4
"""Pixel frames per latent frame of the Wan autoencoder (after the first frame, which stands alone)."""

PlanMode = Literal["policy", "wam", "forward_dynamics", "inverse_dynamics"]
"""policy, wam: actions (and video, where the plan has future frames) from the first frame. forward_dynamics: video
from the first frame and all actions. inverse_dynamics: actions from the whole video."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenPlan:
    """The token layout of one kind of sample; hashable, so that positions and masks are computed once per plan.

    latent_grid: latent frames, rows and columns (before patching).
    clean_frames: per latent frame, whether it is given. clean_rows: the same per action row.
    fps: frames per second of the video. action_fps: rows per second; None where it is that of the video.
    action_start: step, on the rows' clock, of row 0 (0 for a state row, 1 for a first command, -H with H rows before).
    """

    latent_grid: tuple[int, int, int]
    clean_frames: tuple[bool, ...]
    clean_rows: tuple[bool, ...]
    fps: float
    action_start: int
    action_fps: float | None = None

    def __post_init__(self) -> None:
        if len(self.latent_grid) != 3 or min(self.latent_grid) < 1:
            raise InputError(f"token plan: expected latent_grid (frames, rows, columns) >= 1, got {self.latent_grid}")
        if len(self.clean_frames) != self.latent_grid[0]:
            raise InputError(
                f"token plan: {self.latent_grid[0]} latent frames but {len(self.clean_frames)} clean flags"
            )
        check_fps(self.fps, "token plan: fps")
        if self.action_fps is not None:
            check_fps(self.action_fps, "token plan: action_fps")
        if all(self.clean_frames) and all(self.clean_rows):
            raise InputError("token plan: nothing to denoise, every frame and every action row is clean")

    @property
    def rows(self) -> int:
        """Action rows, clean ones included."""
        return len(self.clean_rows)

    @property
    def noisy_rows(self) -> tuple[int, ...]:
        """Indices of the action rows that are denoised."""
        return tuple(i for i, clean in enumerate(self.clean_rows) if not clean)

    @property
    def noisy_frames(self) -> tuple[int, ...]:
        """Indices of the latent frames that are denoised."""
        return tuple(i for i, clean in enumerate(self.clean_frames) if not clean)

    def patches(self, patch: int) -> int:
        """Vision tokens per latent frame; an odd side is padded to whole patches."""
        _, height, width = self.latent_grid
        return -(-height // patch) * -(-width // patch)


@dataclass(frozen=True)
class Alignment:
    """Which latent frames and action rows are given, and the step of row 0, see ``TokenPlan``."""

    clean_frames: tuple[bool, ...]
    clean_rows: tuple[bool, ...]
    action_start: int


def align(
    mode: str, frames: int, rows: int, history: int = 0, temporal_compression: int = TEMPORAL_COMPRESSION
) -> Alignment:
    """How ``rows`` action rows (history and state row counted) stand to ``frames`` pixel frames.

    With N = rows - history: N = frames - 1 is one row per gap between frames (case A); N = frames begins with a state
    row (case B); otherwise the rows are denser than the video, and begin with a state row if N - 1 is a multiple of
    frames - 1 (case C). Mode ``policy`` never has a state row. (cosmos-framework, action/utils/transforms.py,
    build_sequence_plan_from_mode; its edges are kept, among them that a single row counts as a state row if there is
    more than one frame.) Raises InputError for an unknown mode or impossible counts.
    """
    if mode not in get_args(PlanMode):
        raise InputError(f"mode {mode!r}: expected one of {', '.join(get_args(PlanMode))}")
    if frames < 1 or temporal_compression < 1 or history < 0 or rows < history:
        raise InputError(
            f"expected at least one frame and rows >= history >= 0, got {frames} frames, {rows} rows of which {history}"
            " are history"
        )
    latents = (frames - 1) // temporal_compression + 1
    state = mode != "policy" and _begins_with_state(frames, rows - history)
    given = history + state
    clean_rows = (True,) * rows if mode == "forward_dynamics" else (True,) * min(given, rows)
    return Alignment(
        clean_frames=(True,) * (latents if mode == "inverse_dynamics" else 1)
        + (False,) * (0 if mode == "inverse_dynamics" else latents - 1),
        clean_rows=clean_rows + (False,) * (rows - len(clean_rows)),
        action_start=-history if state else 1 - history,
    )


def token_plan(
    mode: str,
    frames: int,
    rows: int,
    grid: tuple[int, int],
    fps: float,
    history: int = 0,
    action_fps: float | None = None,
) -> TokenPlan:
    """The plan of ``mode`` over ``frames`` pixel frames with a latent ``grid`` (rows, columns) each, as ``align`` lays
    it out."""
    found = align(mode, frames, rows, history)
    return TokenPlan(
        (len(found.clean_frames), *grid), found.clean_frames, found.clean_rows, float(fps), found.action_start,
        None if action_fps is None else float(action_fps),
    )  # fmt: skip


def policy_plan(height: int, width: int, chunk: int, fps: float, state_row: bool, history: int = 0) -> TokenPlan:
    """One clean latent frame, ``history`` past rows, the current state as a clean row if ``state_row``, and ``chunk``
    noisy commands."""
    return wam_plan(1, height, width, chunk, fps, state_row, history)


def wam_plan(
    frames: int, height: int, width: int, chunk: int, fps: float, state_row: bool, history: int = 0
) -> TokenPlan:
    """Commands and future video denoised together: latent frame 0 clean, frames 1.. noisy, rows as in
    ``policy_plan``. The number of frames is free; ``contract_plan`` ties it to the chunk."""
    return TokenPlan(
        latent_grid=(frames, height, width),
        clean_frames=(True,) + (False,) * (frames - 1),
        clean_rows=(True,) * (history + state_row) + (False,) * chunk,
        fps=float(fps),
        action_start=(0 if state_row else 1) - history,
    )


def video_frames(model: ModelSpec) -> int:
    """Pixel frames that belong to a chunk, the current one included. Raises ContractError where the chunk is no whole
    number of latent frames."""
    gaps, rest = divmod(model.chunk, model.actions_per_frame)
    if rest or gaps % TEMPORAL_COMPRESSION:
        raise ContractError(
            f"model.chunk is {model.chunk} at {model.actions_per_frame} actions per frame: a video needs a multiple of "
            f"{TEMPORAL_COMPRESSION * model.actions_per_frame}"
        )
    return gaps + 1


def contract_plan(contract: Contract, mode: PlanMode, grid: tuple[int, int], history: int = 0) -> TokenPlan:
    """The plan of one of a contract's modes. ``policy`` has the current frame only, the others the chunk's whole video.

    grid: latent rows and columns. history: past rows at hand, at most ``model.history_rows``. Raises ContractError
    where the contract does not offer the mode or its chunk has no whole video, InputError for too much history.
    """
    model = contract.model
    if mode not in model.modes:
        raise ContractError(f"{model.name!r} was not trained as {mode!r}; its contract's modes are {list(model.modes)}")
    if not 0 <= history <= model.history_rows:
        raise InputError(f"history: {history} rows, but {model.name!r} takes 0 to {model.history_rows}")
    fps = model_fps(contract.fps)
    if mode == "policy":
        return policy_plan(*grid, model.chunk, fps * model.actions_per_frame, model.state_row, history)
    rows, frames = history + model.state_row + model.chunk, video_frames(model)
    row_fps = fps * model.actions_per_frame if model.actions_per_frame > 1 else None
    return token_plan(mode, frames, rows, grid, fps, history, row_fps)


def given_rows(plan: TokenPlan, chunk: int, count: int) -> TokenPlan:
    """``plan`` with the first ``count`` of its last ``chunk`` rows, the commands, clean: a chunk that goes on from
    commands already given. Raises InputError unless one is left to denoise."""
    if not 0 <= count < chunk <= plan.rows:
        raise InputError(f"{count} given commands: expected 0 to {chunk - 1} of a chunk of {chunk}")
    first = plan.rows - chunk
    clean = tuple(c or first <= i < first + count for i, c in enumerate(plan.clean_rows))
    return replace(plan, clean_rows=clean) if count else plan


def check_fps(fps: float, name: str = "fps") -> None:
    """Raise InputError unless ``fps`` is a positive, finite number."""
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not math.isfinite(fps) or fps <= 0:
        raise InputError(f"{name} must be a positive, finite number, got {fps!r}")


def model_fps(rate: float) -> int:
    """The whole frames per second that a model is told: the reference keeps an integer and cuts the rest off, so 12.5
    becomes 12. Logged where it changes the number; InputError below 1 or not finite."""
    check_fps(rate, "frame rate")
    whole = int(rate)
    if whole < 1:
        raise InputError(f"frame rate {rate}: models are told whole frames per second, and this cuts off to 0")
    if whole != rate:
        _log.warning("the model is told %d frames per second instead of %s, as in its training", whole, rate)
    return whole


def _begins_with_state(frames: int, rows: int) -> bool:
    if rows == frames - 1:
        return False
    return rows == frames or (frames > 1 and (rows - 1) % (frames - 1) == 0)
