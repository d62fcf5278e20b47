"""Sharded training: states of parameters that nothing reads, processes that fail alone or work alone for long."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from processes import free_port, start_processes
from recipe import dot_contract, dots, interrupted_at, small_checkpoint, small_run

from cosmos_robot.errors import CheckpointError, Interrupted
from cosmos_robot.training.model_config import Sharding
from cosmos_robot.training.model_trainer import train_model


@pytest.fixture(scope="module")
def root(tmp_path_factory, contract) -> Path:
    folder, model = tmp_path_factory.mktemp("sharded"), dot_contract(contract)
    small_checkpoint(folder, model)
    model.save(folder)
    return folder


@pytest.fixture
def alone(monkeypatch):
    """This process as the only one of torchrun's."""
    found = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**found, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)


def test_weights_that_no_mode_reads_do_not_prevent_resuming(root, contract, alone):
    """A policy alone never reads the layer that puts out video."""
    policy = {"modes": {"policy": 1.0}, "sharding": Sharding(), "steps": 4}
    run = small_run(root, dot_contract(contract), out=root / "policy", **policy)
    interrupted_at(1, signal.SIGINT)
    with pytest.raises(Interrupted, match="step 2"):
        train_model(run, {"dots": [dots()]})
    driven = []
    train_model(run, {"dots": [dots()]}, lambda checkpoint: driven.append(checkpoint.contract.model.name) or {})
    assert (run.out / "export" / "model_index.json").is_file() and driven == ["dot"]


def test_a_damaged_state_is_named(root, contract, alone):
    run = small_run(root, dot_contract(contract), out=root / "damaged", modes={"policy": 1.0}, sharding=Sharding())
    interrupted_at(0, signal.SIGINT)
    with pytest.raises(Interrupted):
        train_model(run, {"dots": [dots()]})
    (shards,) = (run.out / "sharded").iterdir()
    for file in shards.glob("*.distcp"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"step-000000001 cannot be read: .*to begin this run anew"):
        train_model(run, {"dots": [dots()]})


def test_a_process_that_fails_alone_ends_all(root):
    """With its own error, a save begun before; and the processes waited for each other beyond their own timeout."""
    processes = start_processes(root, "fail", 2, 2, stderr=subprocess.PIPE, text=True)
    try:
        told = processes[1].communicate(timeout=600)[1]
        other = processes[0].communicate(timeout=600)[1]  # a hang, as it was, lasts longer
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode and processes[1].returncode
    assert "ValueError: this process alone has failed" in told and "this process alone" not in other
    assert {path.name for path in root.glob("met-*")} == {"met-0", "met-1"}
