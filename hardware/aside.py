"""Witnesses that work: what takes time happens on a thread of their own, and the control loop never waits for it."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from typing import Final

from cosmos_robot.hardware.loop import Tick
from cosmos_robot.types import Image, Observation

KEPT: Final = 128
"""Ticks that may wait for the thread; more are lost, and counted."""


class Aside[T](ABC):
    """A ``Witness`` with a thread. patient: let the loop wait instead of losing ticks, for a loop on a virtual clock.

    lost: ticks that came while ``KEPT`` others waited. fault: what ended the thread's work, None if nothing did.
    """

    def __init__(self, patient: bool = False):
        self._patient = patient
        self._waiting: queue.Queue[tuple[Tick, T] | None] = queue.Queue(KEPT)
        self.lost = 0
        self.fault: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=type(self).__name__, daemon=True)
        self._thread.start()

    def glance(self, observation: Observation, asked: bool) -> None:
        """Draw the pictures that are wanted, before a simulator moves on."""
        for name in self._wanted(asked):
            observation.images[name]

    def tick(self, tick: Tick) -> None:
        """Queue the tick, and with it what has to be looked at now."""
        if self.fault is not None:
            return
        entry = (tick, self._look(tick))
        try:
            self._waiting.put(entry, block=self._patient)
        except queue.Full:
            self.lost += 1

    def join(self) -> None:
        """Let the thread finish what waits, and end it."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    @abstractmethod
    def _wanted(self, asked: bool) -> tuple[str, ...]:
        """The cameras whose pictures are needed. asked: of an observation that goes along with a question."""

    @abstractmethod
    def _look(self, tick: Tick) -> T:
        """What ``_take`` needs besides the tick; called in the loop's thread."""

    @abstractmethod
    def _take(self, tick: Tick, seen: T) -> None:
        """Work on one tick; called in the thread of this object."""

    def _pictures(self, tick: Tick) -> dict[str, Image]:
        """The wanted pictures of a tick; called in the loop's thread."""
        seen = tick.observation
        return {} if seen is None else {name: seen.images[name] for name in self._wanted(tick.asked)}

    def _work(self) -> None:
        while (entry := self._waiting.get()) is not None:
            if self.fault is None:
                try:
                    self._take(*entry)
                except Exception as error:  # noqa: BLE001 - told when the run is over: it must not end the run
                    self.fault = error
