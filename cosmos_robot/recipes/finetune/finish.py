"""The stages after training: check on held-out episodes, export, serve."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.policies import load_policy
from cosmos_robot.policies.base import Policy
from cosmos_robot.recipes.finetune.learn import start_of
from cosmos_robot.recipes.finetune.measures import Error, error_of, observation_of, predicted, standing
from cosmos_robot.recipes.finetune.plan import recipe_of
from cosmos_robot.recipes.finetune.prepare import open_episodes, training_indices
from cosmos_robot.recipes.finetune.stages import Run, Say, write_json
from cosmos_robot.training.parameters import reinitialise_heads

MOMENTS = 12
"""Looked at in each held-out episode."""
SAME = 1e-5
"""Largest difference, as a share of a column's range, between a served and an in-process answer."""


def check(run: Run, say: Say) -> dict[str, Any]:
    """The trained policy on held-out episodes against three that know nothing."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        episodes, contract = open_episodes(run.description()), run.contract()
        policy = load_policy(run.facts("train")["checkpoint"])
        errors = held_out_errors(policy, episodes, contract)
        model = contract.model
        tell(
            f"mean absolute error of the first {model.execute} commands on {errors['episodes']} held-out episodes, "
            "robot units (95 % interval over episodes):"
        )
        for error in errors["errors"]:
            columns = ", ".join(f"{c:.4g}" for c in error.columns)
            tell(f"{error.name}: {error.told}; by column {columns}")
        mine, *others = errors["errors"]
        best = min(others, key=lambda e: e.mean)
        tell(f"{'better' if mine.mean < best.mean else 'NOT BETTER'} than the best of those, {best.name!r}: "
             f"{mine.mean / best.mean:.2f} of its error")  # fmt: skip
        facts = {"episodes": errors["episodes"], "errors": [asdict(e) for e in errors["errors"]],
                 "better": bool(mine.mean < best.mean)}  # fmt: skip
        write_json(folder / "check.json", facts)
        return facts

    return run.perform("check", work, None, say)


def held_out_errors(policy: Policy, episodes: RecordedEpisodes, contract: Contract) -> dict[str, Any]:
    """The errors of ``policy``, of zeros, of the training commands' mean, and of standing still."""
    training = set(training_indices(len(episodes)))
    held_out = [index for index in range(len(episodes)) if index not in training]
    mean = np.mean([episodes.numbers(index)[1].mean(axis=0) for index in sorted(training)], axis=0)
    chunk, robot = contract.model.chunk, contract.robot
    parts: dict[str, list] = {"policy": [], "zero": [], "mean": [], "repeat the state": []}
    for index in held_out:
        episode = episodes[index]
        rows = np.unique(np.linspace(0, len(episode) - 1, MOMENTS).round().astype(int)).tolist()
        shape = (len(rows), chunk, robot.action_width)
        for name, chunks in (
            ("policy", predicted(policy, episode, 0, rows)),
            ("zero", np.zeros(shape)),
            ("mean", np.broadcast_to(mean, shape)),
            ("repeat the state", standing(robot, episode, rows, chunk)),
        ):
            parts[name].append((chunks, episode, rows))
    errors: list[Error] = [error_of(name, part, contract.model.execute) for name, part in parts.items()]
    return {"episodes": len(held_out), "errors": errors}


def export(run: Run, say: Say) -> dict[str, Any]:
    """The trained checkpoint in the released layout, under the model's name, proved to act as it did."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        trained = Path(run.facts("train")["checkpoint"])
        contract = run.contract()
        target = folder / contract.model.name
        shutil.copytree(trained, target)
        episode = open_episodes(run.description())[0]
        before, after = (predicted(load_policy(f), episode, 0, [0]) for f in (trained, target))
        if not np.array_equal(before, after):
            raise CheckpointError(f"export: {target} does not act as {trained}; was it changed meanwhile?")
        untrained = save_untrained(run, folder / f"{contract.model.name}-before")
        tell(f"checkpoint: {target}")
        tell(f"what training began with, under the same contract, to compare with: {untrained}")
        for checkpoint in (target, untrained):
            tell(f"try it: {closed_loop(run, checkpoint)}")
        return {"checkpoint": str(target), "before": str(untrained)}

    return run.perform("export", work, None, say)


def save_untrained(run: Run, folder: Path) -> Path:
    """The weights that training began with, action heads as they then were, as a checkpoint under the new contract."""
    description, contract = run.description(), run.contract()
    begun = load_checkpoint(start_of(run, description), dtype=torch.float32, contract=contract)
    if recipe_of(description.training).heads == "reinitialise":
        reinitialise_heads(begun.transformer, [contract.model.domain_id], description.training.seed)
    return save_checkpoint(
        folder, transformer=begun.transformer, vae=begun.vae, tokenizer=begun.tokenizer, contract=contract,
        overwrite=True,
    )  # fmt: skip


def closed_loop(run: Run, checkpoint: Path) -> str:
    """The command that tries a checkpoint: in simulation where there is one, else served."""
    env = run.description().env
    if env is None:
        return f"cosmos-robot serve --ckpt {checkpoint}"
    return f"cosmos-robot eval --ckpt {checkpoint} --suite {env.rsplit('/', 1)[0]}"


def serve(run: Run, say: Say) -> dict[str, Any]:
    """Start a server on the export, ask it once over the wire, compare with the same question in this process."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        from cosmos_robot.serve.client import PolicyClient
        from cosmos_robot.serve.commands import ServeConfig, listen, load_models
        from cosmos_robot.serve.server import ServerSettings
        from cosmos_robot.serve.service import Service, ServiceSettings

        checkpoint = run.facts("export")["checkpoint"]
        config = ServeConfig(ckpt=checkpoint, port=0)
        policy = load_policy(checkpoint)
        robot, episode = policy.contract.robot, open_episodes(run.description())[0]
        seen = observation_of(robot, episode, len(episode) // 2)
        with contextlib.ExitStack() as stack:
            service = Service(load_models(config), ServiceSettings(batch=config.batch))
            stack.callback(service.close)
            service.start()
            [(_, address)] = listen(service, ServerSettings(config.host, 0, ""), config, stack)
            client = PolicyClient(address)
            stack.callback(client.close)
            served = client.act([seen], [7])[0].values
        here = policy.act([seen], [7])[0].values
        scale = np.ptp(here, axis=0).max() + 1e-9
        difference = float(np.abs(served - here).max() / scale)
        tell(f"asked at {address} about a recorded moment: {served.shape[0]} commands, first {np.round(served[0], 4)}")
        if difference > SAME:
            raise InputError(f"serve: the served answer differs from the one in this process by {difference:.2g}")
        tell(f"the same question in this process: differs by {difference:.1g} of its range; the server was stopped")
        tell(f"serve it: cosmos-robot serve --ckpt {checkpoint}")
        return {"difference": difference}

    return run.perform("serve", work, None, say)
