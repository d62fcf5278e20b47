"""The gate between a policy and a robot: what passes is finite, in range, near enough and fresh enough.

``judge`` is a pure function of one command and what is known about the moment; ``Gate`` remembers the last command and
counts. A command outside a step, rate or position limit is moved to the limit, alike in both directions, and said so;
one that is not finite, of another width, too far from where the robot is, or too old, is not sent at all: hold. Euler
angles are compared the short way round: a tool that points straight down turns from pi to -pi without moving.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import FieldSpec, RobotSpec
from cosmos_robot.errors import InputError

Vector = NDArray[np.float64]
Rule = Literal["width", "finite", "dead-man", "stale", "first action", "jump", "step", "rate", "position", "workspace"]
UNLIMITED: Final = math.inf
"""Say this where a limit is left out on purpose; None and NaN are refused."""


def columns(spec: RobotSpec) -> tuple[str, ...]:
    """A name for each action dimension: the field's, with its index where the field has several."""
    return tuple(f.name if f.width == 1 else f"{f.name}[{i}]" for f in spec.action for i in range(f.width))


@dataclass(frozen=True)
class Limits:
    """Limits in the units of a robot's command; each a mapping from action field to one number or one a dimension.

    max_step: largest change from one command to the next. max_rate: the same per second, whatever the control rate.
    max_first: largest distance of the first command after standstill from where the robot is. max_jump: the same for
    every later command. low, high: the range of a command. max_age_s: age of the observation behind a command, seconds.
    workspace_low, workspace_high: a box for the tool, metres, checked where the tool's position is known.

    Build one with ``Limits.of``; every number is checked there. For a robot commanded by changes, the change itself is
    what max_step and max_rate limit, and max_first and max_jump do not apply.

    turns: (D,) which dimensions are angles that come round, Euler angles of absolute commands.
    """

    names: tuple[str, ...]
    low: Vector
    high: Vector
    max_step: Vector
    max_rate: Vector
    max_first: Vector
    max_jump: Vector
    max_age_s: float
    absolute: bool
    turns: NDArray[np.bool_]
    workspace_low: Vector | None = None
    workspace_high: Vector | None = None

    @classmethod
    def of(
        cls,
        spec: RobotSpec,
        *,
        max_step: Mapping[str, object],
        max_rate: Mapping[str, object],
        max_first: Mapping[str, object],
        max_jump: Mapping[str, object],
        low: Mapping[str, object] | None = None,
        high: Mapping[str, object] | None = None,
        max_age_s: float = 3.0,
        workspace: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Limits:
        """Limits for ``spec``. low and high default to the ranges in the spec. Raises InputError for a field that is
        missing, unknown, not a number, NaN, zero or negative; say ``UNLIMITED`` where no limit is meant."""
        spec_low, spec_high = _spec_range(spec)
        low_vector = spec_low if low is None else _vector(spec, "low", low, positive=False)
        high_vector = spec_high if high is None else _vector(spec, "high", high, positive=False)
        if not (low_vector < high_vector).all():
            bad = int(np.argmin(low_vector < high_vector))
            raise InputError(
                f"limit low of {columns(spec)[bad]!r} is {low_vector[bad]}, not below high {high_vector[bad]}"
            )
        box_low, box_high = _box(workspace)
        return cls(
            names=columns(spec),
            low=low_vector,
            high=high_vector,
            max_step=_vector(spec, "max_step", max_step),
            max_rate=_vector(spec, "max_rate", max_rate),
            max_first=_vector(spec, "max_first", max_first),
            max_jump=_vector(spec, "max_jump", max_jump),
            max_age_s=_positive("max_age_s", max_age_s),
            absolute=spec.action_reference == "absolute",
            turns=np.array([_comes_round(spec, f) for f in spec.action for _ in range(f.width)], dtype=bool),
            workspace_low=box_low,
            workspace_high=box_high,
        )

    def beside(self, place: Vector, command: Vector) -> Vector:
        """(D,) ``place`` in other words: its angles a turn further or less where that is nearer to ``command``'s."""
        around = np.clip(np.round((command - place) / (2 * np.pi)), -1, 1)
        return np.where(self.turns, place + 2 * np.pi * np.where(np.isfinite(around), around, 0.0), place)

    def way(self, place: Vector, command: Vector) -> Vector:
        """(D,) from ``place`` to ``command``, angles the short way round."""
        return np.asarray(command - self.beside(place, command))


def _comes_round(spec: RobotSpec, field: FieldSpec) -> bool:
    return spec.action_reference == "absolute" and field.rotation == "euler_xyz" and field.unit == "rad"


def _spec_range(spec: RobotSpec) -> tuple[Vector, Vector]:
    low = [v for f in spec.action for v in (f.low or (spec.action_low,) * f.width)]
    high = [v for f in spec.action for v in (f.high or (spec.action_high,) * f.width)]
    return (
        np.array([-UNLIMITED if v is None else v for v in low]),
        np.array([UNLIMITED if v is None else v for v in high]),
    )


def _vector(spec: RobotSpec, what: str, given: Mapping[str, object], positive: bool = True) -> Vector:
    if not isinstance(given, Mapping):
        raise InputError(f"limit {what}: expected a mapping from action field to number, got {given!r}")
    known = [f.name for f in spec.action]
    if set(given) != set(known):
        raise InputError(
            f"limit {what}: expected the action fields {known}, got {list(given)}; say UNLIMITED for no limit"
        )
    parts = []
    for f in spec.action:
        value = given[f.name]
        numbers = list(value) if isinstance(value, list | tuple | np.ndarray) else [value] * f.width
        if len(numbers) != f.width:
            raise InputError(f"limit {what} of {f.name!r}: expected {f.width} numbers, got {len(numbers)}")
        check = _positive if positive else _number
        parts += [check(f"{what} of {f.name!r}", v) for v in numbers]
    return np.array(parts, dtype=np.float64)


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
        raise InputError(f"limit {what}: expected a number, got {value!r}")
    return float(value)


def _positive(what: str, value: object) -> float:
    number = _number(what, value)
    if number <= 0:
        raise InputError(f"limit {what}: expected a number over zero, got {value!r}; a limit of zero would never move")
    return number


def _box(workspace: tuple[ArrayLike, ArrayLike] | None) -> tuple[Vector | None, Vector | None]:
    if workspace is None:
        return None, None
    low, high = (np.asarray(side, dtype=np.float64) for side in workspace)
    if low.shape != (3,) or high.shape != (3,) or not (low < high).all():
        raise InputError(f"limit workspace: expected two corners (3,), the first below the second, got {workspace}")
    return low, high


@dataclass(frozen=True)
class Intervention:
    """One dimension (or the whole command) that did not pass as asked."""

    rule: Rule
    name: str
    asked: float
    limit: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.name} asked {self.asked:.4g}, limit {self.limit:.4g}"


