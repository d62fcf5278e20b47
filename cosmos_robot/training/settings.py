"""Checks of a training's settings against the types they are declared with and the ranges they may lie in."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cosmos_robot.errors import InputError, nearest


def check_settings(
    settings: Any,
    what: str,
    *,
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    shares: Sequence[str] = (),
    elsewhere: Sequence[str] = (),
) -> None:
    """Raise InputError naming the first field of the dataclass ``settings`` that is not what it is declared as.

    Words must be among those of their Literal; switches True or False; numbers finite, and where listed by name above
    0, at least 0, or from 0 to 1. None passes where it is declared. Other types are not looked at. what: the settings,
    for messages. elsewhere: names of types that the module of ``settings`` imports for type checkers alone.
    """
    hints = get_type_hints(type(settings), localns=dict.fromkeys(elsewhere, object))
    for field in dataclasses.fields(settings):
        value, where = getattr(settings, field.name), f"{what}: {field.name}"
        if fault := _fault(value, hints[field.name]):
            raise InputError(f"{where} is {value!r}; {fault}")
        if value is None:
            continue
        for names, fits, expected in (
            (positive, lambda x: x > 0, "above 0"),
            (not_negative, lambda x: x >= 0, "at least 0"),
            (shares, lambda x: 0 <= x <= 1, "from 0 to 1"),
        ):
            if field.name in names and not all(map(fits, value if isinstance(value, tuple) else (value,))):
                raise InputError(f"{where} is {value!r}; expected {'each ' * isinstance(value, tuple)}{expected}")


def _fault(value: Any, kind: Any) -> str:
    """What is wrong with ``value`` for the type ``kind``, nothing if it fits."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return ""
        faults = [_fault(value, part) for part in parts if part is not NoneType]
        return "" if not all(faults) else " or ".join(faults)
    if origin is Literal:
        return "" if any(value is p or (isinstance(value, str) and value == p) for p in parts) else _known(value, parts)
    if origin is tuple:
        if not isinstance(value, tuple) or (parts[-1] is not Ellipsis and len(value) != len(parts)):
            return f"expected a tuple{'' if parts[-1] is Ellipsis else f' of {len(parts)}'}"
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return next((f for f in map(_fault, value, kinds) if f), "")
    if kind is bool:
        return "" if isinstance(value, bool) else "expected True or False"
    if kind is int:
        return "" if _is(value, numbers.Integral) else "expected a whole number"
    if kind is float:
        return "" if _is(value, numbers.Real) and math.isfinite(value) else "expected a finite number"
    return ""


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _known(value: Any, words: Sequence[Any]) -> str:
    near = nearest(str(value), map(str, words))
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"expected {' or '.join(repr(word) for word in words)}{hint}"
