"""Compare two results of the same episodes: difference of success rates with interval, exact McNemar test.

    python eval/compare.py sighted.json blind.json

is the same as ``cosmos-robot compare ...``.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # As in libero.py: what lies beside this script must not hide the modules of others.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != _here]

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cosmos_robot.errors import InputError
from cosmos_robot.eval.protocol import protocol_differences
from cosmos_robot.eval.results import RunHeader, read_result
from cosmos_robot.eval.statistics import PairedComparison, compare_paired


def compare_results(a: Path, b: Path) -> dict[str, Any]:
    """Pair the episodes of two result files by task and init state.

    Returns ``total`` and ``per_task`` (task to PairedComparison), ``protocol_differences`` in words, and ``unpaired``,
    the number of episodes that only one file has. Raises InputError if the suites differ or nothing pairs.
    """
    (head_a, records_a), (head_b, records_b) = read_result(a), read_result(b)
    if head_a.protocol.suite != head_b.protocol.suite:
        raise InputError(f"the suites differ: {a} is of {head_a.protocol.suite}, {b} of {head_b.protocol.suite}")
    first, second = ({record.key: record.success for record in records} for records in (records_a, records_b))
    pairs = sorted(first.keys() & second.keys())
    if not pairs:
        raise InputError(f"{a} and {b} have no episode (task and init state) in common")
    tasks = sorted({task for task, _ in pairs})
    return {
        "a": _name(head_a),
        "b": _name(head_b),
        "suite": head_a.protocol.suite,
        "total": _count([(first[k], second[k]) for k in pairs]),
        "per_task": {t: _count([(first[k], second[k]) for k in pairs if k[0] == t]) for t in tasks},
        "instructions": {record.task: record.instruction for record in records_a},
        "protocol_differences": protocol_differences(
            head_a.protocol, head_b.protocol, episodes_may_differ=True, called=("in a", "in b")
        ),
        "unpaired": len(first.keys() ^ second.keys()),
    }


def main_compare(a: Path, b: Path, json: Path | None = None) -> int:
    """Compare two results of eval/libero.py on the episodes they share.

    Args:
        a: first result file.
        b: second result file.
        json: file for the comparison as JSON.
    """
    found = compare_results(a, b)
    print_comparison(found, Console())
    if json:
        plain = found | {
            "total": asdict(found["total"]),
            "per_task": {task: asdict(comparison) for task, comparison in found["per_task"].items()},
        }
        json.write_text(dumps(plain, indent=2) + "\n")
    return 0


def print_comparison(found: dict[str, Any], console: Console) -> None:
    """Per-task table, total, test, and everything in which the two runs were not alike."""
    console.print(f"{found['suite']}: a = {found['a']}, b = {found['b']}", highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("task", "instruction", "a", "b", "only a", "only b", "a - b", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "instruction" else "right")
    for task, comparison in found["per_task"].items():
        table.add_row(str(task), found["instructions"][task], *_cells(comparison))
    table.add_section()
    table.add_row("all", "", *_cells(found["total"]), style="bold")
    console.print(table)
    total = found["total"]
    console.print(f"McNemar exact, two-sided: p = {total.p_value:.3g} over {total.episodes} pairs", highlight=False)
    if found["unpaired"]:
        console.print(f"left out: {found['unpaired']} episodes that only one of the two has", highlight=False)
    for difference in found["protocol_differences"]:
        console.print(f"[yellow]the protocols differ:[/] {difference}", highlight=False)


def _count(pairs: list[tuple[bool, bool]]) -> PairedComparison:
    return compare_paired(*(pairs.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))))


def _cells(c: PairedComparison) -> tuple[str, ...]:
    n = c.episodes
    counts = (f"{c.both + c.only_a}/{n}", f"{c.both + c.only_b}/{n}", str(c.only_a), str(c.only_b))
    return (*counts, f"{c.difference:+.2f}", f"{c.low:+.2f} to {c.high:+.2f}")


def _name(header: RunHeader) -> str:
    return f"{header.checkpoint or header.policy}" + (f" ({header.control})" if header.control else "")


if __name__ == "__main__":
    from cosmos_robot.cli import main

    sys.exit(main(["compare", *sys.argv[1:]]))