@dataclass(frozen=True)
class Verdict:
    """values: (D,) to send, or None: hold. interventions: every limit that was met."""

    values: Vector | None
    interventions: tuple[Intervention, ...] = ()

    @property
    def reason(self) -> str:
        """Why nothing is sent, or what was changed; empty if the command passed as it was."""
        return "; ".join(map(str, self.interventions))


@dataclass(frozen=True)
class Moment:
    """What is known when a command is judged.

    measured: (D,) where the robot is, laid out as a command. last: (D,) the command before, None after standstill.
    period_s: time since it. age_s: age of the observation behind the command. alive: the dead-man's answer.
    """

    measured: Vector
    last: Vector | None
    period_s: float
    age_s: float
    alive: bool = True


def judge(
    command: ArrayLike,
    limits: Limits,
    moment: Moment,
    tool: Callable[[Vector], Vector] | None = None,
) -> Verdict:
    """What of ``command`` (D,) may be sent. tool: from a command to the tool's position (3,), metres."""
    asked = _as_numbers(command)
    refusal = _refuse(asked, limits, moment)
    if refusal:
        return Verdict(None, refusal)
    assert asked is not None
    values, found = asked, []
    for rule, low, high in _bounds(asked, limits, moment):
        clipped = np.clip(values, low, high)
        found += _changed(rule, limits.names, values, clipped)
        values = clipped
    over = limits.turns & (np.abs(values) > np.pi) & (np.abs(asked) <= np.pi)
    values = np.where(over, values - 2 * np.pi * np.sign(values), values)
    outside = _outside(values, limits, tool)
    return Verdict(None, (*found, *outside)) if outside else Verdict(values, tuple(found))


