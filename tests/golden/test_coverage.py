"""Every recorded file is read by a test of this folder, or stands here with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NOT_READ: dict[str, str] = {}
"""Topic to reason. An entry for a topic that some test does read is an error."""


WHOLE_FOLDERS = ("protocols",)
"""Read file by file, whatever their names: ``protocols`` by ``test_protocols.py``."""


def read_by_tests(folder: Path) -> set[str]:
    """Topics named in the test sources, each as a string of its own."""
    sources = [p.read_text() for p in folder.glob("test_*.py") if p.name != Path(__file__).name]
    return {topic for text in sources for topic in re.findall(r'"((?:cosmos3|cosmos_policy|protocols)/[\w/]+)', text)}


def topics(root: Path) -> list[str]:
    return sorted(
        {
            str(p.relative_to(root).with_suffix(""))
            for p in root.rglob("*")
            if p.suffix in (".json", ".npz", ".safetensors", ".bin")
        }
    )


def test_every_topic_is_read(golden) -> None:
    read = read_by_tests(Path(__file__).parent)
    whole_folders = {*WHOLE_FOLDERS, *(topic for topic in read if (golden.root / topic).is_dir())}
    unread = [
        t
        for t in topics(golden.root)
        if t not in read and t not in NOT_READ and str(Path(t).parent) not in whole_folders
    ]
    if unread:
        pytest.fail("no test reads " + ", ".join(unread))
    assert not read & set(NOT_READ)
