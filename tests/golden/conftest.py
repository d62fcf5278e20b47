"""Recorded cases become parameters: ``@pytest.mark.golden("cosmos3/prompts")`` gives a test its ``case`` argument.

``golden`` takes the topic, optionally the key of its list (``key="draws"``) and a ``where`` function to choose cases. A
topic that the folder of ``--golden-dir`` does not hold is skipped with that reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_files import DEFAULT, GoldenFolder

FOLDER = pytest.StashKey[GoldenFolder]()


def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--golden-dir")
    root = Path(given) if given else DEFAULT
    if not root.is_dir():
        raise pytest.UsageError(f"--golden-dir: no folder {root}")
    config.stash[FOLDER] = GoldenFolder(root)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is None or "case" not in metafunc.fixturenames:
        return
    folder = metafunc.config.stash[FOLDER]
    topic = marker.args[0]
    if not folder.path(f"{topic}.json").is_file():
        reason = f"{topic}.json is not in {folder.root}"
        metafunc.parametrize("case", [pytest.param(None, id=topic, marks=pytest.mark.skip(reason=reason))])
        return
    where = marker.kwargs.get("where", lambda case: True)
    found = [c for c in folder.cases(topic, marker.kwargs.get("key", "cases")) if where(c)]
    metafunc.parametrize("case", [pytest.param(c, id=name_of(c, i)) for i, c in enumerate(found)])


def name_of(case: object, number: int) -> str:
    named = (case.get("id") or case.get("case")) if isinstance(case, dict) else None
    return str(named or number)


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> GoldenFolder:
    """The folder of recorded cases."""
    return request.config.stash[FOLDER]