def _as_numbers(command: ArrayLike) -> Vector | None:
    """None where the command holds anything but numbers: text and truth values are not quietly turned into them."""
    raw = np.asarray(command)
    if raw.dtype.kind not in "iuf" or (
        isinstance(command, list | tuple) and any(isinstance(v, bool | str) for v in command)
    ):
        return None
    return np.array(raw, dtype=np.float64)


def _refuse(asked: Vector | None, limits: Limits, moment: Moment) -> tuple[Intervention, ...]:
    width = len(limits.names)
    if not moment.alive:
        return (Intervention("dead-man", "command", 0.0, 1.0),)
    if asked is None:
        return (Intervention("finite", "command", math.nan, 0.0),)
    if asked.shape != (width,):
        return (Intervention("width", "command", float(asked.size), float(width)),)
    if not np.isfinite(asked).all():
        return tuple(
            Intervention("finite", limits.names[i], float(asked[i]), 0.0) for i in np.flatnonzero(~np.isfinite(asked))
        )
    if not moment.age_s <= limits.max_age_s:
        return (Intervention("stale", "observation", moment.age_s, limits.max_age_s),)
    if not limits.absolute:
        return ()
    rule: Rule = "first action" if moment.last is None else "jump"
    limit = limits.max_first if moment.last is None else limits.max_jump
    distance = limits.way(moment.measured, asked)
    far = ~(np.abs(distance) <= limit)  # written so that a NaN measurement counts as far
    return tuple(Intervention(rule, limits.names[i], float(distance[i]), float(limit[i])) for i in np.flatnonzero(far))


def _bounds(asked: Vector, limits: Limits, moment: Moment) -> list[tuple[Rule, Vector, Vector]]:
    before = moment.measured if moment.last is None else moment.last
    centre = limits.beside(before, asked) if limits.absolute else np.zeros(len(limits.names))
    reach = limits.max_rate * moment.period_s
    return [
        ("position", limits.low, limits.high),
        ("step", centre - limits.max_step, centre + limits.max_step),
        ("rate", centre - reach, centre + reach),
    ]


def _changed(rule: Rule, names: tuple[str, ...], before: Vector, after: Vector) -> list[Intervention]:
    moved = np.flatnonzero(np.abs(before - after) > 1e-9 * (1 + np.abs(before)))
    return [Intervention(rule, names[i], float(before[i]), float(after[i])) for i in moved]


def _outside(values: Vector, limits: Limits, tool: Callable[[Vector], Vector] | None) -> tuple[Intervention, ...]:
    if limits.workspace_low is None or limits.workspace_high is None or tool is None:
        return ()
    place = tool(values)
    nearest = np.clip(place, limits.workspace_low, limits.workspace_high)
    return tuple(_changed("workspace", ("tool x", "tool y", "tool z"), place, nearest))


@dataclass
class Gate:
    """``judge`` with a memory: the last command, and how often each rule met each dimension.

    tool: from a command to the tool's position, for robots that are commanded by joints and have a workspace limit.
    """

    limits: Limits
    tool: Callable[[Vector], Vector] | None = None
    counts: Counter[tuple[Rule, str]] = field(default_factory=Counter)
    passed: int = 0
    clamped: int = 0
    held: int = 0
    _last: Vector | None = None

    def __post_init__(self) -> None:
        if self.limits.workspace_low is not None and self.tool is None:
            raise InputError("the limits hold a workspace, so the gate needs `tool`: from a command to a position")

    def check(self, command: ArrayLike, measured: Vector, age_s: float, period_s: float, alive: bool = True) -> Verdict:
        """Judge one command. period_s: the control period; a late tick does not license a larger step, since a stall of
        a second is not a second's worth of motion."""
        moment = Moment(measured, self._last, period_s, age_s, alive)
        verdict = judge(command, self.limits, moment, self.tool)
        self.counts.update((i.rule, i.name) for i in verdict.interventions)
        if verdict.values is None:
            self.held += 1
            self.rest()
        else:
            self.passed += 1
            self.clamped += bool(verdict.interventions)
            self._last = verdict.values
        return verdict

    def rest(self) -> None:
        """The robot stands: the next command is a first one."""
        self._last = None

    @property
    def clamped_share(self) -> float:
        """Share of the commands sent that were moved to a limit."""
        return self.clamped / self.passed if self.passed else 0.0
