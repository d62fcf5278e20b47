"""The training loop: cycles of steps, with log, validation, checkpoints, resume and Ctrl-C. What a step does is the
learner's."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from torch import Tensor

from cosmos_robot.errors import InputError
from cosmos_robot.training.optimise import learning_rate
from cosmos_robot.training.session import Budget, Every, RunFolder, interrupted, progress_bar, stop_on_interrupt

LOG = logging.getLogger(__name__)
LOG_EVERY = 20
Schedule = Literal["cosine", "linear"]


class Learner(Protocol):
    """Something that learns in steps. All its randomness follows from the step number, so that a resumed run equals an
    uninterrupted one."""

    def train_step(self, cycle: int, step: int, rate: float) -> Mapping[str, Tensor | float]:
        """Take step number ``step`` (over the whole run) at learning rate ``rate``; returns losses to log."""
        ...

    def validate(self) -> Mapping[str, float]: ...

    def state(self) -> dict: ...

    def load(self, state: dict) -> None: ...


@dataclass(frozen=True)
class Cycle:
    """One learning-rate cycle, see ``config.Stage``. schedule: the way from ``lr`` down to ``final_lr`` of it."""

    name: str
    budget: Budget
    lr: float
    warmup: int
    final_lr: float
    schedule: Schedule = "cosine"


@dataclass(frozen=True)
class Pace:
    """save_seconds between checkpoints; validation every ``validate_steps`` if given, else every
    ``validate_seconds``. agree: what several processes that train together make of their flags (``Crew.agree``)."""

    save_seconds: float
    validate_seconds: float
    validate_steps: int | None = None
    progress: bool = True
    agree: Callable[..., tuple[float, ...]] = lambda *flags: flags


@dataclass
class _Position:
    cycle: int = 0
    step: int = 0
    cycle_step: int = 0
    seconds: float = 0.0
    done: bool = False


def run(learner: Learner, folder: RunFolder, cycles: Sequence[Cycle], pace: Pace) -> None:
    """Train from the folder's saved state (or the beginning) to the end of the last cycle.

    Raises Interrupted after the first Ctrl-C, with everything saved. Warns of a cycle that ends within its warm-up.
    """
    at = _resume(learner, folder, cycles)
    if at.done:
        return
    for cycle in cycles:
        steps = cycle.budget.steps
        if steps is not None and cycle.warmup >= steps:
            LOG.warning(
                "%s: warmup is %d steps and the whole cycle %d, so the rate never reaches lr %g; lower warmup or raise "
                "steps", cycle.name, cycle.warmup, steps, cycle.lr,
            )  # fmt: skip
    with stop_on_interrupt() as stop, progress_bar("training", pace.progress) as show:
        for number in range(at.cycle, len(cycles)):
            if number != at.cycle:
                at.cycle, at.cycle_step, at.seconds = number, 0, 0.0
            if _run_cycle(learner, folder, cycles, at, pace, stop, show):
                _save(learner, folder, at)
                raise interrupted(folder.path, at.step)
        at.done = True
        _save(learner, folder, at)


def _run_cycle(learner, folder: RunFolder, cycles, at: _Position, pace: Pace, stop, show) -> bool:
    """Returns whether it was stopped."""
    cycle, save_due = cycles[at.cycle], Every(pace.save_seconds)
    validate_due, values = Every(pace.validate_seconds), defaultdict(list)
    while True:
        if any(pace.agree(stop.is_set())):
            return True
        if (share := cycle.budget.progress(at.seconds, at.cycle_step)) >= 1:
            return False
        begun = time.monotonic()
        rate = learning_rate(cycle.lr, cycle.final_lr, cycle.warmup, at.cycle_step, share, cycle.schedule)
        for name, value in learner.train_step(at.cycle, at.step, rate).items():
            values[name].append(float(value))
        due = at.step % pace.validate_steps == pace.validate_steps - 1 if pace.validate_steps else validate_due()
        seconds, due, save = pace.agree(at.seconds + time.monotonic() - begun, due, save_due())
        at.step, at.cycle_step, at.seconds = at.step + 1, at.cycle_step + 1, seconds
        last = cycle.budget.progress(at.seconds, at.cycle_step) >= 1
        if at.step % LOG_EVERY == 0 or last:
            means = {name: sum(of) / len(of) for name, of in values.items()}
            folder.log(_record("train", cycle, at, lr=rate, **means))
            values.clear()
            notes = "  ".join(f"{name} {value:.3f}" for name, value in means.items())
            show((at.cycle + min(share, 1)) / len(cycles), f"{cycle.name} step {at.step}  {notes}")
        if due or last:
            folder.log(_record("validation", cycle, at, **learner.validate()))
        if save:
            _save(learner, folder, at)


def _record(kind: str, cycle: Cycle, at: _Position, **values: float) -> dict:
    rounded = {name: round(float(value), 6) for name, value in values.items()}
    return {"kind": kind, "cycle": cycle.name, "step": at.step, "cycle_seconds": round(at.seconds, 1), **rounded}


def _save(learner: Learner, folder: RunFolder, at: _Position) -> None:
    folder.save_state({"position": asdict(at), "learner": learner.state()})


def _resume(learner: Learner, folder: RunFolder, cycles: Sequence[Cycle]) -> _Position:
    if not cycles:
        raise InputError("training: no cycles")
    saved = folder.load_state()
    if saved is None:
        folder.drop_log_after(-1)
        return _Position()
    learner.load(saved["learner"])
    at = _Position(**saved["position"])
    folder.drop_log_after(at.step)
    return at
