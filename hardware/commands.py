"""The commands ``drive`` and ``replay``: a robot, a source of chunks, the gate and the loop between them."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import tyro
from rich.console import Console

from cosmos_robot.errors import CheckpointError, InputError, WorkerError
from cosmos_robot.hardware.asking import Asker
from cosmos_robot.hardware.chunks import Scheduler, Strategy
from cosmos_robot.hardware.clock import Clock, MonotonicClock, VirtualClock, before_others
from cosmos_robot.hardware.dead_man import dead_man
from cosmos_robot.hardware.devices import named_sources, opened, require_cameras
from cosmos_robot.hardware.driving import Answers, Replayed, answers, fit
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.loop import ControlLoop, LoopReport, LoopSettings, Witness
from cosmos_robot.hardware.recorder import Recorder, RecorderSettings
from cosmos_robot.hardware.reporting import facts, show, show_limits
from cosmos_robot.hardware.robot import Robot
from cosmos_robot.hardware.robots import SIMULATED, Setup, cameras_of, make_robot
from cosmos_robot.policies.remote import SCHEME

SCREEN: Final = Path("-")
FAILED, INTERRUPTED = 1, 130
IN_STEP: Final = ("aloha-sim",)
"""Simulators that move only when told, besides ``sim:`` environments; with these a clock can be virtual."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Which robot, what is kept of the run, and what may stop it."""

    robot: str
    """franka, franka-cartesian, franka-sim, aloha, aloha-sim, or sim:ENVIRONMENT."""
    record: Path | None = None
    """Folder of a LeRobot dataset to write; it must not exist."""
    view: bool = False
    """Show the run live in rerun."""
    dry_run: bool = False
    """Ask for one chunk, print what would be sent of it, and send nothing."""
    host: str | None = None
    """Address of a real robot's controller."""
    cameras: tuple[str, ...] = ()
    """Cameras of a real robot, each as NAME=SOURCE by the robot's camera names; SOURCE is the number of a video device,
    /dev/... or an address such as rtsp://HOST/..."""
    dead_man: str | None = None
    """Move only while this is held: key, for any key in this terminal, or a joystick device such as /dev/input/js0,
    for any of its buttons."""
    seed: int = 0
    """Seed of the first question and of a simulated scene."""
    json: Path | None = None
    """File to write the report to, - for the screen."""


@dataclass(frozen=True, kw_only=True)
class DriveConfig(RunConfig):
    """Drive a robot."""

    policy: str
    """tcp://HOST:PORT of a policy server, or a checkpoint to run here."""
    instruction: str = ""
    """The task in words; a simulated task's own if empty."""
    strategy: Strategy = "rtc"
    """How chunks are joined."""
    seconds: float | None = None
    """How long; until Ctrl-C if not given, or until a simulated task ends."""
    execute: int | None = None
    """Rows of a chunk to use before a newer one takes over; as the checkpoint's contract says unless given."""
    answer_timeout: float = 2.0
    """Seconds after which an answer counts as lost."""
    device: str = "cpu"
    """Torch device of a checkpoint that runs here."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(RunConfig):
    """Send a recorded episode's actions to a robot, through the same gate and loop."""

    dataset: tyro.conf.Positional[Path]
    """LeRobot folder or HDF5 file."""
    episode: int = 0
    """Number of the episode."""


def main_drive(config: Annotated[DriveConfig, tyro.conf.arg(name="")]) -> int:
    """Drive a robot with a policy until time is up, the task ends or Ctrl-C. Exit status 1 if the robot failed or was
    never told anything, 130 after Ctrl-C."""
    console = _console(config.json)
    _require_file(config.json)
    clock = _clock(config.robot, served=config.policy.startswith(SCHEME))
    attachable = cameras_of(config.robot)
    sources = named_sources(config.cameras, attachable, config.robot)
    virtual = isinstance(clock, VirtualClock)
    with (
        _switch(config, clock) as alive,
        answers(config.policy, config.device, config.answer_timeout, virtual) as source,
        contextlib.ExitStack() as stack,
    ):
        if attachable:
            require_cameras(source.policy.contract, config.robot, sources)
        cameras = stack.enter_context(opened(attachable, sources))
        asked = source.policy.contract.robot
        made = make_robot(config.robot, Setup(config.host, asked.rate_hz, cameras, clock, config.seed, asked.name))
        robot = stack.enter_context(contextlib.closing(made))  # also where it is refused before it is connected
        asker, told = fit(source, robot.robot, config.strategy)
        model = source.policy.contract.model
        execute = model.execute if config.execute is None else config.execute
        scheduler = Scheduler(robot.robot, config.strategy, execute)
        settings = LoopSettings(config.instruction, config.answer_timeout, config.seconds, config.seed)
        plan = [
            f"policy: {model.name}, chunks of {model.chunk} rows, {execute} used, {config.strategy}; {source.where}"
        ]
        _show_plan(console, robot, clock, [*plan, *told])
        with robot:
            _warm_up(console, source, asker, robot, config.instruction, clock)
            if config.dry_run:
                return _dry_run(console, asker, robot, config.instruction, config.seed, clock)
            notes = {"policy": config.policy, "model": model.name, "strategy": config.strategy}
            return _run(console, _Run(robot, asker, scheduler, settings, clock, config, notes, alive))


