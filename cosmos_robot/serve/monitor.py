"""A live table of a running server, in the terminal."""

from __future__ import annotations

import time
from typing import Any

from cosmos_robot.errors import CosmosRobotError
from cosmos_robot.serve.client import PolicyClient


def main_monitor(
    address: str = "tcp://127.0.0.1:5555", every_s: float = 1.0, once: bool = False, token: str = ""
) -> int:
    """Watch a policy server: load, rates, and where the time goes. Ctrl-C ends it.

    Args:
        address: tcp://HOST:PORT.
        every_s: seconds between two looks.
        once: print one table and end.
        token: the server's shared secret.
    """
    from rich.console import Console
    from rich.live import Live

    with PolicyClient(address, timeout_s=5, token=token) as client:
        first = client.stats()
        if once:
            Console().print(stats_table(address, first))
            return 0
        with Live(stats_table(address, first), refresh_per_second=4) as live:
            while True:
                time.sleep(every_s)
                try:
                    live.update(stats_table(address, client.stats()))
                except CosmosRobotError as error:
                    live.update(f"{address}: {error}")


def stats_table(address: str, stats: dict[str, Any]) -> Any:
    """A rich table of a server's ``stats``."""
    from rich.table import Table

    outcomes = ", ".join(f"{count} {name}" for name, count in stats["outcomes"].items()) or "no answers yet"
    title = f"{stats['model']} at {address}: {stats['state']}"
    table = Table("part", "p50 ms", "p95 ms", "p99 ms", title=title, box=None)
    table.caption = f"{stats['per_s']:.1f} answers/s, {stats['waiting']} waiting; {outcomes}"
    for part, numbers in stats["ms"].items():
        table.add_row(part, *(f"{numbers[p]:.1f}" for p in ("p50", "p95", "p99")))
    return table
