"""The size budget: what grows past it is split."""

from __future__ import annotations

import ast
from pathlib import Path

FUNCTION_LINES = 80
FILE_LINES = 500
ASSETS_BYTES = 66 * 2**20


def test_files_are_short(root: Path, python_files: list[Path]) -> None:
    lengths = {str(path): len((root / path).read_text().splitlines()) for path in python_files}
    assert not {path: lines for path, lines in lengths.items() if lines > FILE_LINES}


def test_functions_are_short(root: Path, python_files: list[Path]) -> None:
    found = {}
    for path in python_files:
        for node in ast.walk(ast.parse((root / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{path}: {node.name}"] = lines
    assert not found


def test_shipped_assets_are_small(root: Path, repo_files: list[Path]) -> None:
    assets = [path for path in repo_files if path.parts[:2] == ("cosmos_robot", "assets")]
    assert sum((root / path).stat().st_size for path in assets) <= ASSETS_BYTES
