"""``cosmos-robot COMMAND ...``: names to functions, loaded only when their command is run.

Each command is a typed function somewhere in the package; its flags are the function's parameters. This module parses,
calls, and turns our own errors into a message and an exit status: 2 for a refusal, 130 for a run that was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import cosmos_robot
from cosmos_robot.errors import CosmosRobotError, DependencyError, Interrupted, UnknownNameError
from cosmos_robot.registry import Registry

REFUSED, INTERRUPTED = 2, 130


class Command(NamedTuple):
    """One command.

    path: ``module:function``, whose parameters are the flags. summary: one line for the overview.
    positional: parameters without a default are given by place instead of by flag.
    """

    path: str
    summary: str
    positional: bool = False


COMMANDS = {
    "demo": Command("cosmos_robot.eval.demo:main_demo", "run a few LIBERO episodes and write an HTML report"),
    "eval": Command("cosmos_robot.eval.libero:main_eval", "score a policy on a LIBERO suite, with intervals"),
    "eval-world-model": Command(
        "cosmos_robot.eval.world_model:main_world_model", "whether a world model follows actions, and how well"
    ),
    "compare": Command(
        "cosmos_robot.eval.compare:main_compare", "compare two results on the episodes they share", True
    ),
    "plan": Command("cosmos_robot.eval.plan:main_plan", "decide once by search, and see every candidate"),
    "collect": Command("cosmos_robot.recipes:collect", "record demonstrations, or rollouts of a policy"),
    "train": Command("cosmos_robot.recipes:train", "make a checkpoint by its recipe, from demonstrations to export"),
    "train describe": Command("cosmos_robot.recipes.finetune.commands:describe", "your robot, in words, as a contract"),
    "train lint": Command("cosmos_robot.recipes.finetune.commands:lint", "your recordings, held against that contract"),
    "train stats": Command("cosmos_robot.recipes.finetune.commands:stats", "their statistics, put into the contract"),
    "train plan": Command("cosmos_robot.recipes.finetune.commands:plan", "memory and time, before anything is loaded"),
    "train tokenizer": Command("cosmos_robot.recipes.finetune.commands:tokenizer", "the autoencoder on your pictures"),
    "train overfit": Command("cosmos_robot.recipes.finetune.commands:overfit", "one episode by heart, and replayed"),
    "train run": Command("cosmos_robot.recipes.finetune.commands:run", "the training itself"),
    "train check": Command("cosmos_robot.recipes.finetune.commands:check", "errors on episodes that were held out"),
    "train export": Command("cosmos_robot.recipes.finetune.commands:export", "the checkpoint in the released layout"),
    "train serve": Command("cosmos_robot.recipes.finetune.commands:serve", "serve it, ask it once, compare, stop"),
    "bench policy": Command("cosmos_robot.bench.commands:policy", "one action chunk, ours against diffusers"),
    "bench candidates": Command("cosmos_robot.bench.commands:candidates", "many chunks at once, and their memory"),
    "bench plan": Command("cosmos_robot.bench.commands:plan", "one decision by search, in batches and call by call"),
    "bench encode": Command("cosmos_robot.bench.commands:encode", "one picture through the autoencoder"),
    "bench train-step": Command("cosmos_robot.bench.commands:train_step", "loss and gradients of one batch"),
    "bench serve": Command(
        "cosmos_robot.bench.commands:serve", "round trips to a policy server, ours against openpi's"
    ),
    "bench evaluation": Command("cosmos_robot.eval.speed:main_speed", "what pictures cost the evaluator"),
    "bench loop": Command("cosmos_robot.bench.commands:loop", "a robot driven through a slow network: ticks and path"),
    "bench rendering": Command("cosmos_robot.bench.commands:rendering", "control steps a second, with pictures or not"),
    "data lint": Command("cosmos_robot.data.commands:lint", "what is wrong with a dataset, and its conventions", True),
    "data stats": Command("cosmos_robot.data.commands:stats", "statistics of one or several datasets", True),
    "data convert": Command("cosmos_robot.data.commands:convert", "any dataset as LeRobot v3", True),
    "data show": Command("cosmos_robot.data.commands:show", "contact sheet and plots of a dataset"),
    "ckpt list": Command(
        "cosmos_robot.backbone.cosmos3.commands:ckpt_list", "the shipped and the released checkpoints"
    ),
    "ckpt inspect": Command("cosmos_robot.backbone.cosmos3.commands:ckpt_inspect", "what a checkpoint holds", True),
    "ckpt check": Command("cosmos_robot.backbone.cosmos3.commands:ckpt_check", "load a checkpoint and check all of it"),
    "ckpt convert": Command("cosmos_robot.backbone.cosmos3.commands:ckpt_convert", "native to diffusers and back"),
    "probe": Command("cosmos_robot.envs.probes.command:main_probe", "prove a contract on a simulated robot", True),
    "contract list": Command("cosmos_robot.contract.commands:contract_list", "contracts and robots that are known"),
    "contract show": Command(
        "cosmos_robot.contract.commands:contract_show", "what a contract says, field by field", True
    ),
    "contract diff": Command(
        "cosmos_robot.contract.commands:contract_diff", "what two contracts tell differently, in words", True
    ),
    "contract check": Command(
        "cosmos_robot.envs.fit:contract_check", "whether a checkpoint fits a robot or an environment", True
    ),
    "contract sheet": Command("cosmos_robot.envs.sheet:contract_sheet", "a picture of what a model would see", True),
    "contract schema": Command("cosmos_robot.contract.commands:contract_schema", "JSON schema of a contract"),
    "serve": Command("cosmos_robot.serve.commands:main_serve", "serve a checkpoint to robots and simulators"),
    "drive": Command("cosmos_robot.hardware.commands:main_drive", "drive a robot with a policy, here or served"),
    "replay": Command("cosmos_robot.hardware.commands:main_replay", "send a recorded episode to a robot"),
    "monitor": Command("cosmos_robot.serve.monitor:main_monitor", "watch a running policy server"),
    "doctor": Command("cosmos_robot.cli:doctor", "what this machine has and lacks"),
}

# The modules that an extra brings: their absence is answered with the line to type.
EXTRAS = {
    "torch": "model",
    "diffusers": "model",
    "transformers": "model",
    "safetensors": "model",
    "accelerate": "model",
    "websockets": "model",
    "openpi_client": "dev",
    "openpi_server": "dev",
    "gymnasium": "libero",
    "mujoco": "libero",
    "gym_aloha": "aloha",
    "libero": "libero",
    "robosuite": "libero",
    "av": "libero",
    "matplotlib": "model",
    "pyarrow": "lerobot",
    "lerobot": "lerobot",
    "h5py": "lerobot",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    grouped = bool(words) and words[0] in _groups() and words[0] not in COMMANDS
    group = words.pop(0) if grouped and words[1:2] in ([], ["-h"], ["--help"]) else ""
    if not words or words[0] in ("-h", "--help"):
        print(overview(group))
        return 0
    if words[0] == "--version":
        print(f"cosmos-robot {cosmos_robot.__version__}")
        return 0
    try:
        return _run(*_split(words))
    except Interrupted as error:
        print(f"interrupted: {error}", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except CosmosRobotError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        if error.filename is None:
            raise  # not about a file that somebody named: a fault of ours
        print(f"error: {error.filename}: {error.strerror}; choose another path or free this one", file=sys.stderr)
        return REFUSED


def overview(group: str = "") -> str:
    """The text of ``cosmos-robot --help``, or of ``cosmos-robot GROUP --help``."""
    width = max(map(len, COMMANDS)) + 3
    lines = [f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items() if name.startswith(group)]
    closing = ["cosmos-robot COMMAND --help   tells its flags", "cosmos-robot --version"]
    return "\n".join(["usage: cosmos-robot COMMAND ...", "", *lines, "", *closing])


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and its arguments. Raises UnknownNameError with the nearest names."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            return name, words[count:]
    raise UnknownNameError("command", " ".join(words[: 2 if words[0] in _groups() else 1]), COMMANDS)


def _groups() -> set[str]:
    """The first words of commands of two words."""
    return {name.split()[0] for name in COMMANDS if " " in name}


def conventions(command: Command) -> tuple[Any, ...]:
    """How the flags of a command are named."""
    import tyro

    return (tyro.conf.OmitArgPrefixes, *([tyro.conf.PositionalRequiredArgs] if command.positional else []))


def _run(name: str, arguments: list[str]) -> int:
    import tyro

    command, registry = COMMANDS[name], Registry("command")
    registry.add(name, command.path)
    try:
        function: Any = registry.get(name)
        status = tyro.cli(function, prog=f"cosmos-robot {name}", args=arguments, config=conventions(command))
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module not in EXTRAS:
            raise
        raise DependencyError(
            f"'cosmos-robot {name}' needs {module!r}, which is not installed: pip install "
            f"'cosmos-robot[{EXTRAS[module]}]', or from a checkout: uv sync --all-extras"
        ) from error
    return status if isinstance(status, int) else 0


def doctor() -> int:
    """What this machine has and lacks. Exit status 1 if something that the demo needs is missing."""
    from rich.console import Console
    from rich.table import Table

    from cosmos_robot.doctor import examine, healthy

    checks = examine()
    table = Table(box=None, header_style="bold")
    for heading in ("part", "status", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        colour = "green" if check.status == "ok" else "red" if check.needed else "yellow"
        remedy = check.remedy if check.needed or not check.remedy else f"optional: {check.remedy}"
        table.add_row(check.name, f"[{colour}]{check.status}[/]", check.detail, remedy)
    Console().print(table)
    return 0 if healthy(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
