"""A bell that wakes a thread that waits for sockets."""

from __future__ import annotations

import contextlib
import socket


class Bell:
    """``ring`` from any thread makes ``fileno`` readable; ``quiet`` ends that. After ``close`` nothing rings."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def fileno(self) -> int:
        """For a poller."""
        return self._far.fileno()

    def ring(self) -> None:
        """Wake the waiting thread; ringing twice is ringing once."""
        with contextlib.suppress(OSError):  # it rings already, or is closed
            self._near.send(b"!")

    def quiet(self) -> None:
        """Stop the ringing."""
        with contextlib.suppress(OSError):
            self._far.recv(4096)

    def close(self) -> None:
        """Free the sockets."""
        self._near.close()
        self._far.close()