def main_replay(config: Annotated[ReplayConfig, tyro.conf.arg(name="")]) -> int:
    """Replay a recorded episode. Exit status as of ``drive``; the first fault of the robot ends it."""
    console = _console(config.json)
    _require_file(config.json)
    clock = _clock(config.robot, served=False)
    attachable = cameras_of(config.robot)
    sources = named_sources(config.cameras, attachable, config.robot)
    replayed = Replayed.of(config.dataset, config.episode)
    with (
        _switch(config, clock) as alive,
        opened(attachable, sources) as cameras,
        contextlib.closing(
            make_robot(config.robot, Setup(config.host, replayed.rate_hz, cameras, clock, config.seed))
        ) as robot,
    ):
        replayed.require_fit(robot.robot)
        seconds = len(replayed.actions) / replayed.rate_hz
        _show_plan(console, robot, clock, [f"replay: {replayed.where}, {len(replayed.actions)} rows, {seconds:.1f} s"])
        with robot:
            if config.dry_run:
                return _dry_run(console, replayed, robot, replayed.instruction, config.seed, clock)
            scheduler = replayed.scheduler(robot.robot)
            settings = LoopSettings(replayed.instruction, seed=config.seed, faults=0)
            notes = {"replay_of": config.dataset.name, "episode": config.episode}
            return _run(console, _Run(robot, replayed, scheduler, settings, clock, config, notes, alive), replayed)


@contextlib.contextmanager
def _switch(config: DriveConfig | ReplayConfig, clock: Clock) -> Iterator[Callable[[], bool]]:
    """The dead-man's answer, and SIGTERM as Ctrl-C, so that what was opened is let go of."""
    if config.dead_man is not None and isinstance(clock, VirtualClock):
        raise InputError(f"dead_man: {config.robot!r} runs on a virtual clock, faster than anybody lets go of a switch")
    with terminated_as_interrupt(), dead_man(config.dead_man) as alive:
        yield alive


@dataclass(frozen=True)
class _Run:
    robot: Robot
    asker: Asker
    scheduler: Scheduler
    settings: LoopSettings
    clock: Clock
    config: DriveConfig | ReplayConfig
    notes: dict[str, Any]
    alive: Callable[[], bool]


def _run(console: Console, run: _Run, replayed: Replayed | None = None) -> int:
    """The loop with its witnesses, then the report, whatever ended it."""
    robot, virtual = run.robot, isinstance(run.clock, VirtualClock)
    view = None
    if run.config.view:
        from cosmos_robot.hardware.view import LiveView

        view = LiveView(robot, virtual)
    recorder = _recorder(run, virtual)
    witnesses: list[Witness] = [w for w in (recorder, view, replayed) if w is not None]
    simulated_end: Callable[[], bool] = lambda: bool(getattr(robot, "ended", False))  # noqa: E731
    loop = ControlLoop(
        robot,
        run.asker,
        run.scheduler,
        Gate(robot.limits, None if robot.limits.workspace_low is None else robot.tool),
        run.clock,
        run.settings,
        tuple(witnesses),
        run.alive,
        done=lambda: simulated_end() or (replayed is not None and replayed.done),
        glances=tuple(w.glance for w in (recorder, view) if w is not None),
    )
    try:
        console.print("driving; Ctrl-C stops")
        with contextlib.nullcontext() if virtual else before_others():
            report = loop.run()
    except KeyboardInterrupt:  # before the loop had begun
        report = LoopReport(robot.robot.rate_hz, ended="interrupted")
    except BaseException as error:
        if recorder is not None:  # what led to it is worth keeping
            with contextlib.suppress(CheckpointError):
                recorder.close({**run.notes, "error": f"{type(error).__name__}: {error}"})
        raise
    success = getattr(robot, "success", None)
    show(report, console, virtual)
    if success is not None:
        console.print(f"task: {'success' if success else 'no success'}")
    _write(run.config.json, facts(report) | ({} if success is None else {"success": success}))
    if recorder is not None:
        folder = recorder.close({**run.notes, "success": success, "report": facts(report)})
        told = "nothing" if folder is None else f"{recorder.rows} rows in {folder}, {recorder.lost} ticks lost"
        console.print(f"recorded: {told}")
    if replayed is not None and not replayed.complete:
        console.print("not all rows were sent")
        return _status(report) or FAILED
    return _status(report)


