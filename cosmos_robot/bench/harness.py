"""What all side-by-side benchmarks share: two callables timed in turns, the machine's own rate, peak memory.

Turns, because a machine that others use as well is slow and fast in phases: what is compared ran in the same minute.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from cosmos_robot.errors import InputError

Progress = Callable[[str], None]
"""Told what is being measured, a few words each time."""


def quiet(words: str) -> None:
    """A ``Progress`` that says nothing."""


@dataclass(frozen=True)
class Pair:
    """Seconds of each run, ours and the peer's, in the order in which they were taken."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of the peer's seconds over the median of ours."""
        return statistics.median(self.peer) / statistics.median(self.ours)

    def as_json(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio,
            "ours": {"median_s": statistics.median(self.ours), "runs_s": list(self.ours)},
            "peer": {"median_s": statistics.median(self.peer), "runs_s": list(self.peer)},
        }


def interleave(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int, warm_up: int = 1, progress: Progress = quiet
) -> Pair:
    """Time ``ours`` and ``peer`` in turns, ``repeats`` times each, after ``warm_up`` untimed turns."""
    if repeats < 1 or warm_up < 0:
        raise InputError(f"expected repeats >= 1 and warm_up >= 0, got {repeats} and {warm_up}")
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(-warm_up, repeats):
        progress("warm-up" if turn < 0 else f"run {turn + 1} of {repeats}")
        for seconds, call in zip(taken, (ours, peer), strict=True):
            found = timed(call)[0]
            if turn >= 0:
                seconds.append(found)
    return Pair(tuple(taken[0]), tuple(taken[1]))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that ``call`` took, device work included, and what it returned."""
    _wait()
    start = time.perf_counter()
    result = call()
    _wait()
    return time.perf_counter() - start, result


def matmul_rate(dtype: torch.dtype, rows: int, inner: int, outer: int) -> float:
    """Floating-point operations per second of one plain (rows, inner) x (inner, outer) product on the CPU."""
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(outer, inner, dtype=dtype)
    seconds, _ = timed(lambda: torch.nn.functional.linear(left, right))
    return 2 * rows * inner * outer / seconds


def transient_bytes(call: Callable[[], object]) -> int:
    """The most that torch's CPU allocator held at any moment of ``call`` beyond what it held before.

    Every allocation and release is read from torch's profiler, temporaries inside operators included; scratch memory
    that a kernel library takes for itself is not seen.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def machine(dtype: torch.dtype) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
