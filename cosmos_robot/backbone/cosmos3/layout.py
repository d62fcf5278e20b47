"""Which tokens a sample has and which of them are given: the token plan.

Generation tokens stand in the order [vision patches, row-major over (frame, row, column) | action rows]. A clean token
is an input and carries no time embedding; a noisy one is denoised and read out.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_robot.errors import InputError


@dataclass(frozen=True)
class TokenPlan:
    """The token layout of one kind of sample; hashable, so that positions and masks are computed once per plan.

    latent_grid: latent frames, rows and columns (before patching).
    clean_frames: per latent frame, whether it is given. clean_rows: the same per action row.
    fps: frames per second of the video, which is the control rate.
    action_start: control step, on the video's clock, of action row 0 (0 for a state row, 1 for a first command).
    """

    latent_grid: tuple[int, int, int]
    clean_frames: tuple[bool, ...]
    clean_rows: tuple[bool, ...]
    fps: float
    action_start: int

    def __post_init__(self) -> None:
        if len(self.latent_grid) != 3 or min(self.latent_grid) < 1:
            raise InputError(f"token plan: expected latent_grid (frames, rows, columns) >= 1, got {self.latent_grid}")
        if len(self.clean_frames) != self.latent_grid[0]:
            raise InputError(
                f"token plan: {self.latent_grid[0]} latent frames but {len(self.clean_frames)} clean flags"
            )
        if not self.fps > 0:
            raise InputError(f"token plan: fps must be positive, got {self.fps}")
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


def policy_plan(height: int, width: int, chunk: int, fps: float, state_row: bool) -> TokenPlan:
    """One clean latent frame, the current state as a clean row if ``state_row``, and ``chunk`` noisy commands."""
    return wam_plan(1, height, width, chunk, fps, state_row)


def wam_plan(frames: int, height: int, width: int, chunk: int, fps: float, state_row: bool) -> TokenPlan:
    """Commands and future video denoised together: frame 0 clean, frames 1.. noisy, rows as in ``policy_plan``."""
    return TokenPlan(
        latent_grid=(frames, height, width),
        clean_frames=(True,) + (False,) * (frames - 1),
        clean_rows=((True,) if state_row else ()) + (False,) * chunk,
        fps=float(fps),
        action_start=0 if state_row else 1,
    )
