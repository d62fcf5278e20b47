"""What a planner is told and what it returns: frozen values, checked when made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.latent_frames.layout import ValueMode
from cosmos_robot.planning.values import AGGREGATIONS, Aggregation, TieRule, member_calls
from cosmos_robot.types import ActionChunk, Observation, VideoPrediction

MemberSteps = Literal["equal", "spread"]
Judge = Literal["value_model", "policy"]
COUNTS: Mapping[str, bool] = {
    **dict.fromkeys(("n", "futures", "values", "depth"), False),
    **dict.fromkeys(("n_most", "batch", "policy_steps", "world_steps", "value_steps"), True),
}
"""Settings that are whole numbers from 1, and whether each may be None."""


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    """How to search.

    n: candidates, the plain policy's own among them. futures: imagined for each candidate; values: of each future (of
    each candidate where the value reads no future). aggregation, ties: see ``values``. reads: what the value is a
    function of, see ``ValueModel``. judge: the value model, or the value that the policy samples beside its commands,
    which costs nothing more. depth: chunks imagined one after the other; the value is that of the last.
    n_most: adaptive budget, up to as many candidates, n more at a time while the values found so far spread by more
    than disagree_above (standard deviation); n where None. deadline_s: of a decision, unless its caller sets one.
    duplicate_tolerance: chunks that differ nowhere by more, in the robot's units, count as one.
    batch: most candidates in one model call; all of them where None. With a deadline, smaller batches give something
    to choose from earlier.
    policy_steps, world_steps, value_steps: of the sampler, the contract's where None. member_steps: ``equal`` for every
    member of an ensemble, or ``spread`` evenly from 1 to the number given, as published.
    """

    n: int = 8
    futures: int = 3
    values: int = 5
    aggregation: Aggregation = "majority_mean_paper"
    ties: TieRule = "base"
    reads: ValueMode = "value"
    judge: Judge = "value_model"
    depth: int = 1
    n_most: int | None = None
    disagree_above: float = 0.1
    deadline_s: float | None = None
    duplicate_tolerance: float = 0.0
    batch: int | None = None
    policy_steps: int | None = None
    world_steps: int | None = None
    value_steps: int | None = None
    member_steps: MemberSteps = "equal"

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if value is None and COUNTS[name]:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"planner: {name} must be a whole number from 1, got {value!r}")
        words = (
            ("aggregation", AGGREGATIONS),
            ("ties", get_args(TieRule)),
            ("reads", get_args(ValueMode)),
            ("judge", get_args(Judge)),
            ("member_steps", get_args(MemberSteps)),
        )
        for name, known in words:
            if getattr(self, name) not in known:
                raise UnknownNameError(f"planner's {name}", str(getattr(self, name)), known)
        for name in ("disagree_above", "deadline_s", "duplicate_tolerance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"planner: {name} must be a finite number from 0, got {value!r}")
        self._check_together()

    def _check_together(self) -> None:
        if self.n_most is not None and self.n_most < self.n:
            raise InputError(f"planner: n_most={self.n_most} is below n={self.n}; raise it or drop it")
        if self.reads == "q_value" and self.depth > 1:
            raise InputError(f"planner: depth={self.depth} needs futures, which 'q_value' does not read; use depth=1")
        if self.judge == "policy" and (self.reads, self.values) != ("q_value", 1):
            raise InputError(
                f"planner: the policy says one value of its commands, got reads={self.reads!r} and "
                f"values={self.values}; judge=policy goes with reads=q_value and values=1, as in the preset 'own-of-N'"
            )
        if self.aggregation == "lcb" and self.members == 1:
            raise InputError("planner: 'lcb' needs at least 2 values for each candidate; raise futures or values")
        if self.member_steps == "spread" and self.world_steps is None and self.value_steps is None:
            raise InputError("planner: member_steps='spread' needs world_steps or value_steps, the most of a member")
        if self.ties == "published":
            raise InputError("planner: 'published' lets a candidate win that has no value; choose 'first' or 'base'")

    @property
    def members(self) -> int:
        """Values of each candidate."""
        return self.values * (1 if self.reads == "q_value" else self.futures)

    @property
    def text(self) -> str:
        """What ``read_plan`` reads as these settings: those that differ from the defaults, by name."""
        plain = PlannerSettings(n=self.n)
        said = [
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return f"best-of-{self.n}" + (":" + ",".join(said) if said else "")

    def steps_of(self, part: Literal["world", "value"]) -> tuple[int | None, ...]:
        """Sampler steps of each member of the futures of a candidate, or of the values of a future; one for all where
        they are equal."""
        most, count = getattr(self, f"{part}_steps"), self.futures if part == "world" else self.values
        if self.member_steps == "equal" or most is None:
            return (most,)
        return tuple(steps for steps, _ in member_calls(most, count, 0))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "best-of": {},
    "published-of": {
        "policy_steps": 10,
        "world_steps": 5,
        "value_steps": 5,
        "member_steps": "spread",
        "aggregation": "majority_mean",
    },
    "quick-of": {"world_steps": 2, "value_steps": 1},
    "own-of": {"judge": "policy", "reads": "q_value", "values": 1},
}
"""``best-of-N`` samples as the contract says. ``published-of-N`` has the steps and the aggregation of Cosmos Policy's
planning on ALOHA. ``quick-of-N`` has as few steps as tell candidates apart, for a CPU: values are means over a frame,
which one step finds nearly as well as many. ``own-of-N`` goes by the values that the policy samples beside its
commands, and imagines nothing."""


def read_plan(text: str) -> PlannerSettings:
    """``best-of-8``, or another of ``PRESETS``; or with settings behind a colon:
    ``best-of-8:futures=1,values=2,aggregation=average``.

    Raises InputError, or UnknownNameError with the nearest setting.
    """
    name, _, rest = text.partition(":")
    kind, _, count = name.rpartition("-")
    if kind not in PRESETS or not count.isdecimal():
        raise InputError(
            f"plan: expected 'best-of-N', such as 'best-of-8', or one of {[f'{p}-N' for p in PRESETS]}, got {text!r}"
        )
    given: dict[str, Any] = {"n": int(count), **PRESETS[kind]}
    known = {f.name: f.type for f in fields(PlannerSettings) if f.name != "n"}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known:
            raise UnknownNameError("planner setting", key, known)
        given[key] = _read(key, value, str(known[key]))
    return PlannerSettings(**given)


def _read(key: str, value: str, kind: str) -> Any:
    try:
        return int(value) if "int" in kind else float(value) if "float" in kind else value
    except ValueError as error:
        raise InputError(f"plan: {key} should be a number, got {value!r}") from error


@dataclass(frozen=True, eq=False)
class Candidate:
    """One proposed chunk and what was found about it.

    request: the decision it belongs to. index: its place among the decision's candidates; 0 is the plain policy's own.
    seed: of its noise. chunk: None if it was never made. values: (futures, values), or (1, values) without futures;
    empty if not scored. score: their aggregate, NaN if there is none. seconds: that its batch took, shared evenly.
    rejected: why it cannot be chosen, empty if it can. duplicate_of: index of the candidate whose values it took over.
    futures: what was imagined, last chunk of each; empty where it came from another process.
    """

    request: int
    index: int
    seed: int
    chunk: ActionChunk | None = None
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    score: float = math.nan
    seconds: float = 0.0
    rejected: str = ""
    duplicate_of: int | None = None
    futures: tuple[VideoPrediction, ...] = ()

    def facts(self) -> dict[str, Any]:
        """As plain values, for logs and over the wire."""
        return {
            "index": self.index,
            "seed": self.seed,
            "score": None if math.isnan(self.score) else self.score,
            "values": [[v if math.isfinite(v) else None for v in row] for row in self.values.tolist()],
            "seconds": self.seconds,
            "rejected": self.rejected,
            "duplicate_of": self.duplicate_of,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """A decision. chosen: the candidate whose chunk is ``chunk``. planned: whether values chose it; where not, it is
    the plain policy's own. why: in words. candidates: all of them, by index. seconds: the whole decision. settings: of
    the search, as ``PlannerSettings.text``."""

    chunk: ActionChunk
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    planned: bool
    why: str
    seconds: float
    settings: str = ""

    @property
    def diversity(self) -> float:
        """How far the candidates' commands lie apart: their standard deviation, averaged over rows and columns."""
        chunks = [c.chunk.values for c in self.candidates if c.chunk is not None]
        return float(np.std(chunks, axis=0).mean()) if chunks else 0.0

    def as_chunk(self) -> ActionChunk:
        """The chunk, with the decision's facts under ``info["plan"]``."""
        facts: Mapping[str, object] = {
            "chosen": self.chosen.index,
            "seed": self.chosen.seed,
            "planned": self.planned,
            "why": self.why,
            "seconds": self.seconds,
            "diversity": self.diversity,
            "settings": self.settings,
            "candidates": [c.facts() for c in self.candidates],
        }
        return replace(self.chunk, info={**self.chunk.info, "plan": facts})


