"""Robots by name, for ``drive`` and ``bench loop``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cosmos_robot.contract import CameraSpec
from cosmos_robot.contract.library import load_robot
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.hardware.cameras import Camera
from cosmos_robot.hardware.clock import Clock, MonotonicClock
from cosmos_robot.hardware.robot import Robot

SIMULATED: Final = "sim:"


@dataclass(frozen=True)
class Setup:
    """What a robot is made with. host: address of a real robot's controller. rate_hz: of commands, the robot's own
    unless given. cameras: of a real robot. clock: of a simulated one. seed: of a simulated scene. speaks: robot of the
    policy, as which an environment reports and obeys if it can."""

    host: str | None = None
    rate_hz: float | None = None
    cameras: Mapping[str, Camera] = field(default_factory=dict)
    clock: Clock = field(default_factory=MonotonicClock)
    seed: int = 0
    speaks: str | None = None


def robot_kinds() -> list[str]:
    """The names that ``make_robot`` knows, and the form of those for environments."""
    return [*sorted(_MAKERS), f"{SIMULATED}ENVIRONMENT"]


def cameras_of(name: str) -> tuple[CameraSpec, ...]:
    """The cameras that may be attached to the robot called ``name``; none for one that draws its own. Raises
    UnknownNameError with the nearest names."""
    if not name.startswith(SIMULATED) and name not in _MAKERS:
        raise UnknownNameError("robot", name, robot_kinds())
    return load_robot(_SPECS[name]).cameras if name in _SPECS else ()


def make_robot(name: str, setup: Setup | None = None) -> Robot:
    """The robot called ``name``, not connected yet; ``sim:NAME`` is the environment of that name as a robot.

    Raises UnknownNameError with the nearest names, InputError for a setup that does not fit, DependencyError naming
    what a robot needs.
    """
    setup = setup or Setup()
    simulated = name.startswith(SIMULATED)
    if not simulated and name not in _MAKERS:
        raise UnknownNameError("robot", name, robot_kinds())
    if name in _AT_AN_ADDRESS and not setup.host:
        raise InputError(f"robot {name!r} needs host: the address of its controller, for instance 172.16.0.2")
    if name not in _AT_AN_ADDRESS and setup.host:
        raise InputError(f"robot {name!r} takes no host; it has no controller at an address")
    return _environment(name.removeprefix(SIMULATED), setup) if simulated else _MAKERS[name](setup)


def _franka(setup: Setup) -> Robot:
    from cosmos_robot.hardware.franka import FrankaOptions, FrankaRobot

    return FrankaRobot(setup.host or "", FrankaOptions(rate_hz=setup.rate_hz), setup.cameras)


def _franka_cartesian(setup: Setup) -> Robot:
    from cosmos_robot.hardware.franka import FrankaCartesianRobot, FrankaOptions

    return FrankaCartesianRobot(setup.host or "", FrankaOptions(rate_hz=setup.rate_hz), setup.cameras)


def _franka_sim(setup: Setup) -> Robot:
    from cosmos_robot.hardware.franka_sim import FrankaSimRobot, simulator_options

    return FrankaSimRobot(simulator_options(setup.rate_hz), setup.cameras)


def _aloha(setup: Setup) -> Robot:
    from cosmos_robot.hardware.aloha import interbotix_robot

    return interbotix_robot(setup.rate_hz, setup.cameras)


def _aloha_sim(setup: Setup) -> Robot:
    from cosmos_robot.hardware.aloha import simulated_aloha

    return simulated_aloha(setup.clock, setup.rate_hz, seed=setup.seed)


def _environment(name: str, setup: Setup) -> Robot:
    from cosmos_robot.envs import make, speaking
    from cosmos_robot.hardware.simulated import SimulatedRobot, handed_over

    with handed_over(make(name, **({} if setup.speaks is None else speaking(name, setup.speaks)))) as env:
        return SimulatedRobot(env, setup.clock, seed=setup.seed, rate_hz=setup.rate_hz)


_MAKERS: Final[dict[str, Callable[[Setup], Robot]]] = {
    "franka": _franka,
    "franka-cartesian": _franka_cartesian,
    "franka-sim": _franka_sim,
    "aloha": _aloha,
    "aloha-sim": _aloha_sim,
}
_SPECS: Final = {
    "franka": "droid-franka-fr3",
    "franka-cartesian": "droid-franka-cartesian",
    "franka-sim": "droid-franka-fr3",
    "aloha": "aloha",
}
"""Robots that have whatever cameras are attached to them, and the specs that name those."""
_AT_AN_ADDRESS: Final = ("franka", "franka-cartesian")
