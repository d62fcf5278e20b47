"""scripts/setup.sh on machines that lack one thing or another, played by small stand-in programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from cosmos_robot.doctor import APT_PACKAGES

TOOLS = ("bash", "cat", "dirname", "env", "grep", "mkdir", "chmod", "cp")
WORKING_UV = 'case "$1" in --version) echo uv 1;; *) echo "uv $*" >> "$LOG";; esac'
PIP_BRINGS_UV = """
case "$*" in
  *--version*) echo pip 24;;
  *install*) echo "pip $*" >> "$LOG"; mkdir -p "$TOOLS"; cp "$STANDINS/good-uv" "$TOOLS/uv";;
esac
"""


@dataclass
class Machine:
    """A checkout with only the script, a PATH with only what a test puts there, and a log of what was run."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "programs"

    def add(self, name: str, body: str) -> None:
        program = self.programs / name
        program.write_text(f"#!/usr/bin/env bash\n{body}\n")
        program.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        checkout = self.folder / "checkout"
        environment = {
            "PATH": str(self.programs),
            "HOME": str(self.folder / "home"),
            "LOG": str(self.folder / "log"),
            "TOOLS": str(checkout / ".tools" / "bin"),
            "STANDINS": str(self.programs),
        }
        script = checkout / "scripts" / "setup.sh"
        return subprocess.run(
            [shutil.which("bash") or "bash", str(script), *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path: Path, root: Path) -> Machine:
    made = Machine(tmp_path)
    for folder in ("programs", "home", "checkout/scripts"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(root / "scripts" / "setup.sh", tmp_path / "checkout" / "scripts")
    shutil.copy(root / ".python-version", tmp_path / "checkout")
    for tool in TOOLS:
        (made.programs / tool).symlink_to(shutil.which(tool) or tool)
    made.add("id", "echo 0")
    made.add("dpkg-query", 'echo "install ok installed"')
    made.add("apt-get", 'echo "apt-get $*" >> "$LOG"')
    made.add("good-uv", WORKING_UV)
    made.add("uv", WORKING_UV)
    return made


def test_ready_machine_only_runs_the_command(machine: Machine) -> None:
    done = machine.run("pytest", "-q")
    assert done.returncode == 0, done.stderr
    assert machine.log().splitlines() == ["uv python find", "uv run --all-extras pytest -q"]


def test_without_a_command_it_prepares_the_environment(machine: Machine) -> None:
    assert machine.run().returncode == 0
    assert machine.log().splitlines()[-1] == "uv sync --all-extras"


def test_root_installs_only_the_missing_libraries(machine: Machine) -> None:
    machine.add("dpkg-query", '[ "${@: -1}" = libegl1 ] && exit 1; echo "install ok installed"')
    assert machine.run("true").returncode == 0
    installs = [line for line in machine.log().splitlines() if "apt-get install" in line]
    assert len(installs) == 1 and installs[0].endswith(" libegl1")


def test_without_root_or_sudo_it_says_what_to_install_and_goes_on(machine: Machine) -> None:
    machine.add("id", "echo 1000")
    machine.add("dpkg-query", "exit 1")
    done = machine.run("true")
    assert done.returncode == 0
    assert f"apt-get install -y {' '.join(APT_PACKAGES)}" in done.stderr
    assert "apt-get" not in machine.log()
    assert "uv run" in machine.log()


def test_sudo_is_used_where_it_works(machine: Machine) -> None:
    machine.add("id", "echo 1000")
    machine.add("sudo", '[ "$1" = -n ] && exit 0; echo "sudo $*" >> "$LOG"; "$@"')
    machine.add("dpkg-query", "exit 1")
    assert machine.run("true").returncode == 0
    assert re.search(r"^sudo env .*apt-get install .*ffmpeg$", machine.log(), re.M)


def test_failing_apt_is_an_error(machine: Machine) -> None:
    machine.add("dpkg-query", "exit 1")
    machine.add("apt-get", "exit 100")
    done = machine.run("true")
    assert done.returncode == 1
    assert "could not install libegl1" in done.stderr
    assert "uv run" not in machine.log()


def test_a_system_without_apt_goes_on(machine: Machine) -> None:
    (machine.programs / "apt-get").unlink()
    done = machine.run("true")
    assert done.returncode == 0
    assert "no apt-get here" in done.stderr


def test_a_uv_shim_that_does_not_run_is_replaced(machine: Machine) -> None:
    machine.add("uv", 'echo "pyenv: uv: command not found" >&2; exit 127')
    machine.add("python3", PIP_BRINGS_UV)
    done = machine.run("pytest")
    assert done.returncode == 0, done.stderr
    assert "pip -m pip install" in machine.log()
    assert machine.log().splitlines()[-1] == "uv run --all-extras pytest"


def test_without_uv_and_pip_it_says_so(machine: Machine) -> None:
    (machine.programs / "uv").unlink()
    script = machine.folder / "checkout" / "scripts" / "setup.sh"
    script.write_text(script.read_text().replace("/usr/local/bin/python3 /usr/bin/python3", ""))
    done = machine.run("true")
    assert done.returncode == 1
    assert "no Python 3 with pip found" in done.stderr


def test_without_a_fitting_python_it_asks_uv_and_then_says_what_is_needed(machine: Machine, root: Path) -> None:
    machine.add("uv", 'case "$1" in --version) ;; python) echo "uv $*" >> "$LOG"; exit 1;; esac')
    done = machine.run("true")
    version = (root / ".python-version").read_text().strip()
    assert done.returncode == 1
    assert f"uv python install {version}" in machine.log()
    assert f"Python {version} is needed" in done.stderr


def test_script_and_doctor_name_the_same_libraries(root: Path) -> None:
    (listed,) = re.findall(r"^APT_PACKAGES=\((.*)\)$", (root / "scripts" / "setup.sh").read_text(), re.M)
    assert tuple(listed.split()) == APT_PACKAGES


def test_readme_commands_end_in_the_plain_ones(root: Path) -> None:
    recipes = dict(re.findall(r"^(\w+):\n\t@scripts/setup\.sh (.+)$", (root / "Makefile").read_text(), re.M))
    assert recipes["demo"] == "cosmos-robot demo --episodes 3 --out demo_out"
    assert recipes["test"] == "pytest"
