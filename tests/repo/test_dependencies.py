"""Dependencies point downwards only: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

CORE = "core"
MAY_IMPORT = {
    CORE: set(),
    "envs": {CORE},
    "policies": {CORE},
    "planning": {CORE, "policies"},
    "hardware": {CORE, "envs", "policies"},
    "eval": {CORE, "envs", "policies", "planning", "hardware"},
}
# The command line, the recipes and the commands of benchmarks and serving put the parts together, so they see all.
COMPOSERS = ("cosmos_robot.cli", "cosmos_robot.recipes", "cosmos_robot.bench.commands", "cosmos_robot.serve.commands")


def layer(module: str) -> str:
    part = module.removeprefix("cosmos_robot").lstrip(".").split(".")[0]
    return part if part in MAY_IMPORT else CORE


def imported(source: str, module: str, is_package: bool) -> set[str]:
    """Absolute names of the modules that ``source`` imports, inside functions too; typing-only imports count."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, base]).rstrip(".")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "cosmos_robot"}


def forbidden(module: str, source: str, is_package: bool) -> list[str]:
    own = layer(module)
    allowed = MAY_IMPORT[own] | {own}
    return sorted(name for name in imported(source, module, is_package) if layer(name) not in allowed)


def test_no_module_imports_upwards(root: Path, modules: dict[str, Path]) -> None:
    found = {}
    for module, path in modules.items():
        if not module.startswith(COMPOSERS):
            wrong = forbidden(module, (root / path).read_text(), path.name == "__init__.py")
            if wrong:
                found[str(path)] = wrong
    assert not found


def test_mapped_folders_are_imported_by_their_full_names(root: Path, python_files: list[Path]) -> None:
    """``import envs`` would work from the checkout and nowhere else."""
    found = []
    for path in python_files:
        for node in ast.walk(ast.parse((root / path).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found += [f"{path}: {name}" for name in names if name.split(".")[0] in MAY_IMPORT]
    assert not found


def test_the_rule_sees_every_form_of_import() -> None:
    for line in (
        "import cosmos_robot.envs",
        "from cosmos_robot import envs",
        "from cosmos_robot.envs.base import RobotEnv",
        "def f():\n    from ..envs import make",
    ):
        assert forbidden("cosmos_robot.data.x", line, is_package=False), line
    assert forbidden("cosmos_robot.data", "from ..envs import make", is_package=True)
    assert not forbidden("cosmos_robot.eval.runner", "from cosmos_robot.envs import make", is_package=False)
