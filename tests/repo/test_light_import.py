"""What a robot machine imports works without torch and without a simulator."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch", "diffusers", "transformers", "accelerate", "peft", "safetensors", "huggingface_hub", "gymnasium", "mujoco",
    "robosuite", "libero", "lerobot", "h5py", "av", "ray", "franky", "matplotlib",
)  # fmt: skip
LIGHT = (
    "cosmos_robot",
    "cosmos_robot.types",
    "cosmos_robot.contract",
    "cosmos_robot.contract.commands",
    "cosmos_robot.actions.adapter",
    "cosmos_robot.actions.embodiments",
    "cosmos_robot.envs.fit",
    "cosmos_robot.errors",
    "cosmos_robot.registry",
    "cosmos_robot.images",
    "cosmos_robot.actions.codec",
    "cosmos_robot.actions.normalization",
    "cosmos_robot.actions.rotations",
    "cosmos_robot.doctor",
    "cosmos_robot.cli",
    "cosmos_robot.envs",
    "cosmos_robot.policies",
)
# Importing a heavy package fails here as it does where it is not installed.
WITHOUT_HEAVY = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
{code}
"""


def run_without_heavy(code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT_HEAVY.format(heavy=HEAVY, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("module", LIGHT)
def test_imports_without_the_heavy_packages(module: str) -> None:
    done = run_without_heavy(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_overview_works_without_the_heavy_packages() -> None:
    done = run_without_heavy("from cosmos_robot.cli import main; sys.exit(main(['--help']))")
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


def test_a_command_without_its_extra_says_what_to_install() -> None:
    done = run_without_heavy("from cosmos_robot.cli import main; sys.exit(main(['bench', 'rendering']))")
    assert done.returncode == 2, done.stderr
    assert "pip install 'cosmos-robot[libero]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_barrier_bars() -> None:
    assert "ModuleNotFoundError" in run_without_heavy("import torch").stderr
