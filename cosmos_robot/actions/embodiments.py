"""Cosmos 3's embodiment domains: the slot of its action heads that a robot's rows go through, by name.

Source: cosmos-framework, ``data/generator/action/utils/domain_utils.py``; aliases: diffusers' Cosmos 3 pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cosmos_robot.errors import UnknownNameError


@dataclass(frozen=True)
class Domain:
    """One name of a slot. width: numbers of a row before padding, None where each data set has its own."""

    name: str
    id: int
    width: int | None


_KNOWN: Final = (
    (0, None, ("no_action",)),
    (1, 9, ("av",)),
    (2, 9, ("camera_pose",)),
    (3, None, ("hand_pose",)),
    (4, 2, ("pusht",)),
    (5, None, ("libero",)),
    (6, 10, ("umi",)),
    (7, 10, ("bridge_orig_lerobot",)),
    (8, 10, ("droid_lerobot", "robomind-franka")),
    (9, 30, ("embodiment_b", "galbot")),
    (12, 20, ("robomind-franka-dual",)),
    (13, 10, ("robomind-ur",)),
    (
        15,
        29,
        (
            "agibotworld",
            "embodiment_c_gripper",
            "embodiment_c_gripper_ext",
            "agibot_gear_gripper",
            "agibot_gear_gripper_ext",
        ),
    ),
    (16, 20, ("xdof_yam", "molmoact2_yam", "abc_yam")),
    (17, 14, ("robotwin",)),
    (20, 10, ("fractal",)),
    (21, 3, ("drawanything",)),
    (22, 23, ("behavior1k_lerobot",)),
    (23, 20, ("maniparena",)),
)

DOMAINS: Final = {name: Domain(name, number, width) for number, width, names in _KNOWN for name in names}
FREE_DOMAINS: Final = tuple(sorted(set(range(32)) - {domain.id for domain in DOMAINS.values()}))
"""Slots without a published name: for one's own robot."""


def find_domain(name: str) -> Domain:
    """The domain called ``name``. Raises UnknownNameError with the nearest names."""
    if name not in DOMAINS:
        raise UnknownNameError("embodiment domain", name, DOMAINS)
    return DOMAINS[name]
