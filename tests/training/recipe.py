"""A small checkpoint and small runs of the post-training, for its tests and for the processes that they start."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from dots import draw_episode

from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.contract import Contract
from cosmos_robot.training.cache import EpisodeList
from cosmos_robot.training.model_config import ModelTraining, PostTraining, Sharding, Stream
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


def main(folder: Path, out: str, action: str) -> None:
    """What a started process does: train ``folder/out`` from the settings that lie in ``folder``."""
    contract = Contract.load(folder)
    changes = {"sharding": Sharding(replicas=2 if action == "hsdp" else 1)} if action in ("shard", "hsdp") else {}
    config = small_run(folder, contract, save_seconds=0.0, **changes)
    train_model(dataclasses.replace(config, out=folder / out), {"dots": [dots()]})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
