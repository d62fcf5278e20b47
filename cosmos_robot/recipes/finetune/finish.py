"""The stages after training: check on held-out episodes, export, serve."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.policies import load_policy
from cosmos_robot.policies.base import Policy
from cosmos_robot.recipes.finetune.learn import no_policy, start_of
from cosmos_robot.recipes.finetune.measures import (
    Error,
    Ratio,
    column_ratios,
    error_of,
    mean_command,
    observation_of,
    predicted,
    standing,
    worst_of,
)
from cosmos_robot.recipes.finetune.plan import recipe_of
from cosmos_robot.recipes.finetune.prepare import held_out_indices, training_commands
from cosmos_robot.recipes.finetune.recordings import open_episodes
from cosmos_robot.recipes.finetune.stages import Run, Say, write_json
from cosmos_robot.recipes.finetune.start import weights_digest
from cosmos_robot.training.parameters import reinitialise_heads
from cosmos_robot.types import Observation

MOMENTS = 12
"""Looked at in each held-out episode."""
MEASURED = 10
"""Held-out episodes, at most, on which a world model is said to be measured: enough for a verdict."""
SAME = 1e-5
"""Largest difference, as a share of a column's range, between a served and an in-process answer."""


def check(run: Run, say: Say) -> dict[str, Any]:
    """The trained policy on held-out episodes against three that know nothing, column by column."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        episodes, contract = open_episodes(run), run.contract()
        checkpoint = run.found("train", "checkpoint")
        if not run.description().training.acts:
            tell(f"errors of commands cannot be measured: {no_policy(contract)}")
            tell("losses on held-out episodes are in the log of train")
            for line in trials(run, [Path(checkpoint)]):
                tell(line)
            return {"ratios": None}
        held_out = held_out_errors(load_policy(checkpoint), episodes, contract)
        for line in _error_lines(contract, held_out):
            tell(line)
        worst = worst_of(held_out.ratios)
        facts = {"episodes": held_out.episodes, "errors": [asdict(e) for e in held_out.errors],
                 "ratios": [asdict(r) for r in held_out.ratios], "worst": None if worst is None else worst.column,
                 "better": worst is not None and (worst.share or 0) < 1}  # fmt: skip
        write_json(folder / "check.json", facts)
        return facts

    return run.perform("check", work, say)


@dataclass(frozen=True)
class HeldOut:
    """Errors on so many held-out episodes: of the policy, of zeros, of the mean command and of standing still, and in
    each column the policy's against the best of the others."""

    episodes: int
    errors: tuple[Error, ...]
    ratios: tuple[Ratio, ...]


def _error_lines(contract: Contract, held_out: HeldOut) -> Iterator[str]:
    """What ``check`` has to say. A mean over columns of different units is not told."""
    one_unit = len({field.unit for field in contract.robot.action}) == 1
    yield (
        f"mean absolute error of the first {contract.model.execute} commands on {held_out.episodes} held-out episodes, "
        f"robot units{' (95 % interval over episodes)' if one_unit else ''}:"
    )
    for error in held_out.errors:
        columns = ", ".join(f"{c:.4g}" for c in error.columns)
        yield f"{error.name}: {f'{error.told}; ' if one_unit else ''}by column {columns}"
    yield "each column against the best of those that know nothing:"
    yield from (ratio.told for ratio in held_out.ratios)
    worst = worst_of(held_out.ratios)
    if worst is None:
        yield "NOT CHECKED: no column of the held-out commands moves"
    else:
        verdict = "better than these in every column" if (worst.share or 0) < 1 else "NOT BETTER in every column"
        yield f"{verdict}; the worst is {worst.told}"


def held_out_errors(policy: Policy, episodes: RecordedEpisodes, contract: Contract) -> HeldOut:
    """The errors of ``policy``, of zeros, of the training commands' mean, and of standing still."""
    held_out = held_out_indices(len(episodes))
    mean, usual = mean_command(training_commands(episodes))
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
    mine, *others = errors = [error_of(name, part, contract.model.execute) for name, part in parts.items()]
    constant = next(error.columns for error in others if error.name == "mean")
    ratios = column_ratios(robot, mine.columns, {e.name: e.columns for e in others}, constant, usual.tolist())
    return HeldOut(len(held_out), tuple(errors), ratios)


