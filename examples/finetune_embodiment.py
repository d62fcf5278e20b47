"""From recordings of a robot to a served policy: all stages of ``cosmos-robot train`` in their order.

    python examples/finetune_embodiment.py DESCRIPTION.toml --out run/
    python examples/finetune_embodiment.py --smoke --out run/

``--smoke`` records a few demonstrations of PushT first and trains for moments only: it shows that every stage works,
not that the policy does. Run again, either goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
SMOKE_EPISODES, SMOKE_SEED = 8, 900
SMALLER = {
    'path = "../runs/pusht-demos"': 'path = "demos"',
    "stride = 1 ": "stride = 4 ",
    "steps = 5000": "steps = 40",
    "steps = 400\n": "steps = 10\n",
    "steps = 200": "steps = 80",
    "batch = 64": "batch = 16",
    "warmup = 100": "warmup = 5",
}
"""What the smoke run changes in examples/pusht.toml."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("description", type=Path, nargs="?", help="a .toml or .py file, see docs/finetune.md")
    parser.add_argument("--out", type=Path, required=True, help="folder of all stages")
    parser.add_argument("--smoke", action="store_true", help="a few PushT demonstrations instead of a description")
    options = parser.parse_args()
    if options.smoke == (options.description is not None):
        parser.error("give either a description or --smoke")

    from cosmos_robot.errors import CosmosRobotError
    from cosmos_robot.recipes.finetune.commands import everything

    try:
        everything(smoke(options.out) if options.smoke else options.description, options.out)
    except CosmosRobotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def smoke(out: Path) -> Path:
    """A few demonstrations and a description of them, in ``out``."""
    from cosmos_robot.envs.pusht_demos import record_demos

    out.mkdir(parents=True, exist_ok=True)
    if not (out / "demos").is_dir():
        print(f"recording {SMOKE_EPISODES} demonstrations of PushT in {out / 'demos'}")
        record_demos(out / "demos", SMOKE_EPISODES, first_seed=SMOKE_SEED)
    text = (EXAMPLES / "pusht.toml").read_text()
    for normal, smaller in SMALLER.items():
        if normal not in text:
            raise SystemExit(f"examples/pusht.toml no longer says {normal!r}")
        text = text.replace(normal, smaller)
    description = out / "pusht.toml"
    description.write_text(text)
    return description


if __name__ == "__main__":
    sys.exit(main())
