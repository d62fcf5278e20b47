"""A dead-man's switch: the robot moves only while somebody holds a key or a button.

A terminal tells of keys pressed, not of keys let go of; a key that is held repeats itself, so it counts as held for
``REPEAT_S`` after each repeat. A button of a joystick device is told of both ways, and let go of at once. Whatever goes
wrong with either counts as let go of.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cosmos_robot.errors import InputError

KEY: Final = "key"
REPEAT_S: Final = 0.8
"""The first repeat of a held key comes after up to 0.7 s, later ones after a thirtieth."""
_LOOK_S: Final = 0.1
_EVENT: Final = struct.Struct("<IhBB")
_BUTTON: Final = 0x01
"""Linux's joystick events: time, value, kind, number; a button's kind, beside a bit for the state at the beginning."""


@contextlib.contextmanager
def dead_man(switch: str | None) -> Iterator[Callable[[], bool]]:
    """Whether ``switch`` is held now: ``key`` for any key in this terminal, or a joystick device such as
    /dev/input/js0 for any of its buttons; None for no switch at all. Raises InputError for one that is not there."""
    if switch is None:
        yield lambda: True
        return
    with _keyboard() if switch == KEY else _joystick(switch) as descriptor:
        watch = _Keys(descriptor) if switch == KEY else _Buttons(descriptor)
        watch.start()
        try:
            yield watch.held
        finally:
            watch.end()


@contextlib.contextmanager
def _keyboard() -> Iterator[int]:
    if not sys.stdin.isatty():
        raise InputError("dead_man: key needs a terminal to type in; give a joystick device such as /dev/input/js0")
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _joystick(device: str) -> Iterator[int]:
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(
            f"dead_man: {device}: {error.strerror}; expected 'key' or a joystick device such as /dev/input/js0"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Watch:
    """Reads what a descriptor tells on a thread of its own."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dead-man", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def held(self) -> bool:
        """Whether it is held now."""
        raise NotImplementedError

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def _lose(self) -> None:
        """Nothing more will come."""

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                if select.select([self._descriptor], [], [], _LOOK_S)[0]:
                    data = os.read(self._descriptor, 4096)
                    if not data:
                        break
                    self._take(data)
        except OSError:
            pass
        self._lose()


class _Keys(_Watch):
    def __init__(self, descriptor: int):
        super().__init__(descriptor)
        self._newest = -float("inf")

    def held(self) -> bool:
        return time.monotonic() - self._newest < REPEAT_S

    def _take(self, data: bytes) -> None:
        self._newest = time.monotonic()


class _Buttons(_Watch):
    def __init__(self, descriptor: int):
        super().__init__(descriptor)
        self._pressed: frozenset[int] = frozenset()
        self._rest = b""

    def held(self) -> bool:
        return bool(self._pressed)

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % _EVENT.size
        self._rest = data[whole:]
        for _, value, kind, number in _EVENT.iter_unpack(data[:whole]):
            if kind & ~0x80 == _BUTTON:
                self._pressed = self._pressed | {number} if value else self._pressed - {number}

    def _lose(self) -> None:
        self._pressed = frozenset()
