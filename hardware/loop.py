"""The control loop: one command a tick, whatever the network and the model do.

Each tick, at its scheduled time: take up answers that have come, ask if a new look is due, take the row that is due
from the scheduler, let the gate judge it, send it; or hold. Nothing in a tick waits for the policy.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cosmos_robot.errors import CosmosRobotError, InputError, RobotError
from cosmos_robot.hardware.asking import Asker, Pending
from cosmos_robot.hardware.chunks import Due, Hold, Scheduler, Ticket
from cosmos_robot.hardware.clock import Clock
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.robot import Robot, Sent
from cosmos_robot.types import Observation

LOG = logging.getLogger(__name__)
WORDS_KEPT = 200


@dataclass(frozen=True)
class LoopSettings:
    """instruction: the task in words. answer_timeout_s: an answer that takes longer counts as lost and is asked for
    again. seconds: how long to run, None for ever. seed: of the first question, counted up with each further one.
    faults: how often the robot may be recovered before the loop gives up.
    """

    instruction: str
    answer_timeout_s: float = 2.0
    seconds: float | None = None
    seed: int = 0
    faults: int = 3

    def __post_init__(self) -> None:
        for name in ("answer_timeout_s", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"loop: {name} must be over zero, got {value}")


@dataclass(frozen=True)
class Tick:
    """What happened in one control period; for recorders and displays.

    late_s: how long after its time it began. sent: what the robot was told, None for a hold. observation: where one was
    taken. asked: whether it went along with a question. due: the row that was due before the gate, None for none.
    """

    number: int
    time: float
    late_s: float
    sent: Sent | None
    hold: str
    observation: Observation | None
    asked: bool = False
    due: Due | None = None


class Witness(Protocol):
    """Somebody who is told of every tick: a recorder, a display. Must return at once."""

    def tick(self, tick: Tick) -> None:
        """One control period is over."""
        ...


@dataclass
class LoopReport:
    """What came of a run. lateness_s: of every tick. holds, interventions, notes: how often the loop held, the gate
    changed a command, the robot had something to say of one; by reason. words: the first happenings worth telling, each
    with its time. ended: why the run ended."""

    rate_hz: float
    ticks: int = 0
    missed_ticks: int = 0
    sent: int = 0
    lateness_s: list[float] = field(default_factory=list)
    holds: Counter[str] = field(default_factory=Counter)
    interventions: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    answered: int = 0
    lost: int = 0
    latencies_s: list[float] = field(default_factory=list)
    faults: int = 0
    words: list[str] = field(default_factory=list)
    ended: str = ""

    def jitter_ms(self, percent: float) -> float:
        """The given percentile of lateness, in milliseconds."""
        return float(np.percentile(self.lateness_s, percent) * 1e3) if self.lateness_s else 0.0

    def histogram(self, edges_ms: tuple[float, ...] = (0.1, 0.5, 1, 2, 5, 10, 20, 50)) -> dict[str, int]:
        """Ticks by lateness: up to each edge in milliseconds, and beyond the last."""
        places = np.searchsorted(edges_ms, np.array(self.lateness_s) * 1e3)
        labels = [f"<= {edge:g} ms" for edge in edges_ms] + [f"> {edges_ms[-1]:g} ms"]
        return {label: int((places == i).sum()) for i, label in enumerate(labels)}

    def tell(self, time: float, what: str) -> None:
        """Note and log a happening."""
        LOG.info("%.3f s: %s", time, what)
        if len(self.words) < WORDS_KEPT:
            self.words.append(f"{time:.3f} s: {what}")


class ControlLoop:
    """A robot, a source of chunks, a scheduler and a gate, ticked at the robot's rate.

    alive: the dead-man's answer, asked every tick. done: asked every tick, ends the run when true. glances: if
    there are any, an observation is taken every tick, and each is called with it, and whether it goes along with a
    question, before the robot moves on.
    """

    def __init__(
        self,
        robot: Robot,
        asker: Asker,
        scheduler: Scheduler,
        gate: Gate,
        clock: Clock,
        settings: LoopSettings,
        witnesses: tuple[Witness, ...] = (),
        alive: Callable[[], bool] = lambda: True,
        done: Callable[[], bool] = lambda: False,
        glances: tuple[Callable[[Observation, bool], None], ...] = (),
    ):
        self._robot, self._asker, self._scheduler, self._gate = robot, asker, scheduler, gate
        self._clock, self._settings, self._witnesses = clock, settings, witnesses
        self._alive, self._done, self._glances = alive, done, glances
        self._period = 1.0 / robot.robot.rate_hz
        self._pending: tuple[Ticket, Pending] | None = None
        self._seed = settings.seed
        self._holding = ""

    def run(self) -> LoopReport:
        """Tick until time is up, ``done`` says so, Ctrl-C, or the robot fails too often; ``report.ended`` says which.
        The robot is stopped at the end, whatever happens."""
        report = LoopReport(self._robot.robot.rate_hz)
        try:
            self._scheduler.reset()
            self._gate.rest()
            self._asker.reset()
            self._tick_on(report)
        except KeyboardInterrupt:
            report.ended = "interrupted"
        finally:
            if self._pending is not None:
                self._pending[1].cancel()
            self._robot.stop()
        return report

    def _tick_on(self, report: LoopReport) -> None:
        begin, number = self._clock.now(), 0
        while not report.ended:
            due = begin + number * self._period
            self._clock.sleep_until(due)
            late = self._clock.now() - due
            if late >= self._period:
                skipped = int(late / self._period)
                report.missed_ticks += skipped
                report.tell(due - begin, f"overrun: {late * 1e3:.0f} ms late, {skipped} ticks skipped")
                number += skipped
                due += skipped * self._period
                late -= skipped * self._period
            report.ticks += 1
            report.lateness_s.append(late)
            try:
                tick = self._tick(number, due, late, due - begin, report)
            except RobotError as error:
                self._recover(error, due - begin, report)
                number += max(0, int((self._clock.now() - due) / self._period))
            else:
                for witness in self._witnesses:
                    witness.tick(tick)
            number += 1
            if not report.ended and self._done():
                report.ended = "done"
            elif not report.ended and self._settings.seconds is not None:
                report.ended = "time is up" if number * self._period >= self._settings.seconds - 1e-9 else ""

    def _tick(self, number: int, due: float, late: float, since: float, report: LoopReport) -> Tick:
        self._take_up(due, since, report)
        asks = self._scheduler.wants(due)
        seen = self._robot.observe(self._settings.instruction) if asks or self._glances else None
        if asks and seen is not None:
            self._ask(seen, due, report)
            self._take_up(due, since, report)  # a recording answers at once, and must not come a row late
        if seen is not None:
            for glance in self._glances:
                glance(seen, asks)
        row = self._scheduler.row(due)
        if isinstance(row, Hold):
            return Tick(number, due, late, None, self._hold(row.reason, since, report), seen, asks)
        verdict = self._gate.check(row.values, self._robot.position(), row.age_s, self._period, self._alive())
        report.interventions.update(f"{i.rule}: {i.name}" for i in verdict.interventions)
        if verdict.values is None:
            self._scheduler.stood()
            return Tick(number, due, late, None, self._hold(verdict.reason, since, report), seen, asks, row)
        if verdict.interventions:
            report.tell(since, f"gate: {verdict.reason}")
        if self._holding:
            report.tell(since, "moving again")
            self._holding = ""
        sent = self._robot.send(verdict.values)
        report.sent += 1
        report.notes.update(note.split(":")[0] for note in sent.notes)
        for note in sent.notes:
            report.tell(since, f"robot: {note}")
        return Tick(number, due, late, sent, "", seen, asks, row)

    def _hold(self, reason: str, since: float, report: LoopReport) -> str:
        self._robot.hold()
        self._gate.rest()
        report.holds[reason.split(":")[0]] += 1
        if reason != self._holding:
            report.tell(since, f"hold: {reason}")
        self._holding = reason
        return reason

    def _ask(self, seen: Observation, due: float, report: LoopReport) -> None:
        ticket = self._scheduler.ask(due)
        self._pending = (ticket, self._asker.ask(seen, self._seed, ticket.committed, due))
        self._seed = (self._seed + 1) % 2**32
        report.asked += 1

    def _take_up(self, due: float, since: float, report: LoopReport) -> None:
        if self._pending is None:
            return
        ticket, pending = self._pending
        try:
            chunk = pending.poll(due)
            if chunk is not None:
                joined = self._scheduler.offer(ticket, chunk, due)
                report.answered += 1
                if joined is not None:
                    report.latencies_s.append(joined.latency_s)
            elif due - ticket.asked_at <= self._settings.answer_timeout_s:
                return
            else:
                pending.cancel()
                self._lose(ticket, f"no answer within {self._settings.answer_timeout_s:g} s", since, report)
        except CosmosRobotError as error:
            self._lose(ticket, f"{type(error).__name__}: {error}", since, report)
        self._pending = None

    def _lose(self, ticket: Ticket, why: str, since: float, report: LoopReport) -> None:
        self._scheduler.lost(ticket)
        report.lost += 1
        report.tell(since, f"answer lost: {why}")

    def _recover(self, error: RobotError, since: float, report: LoopReport) -> None:
        """Bring the robot back and begin from standstill, or end the run."""
        report.faults += 1
        report.tell(since, f"robot fault: {error}")
        if self._pending is not None:
            self._pending[1].cancel()
            self._pending = None
        self._scheduler.reset()
        self._gate.rest()
        if report.faults > self._settings.faults:
            report.ended = f"the robot failed {report.faults} times: {error}"
            return
        try:
            self._robot.recover()
        except RobotError as again:
            report.ended = f"the robot cannot be recovered: {again}"
