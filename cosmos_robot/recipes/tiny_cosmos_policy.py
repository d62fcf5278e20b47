"""The recipe of the shipped ``tiny-cosmos-policy``: Cosmos Policy in small, over the shipped tiny Cosmos 3.

docs/tiny-cosmos-policy.md tells what came of it, and in what the shipped weights' own history differs.
"""

from __future__ import annotations

import json
from pathlib import Path

from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.contract import WHOLE_CANVAS, Contract, ModelSpec, SamplerSpec
from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.layout import ACTION, FUTURE, STATE, VALUE
from cosmos_robot.latent_frames.objective import Targets
from cosmos_robot.recipes import RolloutFlags, check_run, tiny_libero
from cosmos_robot.training.frame_config import FrameTraining

NAME = "tiny-cosmos-policy"
PARTS = ("demos", "joint", "rollouts", "refined")
CHUNK = 10
"""Commands at once, all of them executed: the demonstrations' moments are 5 apart."""
FRAMES = (STATE, WHOLE_CANVAS, ACTION, FUTURE + STATE, FUTURE + WHOLE_CANVAS, VALUE)
STEPS = 4000
REFINE_STEPS = 1000
ROLLOUTS = 5
"""Episodes per task of libero_object."""
FIRST_SEED = 20_000
ACTION_WEIGHT = 4.0
VECTOR_WEIGHT = 4.0
POINTING_WEIGHT, OFFSET_WEIGHT = 0.5, 4.0
"""The frames' losses are large; with less than this, seeing is not learned."""
SHIFT = 20.0
"""Above tiny-libero's: a frame holds 87 copies of a chunk, so at a noise that hides a row once, they still tell it."""
SAMPLER_STEPS = 2
"""Held-out commands are as near with 1, 2, 3 and 5."""
STATE_CLAMP = 1.5
"""Demonstrations stay within it. They hardly tilt the hand, so that one in a failed rollout is 90 of their ranges."""
TREND_SEEDS = (0, 1, 2)
TREND_STEPS = 300