@dataclass(frozen=True, eq=False)
class Task:
    """Candidates to make and score for one moment: the unit of work that executors hand out.

    indices, seeds: of the candidates. seconds_left: from when it is begun; None is as long as it takes. known:
    candidates scored before, whose duplicates need no scoring. committed: as in ``Policy.act``.
    """

    request: int
    observation: Observation
    indices: tuple[int, ...]
    seeds: tuple[int, ...]
    seconds_left: float | None = None
    known: tuple[Candidate, ...] = ()
    committed: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.seeds) or not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"task: expected distinct seeds, one for each index, got {self.indices} and {self.seeds}")

    def pieces(self, size: int) -> Iterator[Task]:
        """Tasks of at most ``size`` candidates each, in order."""
        for at in range(0, len(self.seeds), size):
            yield replace(self, indices=self.indices[at : at + size], seeds=self.seeds[at : at + size])

    def lost(self, why: str) -> list[Candidate]:
        """Its candidates, none of them made."""
        return [Candidate(self.request, i, s, rejected=why) for i, s in zip(self.indices, self.seeds, strict=True)]


def candidate_seeds(seed: int, count: int) -> tuple[int, ...]:
    """``count`` distinct seeds of 32 bits, the first of them ``seed`` itself: the plain policy's. More of them begin
    with the same ones."""
    found = [int(seed)]
    for i in range(1, count):
        found.append(_another(seed, i, found))
    return tuple(found)


def proposal_seed(seed: int, number: int, depth: int) -> int:
    """Of the policy's next chunk, ``depth`` chunks into future ``number`` of the candidate with ``seed``."""
    return _part(seed, 1, number, depth)


def future_seed(seed: int, number: int, depth: int = 0) -> int:
    """Of future ``number`` of the candidate with ``seed``, ``depth`` chunks on."""
    return _part(seed, 2, number, depth)


def value_seeds(seed: int, number: int, count: int) -> list[int]:
    """Of the ``count`` values of future ``number`` of the candidate with ``seed``."""
    return [_part(seed, 3, number, i) for i in range(count)]


def _part(seed: int, kind: int, number: int, which: int) -> int:
    return int(np.random.SeedSequence([seed, kind, number, which]).generate_state(1)[0])


def _another(seed: int, i: int, taken: list[int]) -> int:
    attempt = 0
    while True:
        found = int(np.random.SeedSequence([seed, 0, i, attempt]).generate_state(1)[0])
        if found not in taken:
            return found
        attempt += 1