def export(run: Run, say: Say) -> dict[str, Any]:
    """The trained checkpoint in the released layout, under the model's name, proved to act as it did."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        trained, weights = run.found("train", "checkpoint"), run.facts("train")["weights"]
        contract = run.contract()
        target = folder / contract.model.name
        shutil.copytree(trained, target)
        if weights_digest(target) != weights:
            raise CheckpointError(
                f"export: {target} has not the weights that train left in {trained}; were they changed?"
            )
        if run.description().training.acts:
            _require_alike(run, trained, target)
        untrained = save_untrained(run, folder / f"{contract.model.name}-before")
        tell(f"checkpoint: {target}")
        tell(f"what training began with, under the same contract, to compare with: {untrained}")
        for line in trials(run, [target, untrained]):
            tell(line)
        return {"checkpoint": run.inside(target), "before": run.inside(untrained), "weights": weights}

    return run.perform("export", work, say)


def _require_alike(run: Run, trained: Path, target: Path) -> None:
    episode = open_episodes(run)[0]
    before, after = (predicted(load_policy(f), episode, 0, [0]) for f in (trained, target))
    if not np.array_equal(before, after):
        raise CheckpointError(f"export: {target} does not act as {trained}; was it changed meanwhile?")


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


def trials(run: Run, checkpoints: Sequence[Path]) -> list[str]:
    """How checkpoints are tried: in simulation where there is one, else served; on held-out episodes if they are no
    policies."""
    description = run.description()
    if not description.training.acts:
        return _world_model_trials(open_episodes(run), checkpoints)
    env = description.env
    if env is None:
        return [f"try it: cosmos-robot serve --ckpt {checkpoint}" for checkpoint in checkpoints]
    return [f"try it: cosmos-robot eval --ckpt {c} --suite {env.rsplit('/', 1)[0]}" for c in checkpoints]


def _world_model_trials(episodes: RecordedEpisodes, checkpoints: Sequence[Path]) -> list[str]:
    """The commands that measure videos and labels on held-out episodes, or one line that says why there is none."""
    indices = held_out_indices(len(episodes))[:MEASURED]
    unread = _unread(episodes, indices)
    if unread:
        return [
            f"videos and labels cannot be measured yet: eval-world-model reads no {', '.join(unread)}; write the "
            "recordings under the contract's names (write_dataset over RecordedEpisodes); held out of those are "
            f"--numbers {' '.join(map(str, indices))}"
        ]
    places = " ".join(str(episodes.places[index]) for index in indices)
    told = "videos and labels of held-out episodes are measured by: cosmos-robot eval-world-model --ckpt"
    return [f"{told} {checkpoint} --data {episodes.data.path} --numbers {places}" for checkpoint in checkpoints]


def _unread(episodes: RecordedEpisodes, indices: Sequence[int]) -> list[str]:
    """What of a description ``eval-world-model``, which reads none, would need for these episodes."""
    data = episodes.data
    needed = {
        "state_column": data.state_column,
        "action_column": data.action_column,
        "cameras": any(ours != theirs for ours, theirs in data.cameras.items()),
        "state": data.state,
        "action": data.action,
        "instruction": any(not episodes.recordings[index].instruction.strip() for index in indices),
    }
    return [f"data.{name}" for name, value in needed.items() if value]


def serve(run: Run, say: Say) -> dict[str, Any]:
    """Start a server on the export, ask it once over the wire, compare with the same question in this process."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        checkpoint = run.found("export", "checkpoint")
        if not run.description().training.acts:
            tell(f"not served: {no_policy(run.contract())}")
            return {"difference": None}
        policy = load_policy(checkpoint)
        robot, episode = policy.contract.robot, open_episodes(run)[0]
        seen = observation_of(robot, episode, len(episode) // 2)
        address, served = _asked(str(checkpoint), seen)
        here = policy.act([seen], [7])[0].values
        scale = np.ptp(here, axis=0).max() + 1e-9
        difference = float(np.abs(served - here).max() / scale)
        tell(f"asked at {address} about a recorded moment: {served.shape[0]} commands, first {np.round(served[0], 4)}")
        if difference > SAME:
            raise InputError(f"serve: the served answer differs from the one in this process by {difference:.2g}")
        tell(f"the same question in this process: differs by {difference:.1g} of its range; the server was stopped")
        tell(f"serve it: cosmos-robot serve --ckpt {checkpoint}")
        return {"difference": difference}

    return run.perform("serve", work, say)


def _asked(checkpoint: str, seen: Observation) -> tuple[str, NDArray[np.float64]]:
    """The address of a server on ``checkpoint``, which is stopped again, and its answer (T, D) to one question."""
    from cosmos_robot.serve.client import PolicyClient
    from cosmos_robot.serve.commands import ServeConfig, listen, load_models
    from cosmos_robot.serve.server import ServerSettings
    from cosmos_robot.serve.service import Service, ServiceSettings

    config = ServeConfig(ckpt=checkpoint, port=0)
    with contextlib.ExitStack() as stack:
        service = Service(load_models(config), ServiceSettings(batch=config.batch))
        stack.callback(service.close)
        service.start()
        [(_, address)] = listen(service, ServerSettings(config.host, 0, ""), config, stack)
        client = PolicyClient(address)
        stack.callback(client.close)
        return address, client.act([seen], [7])[0].values
