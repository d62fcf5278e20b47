"""Settings of every test: no network, a Ctrl-C that works, and where recorded cases lie."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# How long an example takes says nothing here: other jobs share the machine.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")

# A shell that starts a job in the background makes it ignore Ctrl-C, and so would every process the tests stop with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", help="folder of recorded cases, in the schema of tests/golden/data")


@pytest.fixture(scope="session")
def load_beside() -> Callable[[Path, str], ModuleType]:
    """A module that lies in a test folder, under its own name."""

    def load(folder: Path, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
