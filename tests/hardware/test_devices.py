"""Cameras by device or address, and the dead-man's switch: real streams, a real terminal, real bytes."""

from __future__ import annotations

import http.server
import io
import os
import pty
import struct
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pictures
from waiting import PATIENCE_S, until

from cosmos_robot.cli import main
from cosmos_robot.contract import CameraSpec
from cosmos_robot.contract.library import load_contract
from cosmos_robot.errors import InputError, RobotError, UnknownNameError
from cosmos_robot.hardware.cameras import pictures
from cosmos_robot.hardware.dead_man import KEY, dead_man
from cosmos_robot.hardware.devices import named_sources, opened, require_cameras
from cosmos_robot.hardware.robots import cameras_of

pytest.importorskip("av")
WRIST = CameraSpec(name="wrist", height=48, width=64)
FRONT = CameraSpec(name="front", height=48, width=64)


@pytest.fixture
def stream():
    """A network camera (MJPEG over HTTP): its address, to which a path HEIGHTxWIDTH is added, and its shade of grey."""
    grey, over = [50], threading.Event()

    class Camera(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            size = tuple(map(int, self.path.strip("/").split("?")[0].split("x")))
            while not over.is_set():
                data = io.BytesIO()
                Pictures.fromarray(np.full(size, grey[0], np.uint8)).save(data, "jpeg")
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {data.tell()}\r\n\r\n"
                try:
                    self.wfile.write(head.encode() + data.getvalue() + b"\r\n")
                except OSError:
                    return
                over.wait(0.1)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Camera)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", grey
    over.set()
    server.shutdown()
    server.server_close()


def test_a_network_camera_gives_the_newest_picture(stream):
    address, grey = stream
    sources = {"wrist": f"{address}/48x64", "front": f"{address}/48x64?2"}
    with opened((WRIST, FRONT), sources, PATIENCE_S) as cameras:
        assert set(cameras) == {"wrist", "front"}
        seen = pictures(cameras, cameras["wrist"].latest()[1])
        assert seen["wrist"].shape == (48, 64, 3) and seen["wrist"].dtype == np.uint8
        grey[0] = 200
        until(lambda: abs(int(cameras["wrist"].latest()[0].mean()) - 200) < 10)


def test_a_camera_of_another_size_is_refused(stream):
    sources = {"wrist": f"{stream[0]}/64x64"}
    with pytest.raises(RobotError, match=r"'wrist'.*64x64, 48x64"), opened((WRIST,), sources, PATIENCE_S):
        pass


@pytest.mark.parametrize("source", ["/dev/video97", "97", "http://127.0.0.1:9/none"])
def test_a_camera_that_is_not_there_is_named_with_its_source(source):
    with pytest.raises(RobotError, match=rf"camera 'wrist'.*{source}"), opened((WRIST,), {"wrist": source}, PATIENCE_S):
        pass


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["wrist"], "NAME=SOURCE"),
        (["=0"], "NAME=SOURCE"),
        (["wrist="], "NAME=SOURCE"),
        (["wrist=0", "wrist=1"], "twice"),
        (["wrist=0", "front=0"], "two cameras"),
        (["wrist=film.mp4"], "no camera"),
        (["wrist=file:///etc/passwd"], "no camera"),
        (["wrist=-1"], "no camera"),
    ],
)
def test_what_names_no_camera_is_refused(words, complaint):
    with pytest.raises(InputError, match=complaint):
        named_sources(words, (WRIST, FRONT), "arm")


def test_names_are_the_robots():
    assert named_sources(["wrist=0", "front=rtsp://h/x?a=b"], (WRIST, FRONT), "arm") == {
        "wrist": "0",
        "front": "rtsp://h/x?a=b",
    }
    with pytest.raises(UnknownNameError, match="wrist"):
        named_sources(["wirst=0"], (WRIST, FRONT), "arm")
    with pytest.raises(InputError, match="of its own"):
        named_sources(["wrist=0"], cameras_of("sim:fake/0"), "sim:fake/0")
    with pytest.raises(UnknownNameError, match="franka"):
        cameras_of("frnka")
    assert [c.name for c in cameras_of("franka")] == [c.name for c in load_contract("cosmos3-nano-droid").robot.cameras]


def test_cameras_that_are_missing_are_named():
    contract = load_contract("cosmos3-nano-droid")
    first, *others = [c.name for c in contract.robot.cameras]
    with pytest.raises(InputError, match=rf"{others[0]}.*--cameras {others[0]}=0 {others[1]}=1"):
        require_cameras(contract, "franka", {first: "0"})
    require_cameras(contract, "franka", dict.fromkeys((first, *others), "0"))


def test_a_robot_with_cameras_of_its_own_takes_none(tmp_path, capsys):
    assert main(["drive", "--robot", "sim:fake/1", "--policy", "nowhere", "--cameras", "front=0"]) == 2
    assert "of its own" in capsys.readouterr().err


def press(descriptor, number, value, kind=1):
    os.write(descriptor, struct.pack("<IhBB", 0, value, kind, number))


def test_a_button_is_held_until_the_last_is_let_go_of(tmp_path):
    """A joystick's bytes through a pipe; what is told at the beginning counts, axes do not."""
    device = tmp_path / "js0"
    os.mkfifo(device)
    with dead_man(str(device)) as held:
        pad = os.open(device, os.O_WRONLY)
        press(pad, 0, 500, kind=2)
        press(pad, 3, 1, kind=0x81)
        until(held)
        os.write(pad, struct.pack("<IhBB", 0, 1, 1, 4)[:5])
        os.write(pad, struct.pack("<IhBB", 0, 1, 1, 4)[5:])
        press(pad, 3, 0)
        press(pad, 4, 0)
        until(lambda: not held())
        press(pad, 1, 1)
        until(held)
        os.close(pad)
        until(lambda: not held())


def test_a_key_is_held_while_it_repeats(monkeypatch):
    master, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with dead_man(KEY) as held:
            assert not held()
            os.write(master, b" ")
            until(held)
            until(lambda: not held())
    os.close(master)


def test_a_switch_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match=r"No such file.*js0"), dead_man(str(tmp_path / "js9")):
        pass
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(InputError, match="terminal"), dead_man(KEY):
            pass
    assert main(["drive", "--robot", "sim:fake/1", "--policy", "nowhere", "--dead-man", "key"]) == 2
    assert "virtual clock" in capsys.readouterr().err
    with dead_man(None) as held:
        assert held()


def test_an_arm_with_cameras_shows_them_to_a_policy(stream, capsys, monkeypatch):
    """Everything but the arm is as with a real one: a served DROID policy, and its three cameras."""
    pytest.importorskip("franky_sim")
    from cosmos_robot.hardware import franka

    monkeypatch.setattr(franka, "pictures", partial(pictures, oldest_s=PATIENCE_S))  # a busy machine is no fault here
    names = [c.name for c in cameras_of("franka-sim")]
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server_process.py")), "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        words = ["drive", "--robot", "franka-sim", "--policy", server.stdout.readline().strip(), "--dry-run"]
        words += ["--answer-timeout", "240"]
        assert main([*words, "--cameras", f"{names[0]}={stream[0]}/360x640"]) == 2
        assert f"{names[1]}=0" in capsys.readouterr().err
        assert main([*words, "--cameras", *(f"{name}={stream[0]}/360x640?{name}" for name in names)]) == 0
    finally:
        server.kill()
        server.wait()
    said = capsys.readouterr().out
    assert "nothing was sent" in said and "hold" not in said
