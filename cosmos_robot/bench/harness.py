"""What all side-by-side benchmarks share: two callables timed in turns, the machine's own rate, peak memory.

Turns, because a machine that others use as well is slow and fast in phases: what is compared ran in the same minute.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffusers
import torch

from cosmos_robot.errors import InputError

Progress = Callable[[str], None]
"""Told what is being measured, a few words each time."""


def quiet(words: str) -> None:
    """A ``Progress`` that says nothing."""


@dataclass(frozen=True)
class Pair:
    """Seconds of each run, ours and the peer's, in the order in which they were taken; and seconds of processor time,
    all threads together, which other jobs on the machine disturb less."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]
    ours_cpu: tuple[float, ...] = ()
    peer_cpu: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Median of the peer's seconds over the median of ours."""
        return statistics.median(self.peer) / statistics.median(self.ours)

    def as_json(self) -> dict[str, Any]:
        processor = {"cpu_ratio": sum(self.peer_cpu) / sum(self.ours_cpu)} if self.ours_cpu else {}
        return {
            "ratio": self.ratio,
            **processor,
            "ours": {"median_s": statistics.median(self.ours), "runs_s": list(self.ours)},
            "peer": {"median_s": statistics.median(self.peer), "runs_s": list(self.peer)},
        }


def interleave(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int, warm_up: int = 1, progress: Progress = quiet
) -> Pair:
    """Time ``ours`` and ``peer`` in turns, ``repeats`` times each, after ``warm_up`` untimed turns."""
    if repeats < 1 or warm_up < 0:
        raise InputError(f"expected repeats >= 1 and warm_up >= 0, got {repeats} and {warm_up}")
    turns: list[tuple[Timing, Timing]] = []
    for turn in range(-warm_up, repeats):
        progress("warm-up" if turn < 0 else f"run {turn + 1} of {repeats}")
        pair = timed(ours), timed(peer)
        if turn >= 0:
            turns.append(pair)
    return pair_of(turns)


class Timing(NamedTuple):
    """Seconds by the clock, seconds of processor time over all threads, and what the call returned."""

    seconds: float
    cpu: float
    result: Any


def timed(call: Callable[[], Any]) -> Timing:
    """Run ``call``, device work included."""
    _wait()
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    _wait()
    return Timing(time.perf_counter() - start, time.process_time() - cpu, result)


def pair_of(turns: Sequence[tuple[Timing, Timing]]) -> Pair:
    """The figures of turns (ours, the peer's)."""
    ours, peer = zip(*turns, strict=True)
    return Pair(
        *(tuple(t.seconds for t in side) for side in (ours, peer)),
        *(tuple(t.cpu for t in side) for side in (ours, peer)),
    )


def matmul_rate(dtype: torch.dtype, rows: int, inner: int, outer: int) -> float:
    """Floating-point operations per second of one plain (rows, inner) x (inner, outer) product on the CPU."""
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(outer, inner, dtype=dtype)
    return 2 * rows * inner * outer / timed(lambda: torch.nn.functional.linear(left, right)).seconds


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
