"""Nothing in the repository is tied to the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Built from pieces so that this file does not find itself.
HOMES = "|".join(["/ro" + "ot/", "/ho" + "me/[a-z]", "/wo" + "rk/", "/Us" + "ers/", "/mn" + "t/", "/tmp/s" + "pec"])
MACHINE_PATH = re.compile(rf"(?<![\w.}}*/-])({HOMES})")
REGISTRY_HOST = re.compile(
    "|".join(
        ["py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.org", "deb" + r"ian\.org", "cra" + r"tes\.io"]
    )
)


@pytest.fixture(scope="module")
def texts(root: Path, repo_files: list[Path]) -> dict[str, str]:
    found = {}
    for path in repo_files:
        try:
            found[str(path)] = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # pictures and weights
    return found


def lines_matching(pattern: re.Pattern[str], texts: dict[str, str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_paths_of_one_machine(texts: dict[str, str]) -> None:
    assert not lines_matching(MACHINE_PATH, texts)


def test_no_registry_hosts(texts: dict[str, str]) -> None:
    assert not lines_matching(REGISTRY_HOST, texts)


def test_no_lock_file(repo_files: list[Path]) -> None:
    """A lock file would carry the addresses of one machine's package index."""
    assert Path("uv.lock") not in repo_files


def test_the_patterns_find(texts: dict[str, str]) -> None:
    assert MACHINE_PATH.search('open("/ro' + 'ot/x")') and REGISTRY_HOST.search("https://py" + "pi.org/simple")
    assert not MACHINE_PATH.search("tests/wo" + "rk/x.py")
    assert len(texts) > 20