def reproduce(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """Run the recipe into ``out``; parts that are done are skipped, one that was stopped goes on.

    demos: those of tiny-libero. joint: policy, world model and value from demonstrations, on the weights of
    tiny-libero. rollouts: episodes of the joint policy. refined: further joint training with them.
    """
    check_run(PARTS, until, scale)
    if corrections:
        raise InputError(f"{NAME} knows no corrections; leave them out")
    shipped, demos, rolled = find_checkpoint(tiny_libero.NAME).folder, out / "demos", out / "rollouts"
    policy, episodes = str(out / "joint" / "export"), max(1, round(ROLLOUTS * scale))
    parts = {
        "demos": lambda: tiny_libero.record_demos(demos, tiny_libero.scaled(tiny_libero.DEMOS, scale), 1000, workers),
        "joint": lambda: _train(joint_training(out, demos, shipped, scale=scale)),
        "rollouts": lambda: record_rollouts(policy, rolled, episodes, workers),
        "refined": lambda: _train(refined_training(out, demos, rolled, scale=scale)),
    }
    for part in PARTS:
        parts[part]()
        if part == until:
            return
    export(out / "refined" / "export", out)


def contract() -> Contract:
    """tiny-libero's robot, canvas and words; a chunk, the moment after it and its value in six latent frames."""
    base = tiny_libero.contract()
    changes = {
        "name": NAME,
        "modes": ("policy", "world_model", "value"),
        "chunk": CHUNK,
        "execute": CHUNK,
        "actions_per_frame": CHUNK,
        "frames": FRAMES,
        "frame_encoding": "stills",
        "state_normalization": base.model.state_normalization.model_copy(update={"clamp": STATE_CLAMP}),
        "sampler": SamplerSpec(solver="euler", steps=SAMPLER_STEPS, shift=SHIFT),
    }
    return Contract(robot=base.robot, model=ModelSpec.model_validate(base.model.model_dump() | changes))


def joint_training(out: Path, demos: Path, start: Path, *, scale: float = 1.0, name: str = "joint",
                   **changes) -> FrameTraining:  # fmt: skip
    """Policy, world model and value from demonstrations, on the weights of ``start``."""
    settings = {
        "cache": out / "cache",
        "contract": contract(),
        "steps": max(2, round(STEPS * scale)),
        "patch": 2,
        "lr": 7e-4,
        "targets": Targets(action_weight=ACTION_WEIGHT),
        "vector_weight": VECTOR_WEIGHT,
        "pointing_weight": POINTING_WEIGHT,
        "offset_weight": OFFSET_WEIGHT,
    }
    return FrameTraining(out=out / name, demos=(demos,), start=start, **(settings | changes))


def refined_training(out: Path, demos: Path, rollouts: Path, *, scale: float = 1.0, **changes) -> FrameTraining:
    """The joint checkpoint, trained further with what it did, successes and failures."""
    settings = {"steps": max(2, round(REFINE_STEPS * scale)), "lr": 5e-4, "rollouts": (rollouts,)}
    return joint_training(out, demos, out / "joint" / "export", name="refined", **(settings | changes))


def record_rollouts(driver: str, out: Path, episodes: int, workers: int) -> None:
    """``episodes`` of a policy in each task of libero_object, in layouts of their own; done if there."""
    if out.exists():
        return
    from cosmos_robot.recipes import rollouts as command

    command.record_rollouts(driver, out, tiny_libero.OBJECT_TASKS, episodes, FIRST_SEED, workers, RolloutFlags())


def export(trained: Path, out: Path, share_with: str | None = None, name: str = NAME) -> Path:
    """The trained checkpoint as ``out/name``: whole, or without what a folder ``share_with`` beside it has."""
    import torch

    from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint

    found = load_checkpoint(trained, dtype=torch.float32)
    own = {"vae": found.vae, "tokenizer": found.tokenizer} if share_with is None else {"share_with": share_with}
    return save_checkpoint(
        out / name, transformer=found.transformer, contract=found.contract, overwrite=True, **own
    )  # fmt: skip


def trend(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """The paper's ablation in small: all targets against none beside the action, same start, steps and data.

    Both arms go on from the recipe's joint checkpoint in ``out/joint``, trained first if it is not there: a few hundred
    steps from tiny-libero's weights teach neither arm to look. ``out/trend.json`` holds, per arm, the errors on
    held-out demonstrations of every seed, and for the action error the difference of the arms with a 95 % interval
    (Student's t over seeds).
    """
    if until is not None or corrections:
        raise InputError("this recipe has one part and no corrections; leave until and corrections out")
    reproduce(out, until="joint", workers=workers, scale=scale)
    demos, start = out / "demos", out / "joint" / "export"
    arms = {"joint": Targets(action_weight=ACTION_WEIGHT), "action_only": Targets.alone(action_weight=ACTION_WEIGHT)}
    found: dict[str, dict[str, list[float]]] = {arm: {} for arm in arms}
    for seed in TREND_SEEDS:
        for arm, targets in arms.items():
            steps = max(2, round(TREND_STEPS * scale))
            run = joint_training(out, demos, start, name=f"{arm}-{seed}", steps=steps, targets=targets, seed=seed,
                                 ema=0.98, validate_steps=10**6)  # fmt: skip
            _train(run)
            for name, value in _last_validation(run.out).items():
                found[arm].setdefault(name, []).append(value)
    (out / "trend.json").write_text(json.dumps({"arms": found, "action_mae": _difference(found)}, indent=2) + "\n")


def _difference(found: dict[str, dict[str, list[float]]]) -> dict[str, float | list[float]]:
    """Joint minus action-only, paired by seed."""
    from cosmos_robot.eval.statistics import student_mean

    pairs = zip(found["joint"]["action_mae"], found["action_only"]["action_mae"], strict=True)
    found_gap = student_mean([joint - alone for joint, alone in pairs])
    assert found_gap is not None
    mean, low, high = found_gap
    return {"joint_minus_action_only": mean, "ci95": [low, high]}


def _last_validation(folder: Path) -> dict[str, float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "validation"][-1]
    return {name: value for name, value in last.items() if name not in ("kind", "cycle", "step", "cycle_seconds")}


def _train(config: FrameTraining) -> None:
    from cosmos_robot.training.frame_trainer import train_frames

    train_frames(config)
