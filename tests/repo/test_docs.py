"""The documents name things that exist, and the map leaves no package out."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from command_lines import parser_of

from cosmos_robot.cli import COMMANDS

CODE = re.compile(r"`([^`\n]+)`")


def named_paths(text: str) -> set[str]:
    """What looks like a file or a folder of this repository among the inline code of a document."""
    found = set()
    for code in CODE.findall(re.sub(r"```.*?```", "", text, flags=re.S)):
        path = code.rstrip("/")
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*", path) and ("/" in code or re.search(r"\.(py|md|sh|toml|json)$", path)):
            found.add(path)
    return found


@pytest.fixture(scope="module")
def documents(root: Path, repo_files: list[Path]) -> dict[str, str]:
    return {str(path): (root / path).read_text() for path in repo_files if path.suffix == ".md"}


def test_files_and_folders_of_the_map_exist(documents: dict[str, str], root: Path) -> None:
    paths = named_paths(documents["docs/architecture.md"])
    assert paths
    assert not sorted(path for path in paths if not (root / path).exists())


def test_links_between_documents_lead_somewhere(documents: dict[str, str], root: Path) -> None:
    broken = []
    for document, text in documents.items():
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in target and not (root / document).parent.joinpath(target).exists():
                broken.append(f"{document}: {target}")
    assert not broken


def test_the_map_names_every_package(documents: dict[str, str], modules: dict[str, Path]) -> None:
    paths = named_paths(documents["docs/architecture.md"])
    packages = {str(path.parent) for path in modules.values() if path.name == "__init__.py"}
    assert not sorted(packages - paths)


def test_every_folder_of_modules_is_a_package(modules: dict[str, Path], root: Path) -> None:
    assert not sorted(str(path) for path in modules.values() if not (root / path).with_name("__init__.py").exists())


def test_commands_in_the_documents_are_accepted(documents: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With their options, as far as those are known without running anything."""
    tried, refused = 0, []
    for document, text in documents.items():
        for line in re.findall(r"^(?:uv run (?:--all-extras )?)?(cosmos-robot .+)$", text.replace("\\\n", " "), re.M):
            words = shlex.split(line, comments=True)[1:]
            if words[:1] in (["--version"], ["--help"]) or not {"...", "COMMAND"}.isdisjoint(words):
                continue
            count = next((n for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
            try:
                assert count is not None
                parser_of(" ".join(words[:count])).parse_args(words[count:])
            except (AssertionError, SystemExit):
                refused.append(f"{document}: {line}")
            tried += 1
    assert tried > 50 and not refused, capsys.readouterr().err


def test_make_targets_in_the_documents_exist(documents: dict[str, str], root: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.M))
    named = {t for text in documents.values() for t in re.findall(r"^make (\w+)", text, re.M)}
    assert {"demo", "test"} <= named <= targets


def test_python_in_the_documents_imports_what_exists(documents: dict[str, str]) -> None:
    blocks = [(d, block) for d, text in documents.items() for block in re.findall(r"```python\n(.*?)```", text, re.S)]
    assert {"README.md", "docs/post-training.md"} <= {document for document, _ in blocks}
    for document, block in blocks:
        for node in ast.parse(block).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), document, "exec"), {})
