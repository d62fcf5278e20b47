"""Settings of every test: no network, a Ctrl-C that works, and where recorded cases lie."""

import os
import signal

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
