"""A small checkpoint and small runs of the post-training, for its tests and for the processes that they start."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from dots import draw_episode

from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.contract import Contract
from cosmos_robot.errors import Interrupted
from cosmos_robot.training.cache import EpisodeList
from cosmos_robot.training.crew import ShardedCrew
from cosmos_robot.training.model_config import ModelTraining, PostTraining, Sharding, Stream
from cosmos_robot.training.model_learner import ModelLearner
from cosmos_robot.training.model_trainer import train_model

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "rope_axes_dim": [6, 5, 5],
}  # fmt: skip
ALL_MODES = {"policy": 1.0, "wam": 1.0, "forward_dynamics": 1.0, "inverse_dynamics": 1.0}
SENTENCES = ("go to the red block", "go to the green block")


def dots(count: int = 6) -> EpisodeList:
    """Rows two control steps apart, each with the four commands that follow."""
    return EpisodeList([draw_episode(seed, rows=9) for seed in range(count)])


def dot_contract(contract: Contract, **changes) -> Contract:
    """Five pictures a chunk, one command apart each: two latent frames."""
    return Contract(
        robot=contract.robot, model=contract.model.model_copy(update={"modes": tuple(ALL_MODES), **changes})
    )


def small_checkpoint(folder: Path, contract: Contract) -> Path:
    return save_untrained(folder / "start", contract, SENTENCES, seed=3, **SMALL)


def small_run(folder: Path, contract: Contract, **changes) -> ModelTraining:
    """All modes, in float32, six steps."""
    recipe = changes.pop("recipe", {})
    stream = Stream(name="dots", contract=contract, modes=changes.pop("modes", ALL_MODES))
    settings = {
        "out": folder / "run", "streams": (stream,), "start": folder / "start", "cache": folder / "cache", "steps": 6,
        "batch": 4, "compute": "float32", "threads": 1, "progress": False, "validation_every": 3,
        "validation_samples": 4, "validate_steps": 100, "shuffle_episodes": 2, "save_seconds": 1e9,
        "recipe": PostTraining(**{"lr": 1e-3, "warmup": 2, **recipe}),
    }  # fmt: skip
    return ModelTraining(**{**settings, **changes})


def interrupted_at(step: int, number: int) -> None:
    """Send this process signal ``number`` in the middle of step ``step`` of the next run."""
    whole = ModelLearner.train_step

    def train_step(self, cycle, at, rate):
        if at == step:
            ModelLearner.train_step = whole
            os.kill(os.getpid(), number)
        return whole(self, cycle, at, rate)

    ModelLearner.train_step = train_step


def main(folder: Path, action: str, step: int) -> None:
    """What a started process does with the settings that lie in ``folder``.

    kill: train, and die in step ``step`` by SIGKILL. shard, hsdp: train with the other processes; in that step the last
    of them gets Ctrl-C; train on. fail: wait for each other longer than the processes' own timeout; then train with the
    others, and raise in that step in the last of them alone.
    """
    if action == "fail":
        fail(folder, step)
        return
    config = small_run(folder, Contract.load(folder), out=folder / action, save_seconds=0.0)
    if action == "kill":
        interrupted_at(step, signal.SIGKILL)
        train_model(config, {"dots": [dots()]})
    dist.init_process_group("gloo")  # two runs, one group
    config = dataclasses.replace(config, sharding=Sharding(replicas=2 if action == "hsdp" else 1))
    if os.environ["RANK"] == "1":
        interrupted_at(step, signal.SIGINT)
    try:
        train_model(config, {"dots": [dots()]})
    except Interrupted:
        (folder / f"{action}-interrupted-{os.environ['RANK']}").touch()
    train_model(config, {"dots": [dots()]})
    dist.destroy_process_group()


def fail(folder: Path, step: int) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = {"init_method": f"file://{folder / 'store'}", "rank": rank, "world_size": size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=2), **store)
    crew = ShardedCrew(Sharding())
    if not rank:
        time.sleep(4)  # as while it encodes a dataset
    crew.meet()
    dist.destroy_process_group()
    (folder / f"met-{rank}").touch()
    whole = ModelLearner.train_step

    def train_step(self, cycle, at, rate):
        if rank and at == step:
            raise ValueError("this process alone has failed")
        return whole(self, cycle, at, rate)

    ModelLearner.train_step = train_step
    settings = {"out": folder / "fail", "save_seconds": 0.0, "sharding": Sharding()}
    train_model(small_run(folder, Contract.load(folder), **settings), {"dots": [dots()]})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
