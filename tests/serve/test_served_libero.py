"""The shipped checkpoint, served by ``cosmos-robot serve``, acts in LIBERO exactly as in process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

DECISIONS = 3


@pytest.fixture
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def address():
    command = [sys.executable, "-m", "cosmos_robot.cli", "serve", "--ckpt", "tiny-libero", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("ready"):
            break
    found = re.search(r"zmq: (tcp://\S+)", said)
    assert found, said
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_served_libero_episode_has_the_same_actions(address, one_thread):
    pytest.importorskip("libero")
    from cosmos_robot.envs import make
    from cosmos_robot.policies import load_policy

    here, there = load_policy("tiny-libero"), load_policy(address)
    assert here.contract == there.contract
    rows = here.contract.model.execute
    with make("libero_object/0") as env:
        seen, _ = env.reset(options={"init_state": 0})
        for seed in range(DECISIONS):
            (ours,), (theirs,) = here.act([seen], [seed]), there.act([seen], [seed])
            np.testing.assert_allclose(theirs.values, ours.values, rtol=0, atol=1e-6)  # sums end in bits of their own
            assert (theirs.rate_hz, theirs.start_time) == (ours.rate_hz, ours.start_time)
            for command in theirs.values[:rows]:
                seen, *_ = env.step(command)
