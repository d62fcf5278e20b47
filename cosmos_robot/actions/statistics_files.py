"""Statistics as other projects publish them in JSON.

A block is an object that holds some of mean, std, min, max, q01, q99 as lists (and maybe a count); a file holds one
block, or several under names, nested to any depth: Cosmos 3's ``global`` and ``global_raw``, LeRobot's features,
openpi's ``norm_stats``, OpenVLA's data sets. Cosmos Policy writes flat names such as ``actions_min``; they are read as
the block ``actions``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cosmos_robot.contract import NEEDED_STATISTICS, NormalizationMethod, Statistics
from cosmos_robot.errors import InputError, UnknownNameError

COLUMNS: Final = ("mean", "std", "min", "max", "q01", "q99")
PREFIXED: Final = re.compile(rf"(.+)_({'|'.join(COLUMNS)})")
ALONE: Final = ""
"""Name of the only block of a flat file."""

COSMOS3_BLOCKS: Final = ("global", "global_raw")
PLACEHOLDER: Final = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q99": 1.0}
"""What Cosmos 3's ``global`` block holds for rotation columns that its method leaves alone."""


def default_block(method: NormalizationMethod) -> str:
    """The block of Cosmos 3's files that ``method`` reads: ``global_raw`` for those that normalise rotations too."""
    return "global_raw" if "_rot" in method else "global"


def read_blocks(path: Path) -> dict[str, Statistics]:
    """Every block of the JSON file, by name. Raises InputError if it holds none, or is not such a file."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file of statistics: {error}") from error
    blocks = blocks_of(content)
    if not blocks:
        raise InputError(f"{path}: no statistics; expected lists under some of {', '.join(COLUMNS)}")
    return blocks


def blocks_of(content: Any, name: str = ALONE) -> dict[str, Statistics]:
    """Every block of parsed JSON, by its keys joined with '/'. Raises InputError for a block whose columns disagree."""
    if not isinstance(content, Mapping):
        return {}
    own = {key: value for key, value in content.items() if key in COLUMNS and isinstance(value, list)}
    if own:
        return {name: _statistics(name, own, content.get("count", content.get("num_transitions")))}
    prefixed: dict[str, dict[str, list[float]]] = {}
    blocks: dict[str, Statistics] = {}
    for key, value in content.items():
        found = PREFIXED.fullmatch(key) if isinstance(value, list) else None
        if found:
            prefixed.setdefault(found[1], {})[found[2]] = value
        blocks |= blocks_of(value, f"{name}/{key}" if name else key)
    return blocks | {key: _statistics(key, columns, None) for key, columns in prefixed.items()}


def choose_block(
    blocks: Mapping[str, Statistics], *, method: NormalizationMethod, key: str | None = None
) -> Statistics:
    """The block that ``method`` normalises with.

    key: its name. Without one it is the only block there is, or the one that Cosmos 3 reads for the method.
    Raises UnknownNameError for another name; InputError, listing the choices, where several blocks fit, where a
    statistic that the method needs is not recorded, and for placeholder statistics of rotations that it would use.
    """
    name = _named(blocks, method, key)
    chosen = blocks[name]
    shown = f"block {name!r}" if name else "the statistics"
    missing = [column for column in NEEDED_STATISTICS[method] if column not in chosen.recorded]
    if missing:
        usable = [m for m, needed in NEEDED_STATISTICS.items() if needed and set(needed) <= set(chosen.recorded)]
        raise InputError(
            f"{shown}: {', '.join(missing)} not recorded, which {method} needs; recorded are "
            f"{', '.join(chosen.recorded)}, enough for {', '.join(usable) or 'no method'}"
        )
    invented = placeholder_dimensions(chosen)
    if invented and default_block(method) != "global":
        raise InputError(
            f"{shown}: dimensions {invented} hold placeholders (mean 0, std 1, range -1 to 1), no measurement, and "
            f"{method} would use them; take the block 'global_raw'"
        )
    return chosen


def placeholder_dimensions(statistics: Statistics) -> list[int]:
    """Dimensions whose every statistic is a placeholder; none can be told where mean and std are not recorded."""
    if not {"mean", "std"} <= set(statistics.recorded):
        return []
    columns = {name: statistics.column(name) for name in statistics.recorded}
    return [
        i for i in range(statistics.width) if all(column[i] == PLACEHOLDER[name] for name, column in columns.items())
    ]


def _named(blocks: Mapping[str, Statistics], method: NormalizationMethod, key: str | None) -> str:
    # Cosmos 3 reads a flat file under either of its block names.
    flat = ALONE in blocks and len(blocks) == 1
    if key is not None:
        if key in blocks:
            return key
        if flat and key in COSMOS3_BLOCKS:
            return ALONE
        raise UnknownNameError("statistics block", key, blocks)
    if len(blocks) == 1 and (flat or next(iter(blocks)) not in COSMOS3_BLOCKS):
        return next(iter(blocks))
    wanted = default_block(method)
    if wanted in blocks and set(blocks) <= set(COSMOS3_BLOCKS):
        return wanted
    raise InputError(
        f"statistics: which block? name one of {', '.join(map(repr, blocks))} ({method} fits no one alone)"
    )


def _statistics(name: str, columns: Mapping[str, list[float]], count: Any) -> Statistics:
    counted = count[0] if isinstance(count, list) and len(count) == 1 else count
    rows = counted if isinstance(counted, int) and not isinstance(counted, bool) and counted > 0 else None
    try:
        return Statistics(count=rows, **{key: tuple(value) for key, value in columns.items()})
    except (ValidationError, TypeError, ValueError) as error:
        raise InputError(f"statistics block {name or '(alone)'!r}: {error}") from error
