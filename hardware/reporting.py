"""A run of the control loop in figures and in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cosmos_robot.contract import RobotSpec
from cosmos_robot.hardware.gate import Limits
from cosmos_robot.hardware.loop import LoopReport

WORDS_SHOWN = 20


def facts(report: LoopReport) -> dict[str, Any]:
    """``report`` as plain numbers and text, for JSON. Times in milliseconds where the name says so."""
    latencies = np.array(report.latencies_s) * 1e3
    return {
        "ended": report.ended,
        "rate_hz": report.rate_hz,
        "ticks": report.ticks,
        "missed_ticks": report.missed_ticks,
        "sent": report.sent,
        **{f"jitter_p{q}_ms": report.jitter_ms(q) for q in (50, 99, 100)},
        "jitter_histogram": report.histogram(),
        "holds": dict(report.holds),
        "interventions": dict(report.interventions),
        "robot_notes": dict(report.notes),
        "asked": report.asked,
        "answered": report.answered,
        "lost": report.lost,
        "latency_ms": {f"p{q}": float(np.percentile(latencies, q)) for q in (50, 99)} if len(latencies) else {},
        "faults": report.faults,
        "words": report.words,
    }


def show(report: LoopReport, console: Console, virtual: bool = False) -> None:
    """Print the report. virtual: the clock was, so that its times measure nothing."""
    found, clock = facts(report), " (virtual clock)" if virtual else ""
    lines = [
        ("ended", report.ended),
        (
            "ticks",
            f"{report.ticks} at {report.rate_hz:g} Hz, {report.missed_ticks} missed, {report.sent} commands sent",
        ),
        (
            f"jitter{clock}",
            ", ".join(f"{n} {found[f'jitter_p{q}_ms']:.2f} ms" for n, q in (("p50", 50), ("p99", 99), ("max", 100))),
        ),
        ("", ", ".join(f"{label}: {count}" for label, count in found["jitter_histogram"].items() if count)),
        ("answers", f"{report.answered} of {report.asked} asked, {report.lost} lost"),
        (
            f"latency{clock}",
            ", ".join(f"{name} {value:.0f} ms" for name, value in found["latency_ms"].items()) or "none seen",
        ),
        ("holds", _counted(found["holds"])),
        ("gate", _counted(found["interventions"])),
        ("robot", f"{report.faults} faults; notes: {_counted(found['robot_notes'])}"),
    ]
    table = Table(box=None, show_header=False)
    for row in lines:
        table.add_row(*row)
    console.print(table)
    for word in report.words[:WORDS_SHOWN]:
        console.print(f"  {word}", markup=False)
    if len(report.words) > WORDS_SHOWN:
        console.print(f"  and {len(report.words) - WORDS_SHOWN} more; --json keeps them")


def show_limits(spec: RobotSpec, limits: Limits, console: Console) -> None:
    """Print what the gate lets through, dimension by dimension, in the units of the robot."""
    units = [f.unit for f in spec.action for _ in range(f.width)]
    table = Table(box=None, header_style="bold")
    for heading in ("command", "unit", "low", "high", "step", "per second", "first", "jump"):
        table.add_column(heading)
    parts = (limits.low, limits.high, limits.max_step, limits.max_rate, limits.max_first, limits.max_jump)
    for i, name in enumerate(limits.names):
        numbers = [f"{part[i]:.4g}" if np.isfinite(part[i]) else "-" for part in parts]
        table.add_row(name, units[i], *numbers)
    console.print(table)
    box = "" if limits.workspace_low is None else f"; tool within {limits.workspace_low} to {limits.workspace_high} m"
    console.print(f"observations older than {limits.max_age_s:g} s are not acted on{box}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in sorted(counts.items(), key=lambda c: -c[1])) or "none"
