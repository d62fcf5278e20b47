"""What ``data lint`` has to say: findings (something is wrong) and guesses (what a convention looks like)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One fault.

    code: a fixed word, such as ``time-gap``. severity: ``error`` for what would be trained or read wrongly.
    where: episode, row, column or file. what: got and expected. remedy: what to do about it.
    """

    code: str
    severity: Severity
    where: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Guess:
    """What a convention looks like, from evidence in the numbers.

    topic: for instance ``gripper``. answer: in words, ``unknown`` where the evidence does not decide.
    sure: 0 (a coin toss) to 1. evidence: the figures behind it.
    """

    topic: str
    answer: str
    sure: float
    evidence: str


@dataclass(frozen=True)
class Report:
    """What a dataset holds, what is wrong with it and what its conventions look like."""

    path: str
    layout: str
    facts: dict[str, Any]
    findings: tuple[Finding, ...]
    guesses: tuple[Guess, ...]

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {**asdict(self), "errors": self.errors, "warnings": len(self.findings) - self.errors}
