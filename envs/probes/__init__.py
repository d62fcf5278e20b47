"""Ten seconds of physics that prove a contract: every claim is tried on the robot, none is compared with another claim.

report = probe(envs.make("libero_object/0"), contract.robot)
assert report.holds, report.violated
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.base import RobotEnv
from cosmos_robot.envs.probes.episode import probe_init_states, probe_rate, probe_steps
from cosmos_robot.envs.probes.layout import probe_reported_pose, probe_state_layout
from cosmos_robot.envs.probes.motion import (
    probe_action_layout,
    probe_gripper,
    probe_hold_still,
    probe_joints,
    probe_position_axes,
    probe_rotation_axes,
)
from cosmos_robot.envs.probes.pictures import (
    probe_camera_names,
    probe_camera_views,
    probe_mounts,
    probe_orientation,
)
from cosmos_robot.envs.probes.trial import Finding, NotApplicable, Status, Trial
from cosmos_robot.errors import UnknownNameError

__all__ = ["PROBES", "Finding", "Report", "Status", "probe"]

PROBES: dict[str, Callable[[Trial], Iterator[Finding]]] = {
    probe.__name__.removeprefix("probe_"): probe
    for probe in (
        probe_state_layout,
        probe_action_layout,
        probe_camera_names,
        probe_camera_views,
        probe_orientation,
        probe_mounts,
        probe_reported_pose,
        probe_hold_still,
        probe_gripper,
        probe_joints,
        probe_position_axes,
        probe_rotation_axes,
        probe_rate,
        probe_init_states,
        probe_steps,
    )
}


@dataclass(frozen=True)
class Report:
    """What came of probing ``robot`` against the spec called ``spec``."""

    robot: str
    spec: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def violated(self) -> tuple[str, ...]:
        """The contract's fields that were found to be false."""
        return tuple(dict.fromkeys(f.field for f in self.findings if f.status == "violated"))

    @property
    def holds(self) -> bool:
        """Whether nothing was found to be false."""
        return not self.violated

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        facts = {"robot": self.robot, "spec": self.spec, "holds": self.holds, "violated": list(self.violated)}
        return facts | {"seconds": round(self.seconds, 1), "findings": [asdict(f) for f in self.findings]}


def probe(env: RobotEnv, spec: RobotSpec | None = None, only: Sequence[str] = ()) -> Report:
    """Hold ``env`` against ``spec`` (None: against what it says of itself), by all probes or those named in ``only``.

    Takes a dozen resets' time and leaves ``env`` somewhere in an episode. Raises UnknownNameError for an unknown probe.
    """
    for name in only:
        if name not in PROBES:
            raise UnknownNameError("probe", name, PROBES)
    began = time.monotonic()
    trial = Trial(env, spec or env.robot)
    findings = [finding for name in (only or PROBES) for finding in _findings(name, trial)]
    return Report(env.robot.name, trial.spec.name, tuple(findings), time.monotonic() - began)


def _findings(name: str, trial: Trial) -> list[Finding]:
    found: list[Finding] = []
    try:
        for finding in PROBES[name](trial):
            found.append(finding)
    except NotApplicable as reason:
        found.append(Finding(name, "", "not applicable", why=str(reason)))
    return found
