"""A served checkpoint acts as it does in process, and the evaluator can use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.cli import main
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.errors import InputError
from cosmos_robot.policies import load_policy
from cosmos_robot.serve.service import empty_scene


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "ck"
    save_untrained(folder, untrained_contract(FAKE_ROBOT, "ck", chunk=8, execute=6), TASKS, num_hidden_layers=1)
    return folder


@pytest.fixture(scope="module")
def served(checkpoint):
    """``cosmos-robot serve`` as a process of its own: address of each protocol, by name."""
    command = [sys.executable, "-m", "cosmos_robot.cli", "serve", "--ckpt", str(checkpoint), "--port", "0"]
    command += ["--openpi-port", "0", "--gr00t-port", "0", "--page-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = {}
    for line in process.stdout:
        if match := re.match(r"(\w+): (\S+://\S+)", line):
            found[match[1]] = match[2]
        if line.startswith("ready"):
            break
    yield {**found, "process": process}
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def same(theirs, ours) -> None:
    """The same chunk but for the last bits of sums, which threads and batches split in their own ways."""
    np.testing.assert_allclose(theirs.values, ours.values, rtol=0, atol=1e-6)


def test_every_protocol_listens(served):
    assert set(served) == {"zmq", "openpi", "gr00t", "page", "process"}


def test_served_chunks_are_those_of_this_process(served, checkpoint):
    here, there = load_policy(checkpoint), load_policy(served["zmq"])
    assert there.contract == here.contract and there.cameras == here.cameras
    scene = empty_scene(here.contract)
    for seed in (1, 2, 3):
        (ours,), (theirs,) = here.act([scene], [seed]), there.act([scene], [seed])
        same(theirs, ours)
    for ours, theirs in zip(here.act([scene] * 3, [1, 2, 3]), there.act([scene] * 3, [1, 2, 3]), strict=True):
        same(theirs, ours)
    rows = here.act([scene], [4])[0].values[:2]
    (ours,), (theirs,) = here.act([scene], [1], [rows]), there.act([scene], [1], [rows])
    same(theirs, ours)
    np.testing.assert_array_equal(theirs.values[:2], rows)


def test_an_evaluation_over_the_wire_is_the_same_evaluation(served, checkpoint, tmp_path):
    common = ["--suite", "fake", "--tasks", "2", "--episodes", "2", "--max-steps", "18", "--workers", "1"]
    results = []
    for name, ckpt in (("here", str(checkpoint)), ("there", served["zmq"])):
        assert main(["eval", "--ckpt", ckpt, *common, "--json", str(tmp_path / f"{name}.json")]) == 0
        results.append(json.loads((tmp_path / f"{name}.json").read_text()))
    here, there = results
    for record in (*here["records"], *there["records"]):
        for key in [k for k in record if k.endswith(("_s", "seconds", "time"))]:
            del record[key]
    assert here["records"] == there["records"] and there["policy"] == "served" and there["checkpoint"] == "ck"


def test_the_page_is_seen_in_a_browser(served, tmp_path):
    import shutil

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    policy = load_policy(served["zmq"])
    policy.act([empty_scene(policy.contract)], [1])
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    quiet += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    page = subprocess.run(
        [browser, *quiet, "--virtual-time-budget=4000", "--dump-dom", served["page"]],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    assert '<span id="model">ck</span>' in page and 'class="state ready">ready' in page
    assert re.search(r"<td>model</td><td>[\d.]+</td>", page) and re.search(r'points="[\d., ]+"', page)
    assert 'alt="table"' in page and "answers per second" in page


@pytest.mark.parametrize("options", [{"blind": True}])
def test_a_served_policy_has_no_blind_control_here(served, options):
    with pytest.raises(InputError, match="served"):
        load_policy(served["zmq"], **options)


def test_ports_that_collide_are_refused(checkpoint, capsys):
    words = ["serve", "--ckpt", str(checkpoint), "--port", "5999", "--openpi-port", "5999"]
    assert main(words) == 2
    assert "port of its own" in capsys.readouterr().err
