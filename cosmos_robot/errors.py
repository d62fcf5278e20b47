"""Every error this package raises on purpose.

A message says what was got, what was expected and what to do about it. Errors are raised, never returned as data.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names in ``known`` that ``name`` may be a slip of, the likeliest first; empty where none is like it."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)


class CosmosRobotError(Exception):
    """Base of all errors below."""


class UnknownNameError(CosmosRobotError, KeyError):
    """A name that no registry holds; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        near = nearest(name, known, 3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known) or 'none'}"
        self.message = f"unknown {kind} {name!r}; {hint}"
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr
        return self.message

    def __reduce__(self) -> tuple[Callable[[str], UnknownNameError], tuple[str]]:
        return _unknown_name, (self.message,)  # workers send errors, and a message is no kind, name and known names


def _unknown_name(message: str) -> UnknownNameError:
    error = UnknownNameError.__new__(UnknownNameError, message)
    error.message = message
    return error


class ContractError(CosmosRobotError, ValueError):
    """Two ends disagree, or a contract is missing or malformed; the message names the field."""


class InputError(CosmosRobotError, ValueError):
    """An argument, array or file whose shape, type or range is not what was asked for."""


class CheckpointError(CosmosRobotError):
    """A checkpoint or dataset folder that is missing, half-written or of another layout."""


class TrainingError(CosmosRobotError, ArithmeticError):
    """A training whose numbers are no longer finite; the message names the step and what was learnt there."""


class DependencyError(CosmosRobotError, ImportError):
    """An optional part is not installed; the message says which extra or system package brings it."""


class RenderError(CosmosRobotError, RuntimeError):
    """No picture can be drawn on this machine, or it was asked for after the simulator had moved on."""


class WireError(CosmosRobotError, ValueError):
    """A message that cannot be read, or a value that may not be sent."""


class WorkerError(CosmosRobotError, RuntimeError):
    """A process that works for us died, hangs, or met an error that is none of the above."""


class RobotError(CosmosRobotError, RuntimeError):
    """A robot cannot be reached, refuses a command, or stopped by itself; the message says how to go on."""


class Interrupted(CosmosRobotError):
    """A long job was stopped by the user; what it had is saved and the message says how to resume."""
