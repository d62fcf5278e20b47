"""Settings of every test: no network, and a Ctrl-C that works."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell that starts a job in the background makes it ignore Ctrl-C, and so would every process the tests stop with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
