"""What the doctor finds on this machine, and what it says of a worse one."""

from __future__ import annotations

from importlib import metadata

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