def _status(report: LoopReport) -> int:
    if report.ended == "interrupted":
        return INTERRUPTED
    return 0 if report.ended in ("time is up", "done") and report.sent else FAILED


def _recorder(run: _Run, virtual: bool) -> Recorder | None:
    if run.config.record is None:
        return None
    in_step = _in_step(run.config.robot)
    settings = RecorderSettings(
        run.config.record,
        run.robot.observe(run.settings.instruction).instruction,
        "question" if in_step and not virtual else "tick",
        patient=virtual,
    )
    return Recorder(settings, run.robot.robot, run.robot.position)


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM means what Ctrl-C means: stop the robot and report."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_step(robot: str) -> bool:
    return robot.startswith(SIMULATED) or robot in IN_STEP


def _clock(robot: str, served: bool) -> Clock:
    return VirtualClock() if _in_step(robot) and not served else MonotonicClock()


def _console(json_: Path | None) -> Console:
    return Console(stderr=json_ == SCREEN, highlight=False, soft_wrap=True)


def _show_plan(console: Console, robot: Robot, clock: Clock, lines: list[str]) -> None:
    virtual = isinstance(clock, VirtualClock)
    what = "virtual, so that neither drawing nor the model costs time" if virtual else "the machine's"
    console.print(f"robot: {robot.robot.name} at {robot.robot.rate_hz:g} Hz; clock: {what}")
    for line in lines:
        console.print(line, markup=False)
    show_limits(robot.robot, robot.limits, console)


def _warm_up(console: Console, source: Answers, asker: Asker, robot: Robot, instruction: str, clock: Clock) -> None:
    """Ask once before anything moves, so that a model that cannot answer is found out and its first, slow answer is
    nobody's delay."""
    began = time.monotonic()
    asker.reset()
    _answer(asker, robot, instruction, 0, clock, source.patience_s)
    console.print(f"warm: the first answer took {time.monotonic() - began:.2f} s")


def _answer(asker: Asker, robot: Robot, instruction: str, seed: int, clock: Clock, patience_s: float) -> Any:
    pending = asker.ask(robot.observe(instruction), seed, None, clock.now())
    deadline = time.monotonic() + patience_s
    while (chunk := pending.poll(clock.now())) is None:
        if time.monotonic() > deadline:
            pending.cancel()
            raise WorkerError(f"no answer within {patience_s:g} s; nothing was sent to the robot")
        clock.sleep_until(clock.now() + 0.005)
    return chunk


def _dry_run(console: Console, asker: Asker, robot: Robot, instruction: str, seed: int, clock: Clock) -> int:
    """One chunk through the gate, row after row as if the robot followed exactly; printed, and nothing sent."""
    chunk = _answer(asker, robot, instruction, seed, clock, 120.0)
    gate = Gate(robot.limits, None if robot.limits.workspace_low is None else robot.tool)
    measured = robot.position()
    console.print(f"would send, from {np.array2string(measured, precision=4)}:", markup=False)
    for number, row in enumerate(chunk.values):
        verdict = gate.check(row, measured, 0.0, 1 / robot.robot.rate_hz)
        if verdict.values is None:
            console.print(f"{number:4d}  hold: {verdict.reason}", markup=False)
            continue
        measured = verdict.values if robot.robot.action_reference == "absolute" else measured
        numbers = " ".join(f"{value:9.4f}" for value in verdict.values)
        console.print(f"{number:4d}  {numbers}  {verdict.reason}", markup=False)
    console.print("nothing was sent")
    return 0


def _require_file(path: Path | None) -> None:
    if path is not None and path.is_dir():
        raise InputError(f"json: {path} is a folder; name a file")


def _write(path: Path | None, figures: dict[str, Any]) -> None:
    if path is None:
        return
    text = json.dumps(figures, indent=1)
    if path == SCREEN:
        sys.stdout.write(text + "\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
