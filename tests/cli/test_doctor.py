"""What the doctor finds on this machine, and what it says of a worse one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cosmos_robot import cli, doctor


def test_drawing_is_really_tried() -> None:
    check = doctor.probe_gl("osmesa")
    assert check.status == "ok" and "ms for a small picture" in check.detail


def test_a_backend_that_fails_is_reported_with_its_error() -> None:
    check = doctor.probe_gl("nonsense")
    assert check.status == "broken"
    assert "nonsense" in check.detail
    assert "egl" in check.remedy


def test_a_backend_that_hangs_is_given_up() -> None:
    check = doctor.probe_gl("osmesa", timeout_s=0.01)
    assert check.status == "broken" and "no picture within" in check.detail


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "robosuite":
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    checks = {check.name: check for check in doctor.examine()}
    assert checks["robosuite"].status == "absent"
    assert "cosmos-robot[libero]" in checks["robosuite"].remedy
    assert checks["torch"].status == "ok"
    assert not doctor.healthy(list(checks.values()))


def test_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(library: str) -> None:
        raise OSError(f"{library}: cannot open shared object file")

    monkeypatch.setattr(doctor.ctypes, "CDLL", refuse)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    remedies = {check.name: check.remedy for check in doctor.examine() if check.status != "ok"}
    assert remedies["libEGL.so.1"] == "apt-get install libegl1"
    assert remedies["ffmpeg"] == "apt-get install ffmpeg"


def test_the_renderer_and_its_maker_are_named() -> None:
    assert " by " in doctor.probe_gl("osmesa").detail


def test_devices_are_counted() -> None:
    check = doctor.egl_devices()
    assert check.status == "ok" and check.detail[0].isdigit() and "software" in check.detail


def test_missing_assets_and_checkpoints_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    checks = doctor._libero_files()
    assert {c.status for c in checks} == {"absent"} and all("reinstall" in c.remedy for c in checks)
    monkeypatch.setattr(doctor.resources, "files", lambda name: tmp_path)
    assert doctor._shipped_checkpoint("tiny-libero").status == "absent"
    (tmp_path / "assets" / "tiny-libero").mkdir(parents=True)
    (tmp_path / "assets" / "tiny-libero" / "contract.json").write_text("{}")
    assert "no weights" in doctor._shipped_checkpoint("tiny-libero").detail


def test_present_assets_and_checkpoints_are_counted() -> None:
    assert {c.status for c in doctor._libero_files()} == {"ok"}
    assert {doctor._shipped_checkpoint(name).status for name in doctor.CHECKPOINTS} == {"ok"}


def test_small_memory_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_available", lambda: 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**20, 0, 2**20))
    memory, shared = doctor._memory()
    assert memory.status == "broken" and "--workers" in memory.remedy
    assert shared.status == "broken" and "--shm-size" in shared.remedy


def test_gpus_are_listed_as_the_driver_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    tool.write_text("#!/bin/sh\necho 'Card X, 100 MiB, 90 MiB, 1.0'\n")
    tool.chmod(0o755)
    assert doctor._gpu().detail == "Card X, 100 MiB, 90 MiB, 1.0"
    tool.write_text("#!/bin/sh\necho no driver; exit 9\n")
    assert doctor._gpu().status == "broken" and doctor._gpu().detail == "no driver"


def test_a_libero_that_asks_questions_is_refused_not_answered(tmp_path: Path) -> None:
    """The original package asks for a path on its first import; a program with a keyboard would wait for ever."""
    (tmp_path / "libero" / "libero").mkdir(parents=True)
    (tmp_path / "libero" / "__init__.py").touch()
    (tmp_path / "libero" / "libero" / "__init__.py").write_text("answer = input('a path? ')\n")
    program = "from cosmos_robot.envs.libero import suites; suites()"
    run = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env={**doctor.os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    try:
        assert run.wait(120) == 1  # its stdin is open and empty all the while
        assert "asks for a path on its first import" in run.stderr.read()
    finally:
        run.kill()


def test_only_what_the_demo_needs_decides() -> None:
    optional = doctor.Check("ray", "absent", "not installed", needed=False)
    needed = doctor.Check("torch", "absent", "not installed")
    assert doctor.healthy([optional])
    assert not doctor.healthy([optional, needed])


def test_command_prints_every_check_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [doctor.Check("torch", "ok", "2.11"), doctor.Check("mujoco", "absent", "not installed", "install it")]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "torch" in printed and "mujoco" in printed and "install it" in printed
    monkeypatch.setattr(doctor, "examine", lambda: checks[:1])
    assert cli.main(["doctor"]) == 0
