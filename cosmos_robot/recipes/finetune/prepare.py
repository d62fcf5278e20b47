"""The stages before training: describe, lint, stats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.layouts import action_layout, state_layout
from cosmos_robot.actions.spaces import SpaceMap
from cosmos_robot.actions.statistics import StatisticsAccumulator
from cosmos_robot.contract import Contract, FieldSpec, Normalization, Statistics
from cosmos_robot.data.bridge import RecordedEpisodes, column_names
from cosmos_robot.data.contract_lint import check_contract
from cosmos_robot.data.findings import Finding
from cosmos_robot.data.lint import lint as lint_dataset
from cosmos_robot.errors import InputError
from cosmos_robot.recipes.finetune.description import read_description, require_start
from cosmos_robot.recipes.finetune.plan import stream_of
from cosmos_robot.recipes.finetune.reads import START
from cosmos_robot.recipes.finetune.recordings import open_episodes
from cosmos_robot.recipes.finetune.stages import DESCRIPTION, Run, Say, write_json
from cosmos_robot.recipes.finetune.start import start_note
from cosmos_robot.training.cache import VALIDATION_EVERY

ROUND_TRIP = 1e-4
"""Largest share of a column's range that encoding and decoding may lose."""
FLOORS = (1e-4, 0.01)
"""Between these lies the floor under the normaliser's scales, in the columns' own units: so that what stands still but
for noise is not blown up, and small motions, such as metres of one step, are not lost."""


def describe(run: Run, path: Path, say: Say) -> dict[str, Any]:
    """A description as a contract and a mapping of the recordings, both checked against each other."""
    description = read_description(path)
    require_start(description.start)
    stream_of(description, description.contract)
    episodes = RecordedEpisodes(description.data, description.contract)
    noted = run.facts("describe").get("start") if run.is_done("describe") else None
    start = start_note(description.start, noted)
    given = {"description": description.model_dump(mode="json"), "recordings": episodes.fingerprint,
             START: start["weights"]}  # fmt: skip

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        contract, robot, model = description.contract, description.contract.robot, description.contract.model
        tell(f"robot {robot.name}: commands {robot.action_reference}, {robot.rate_hz:g} per second")
        for what, fields in (("state", robot.state), ("action", robot.action)):
            tell(f"{what}: {_told(fields)} from columns {_from(episodes, what)}")
        tell(f"cameras: {', '.join(f'{ours} from {theirs}' for ours, theirs in episodes.cameras.items())}")
        tell(
            f"model {model.name}: canvas {model.canvas.height}x{model.canvas.width}, {model.chunk} rows a chunk, "
            f"{model.execute} run; domain {model.domain_id} ({model.domain_name})"
        )
        tell(f"trained as {', '.join(f'{name} ({share:g})' for name, share in description.training.shares.items())}")
        tell(f"taken from {description.start}: {', '.join(description.taken)}")
        tell(
            f"data: {len(episodes)} episodes, {sum(episodes.recordings.lengths)} control steps, a decision every "
            f"{description.data.stride}"
        )
        tell(failures_line(episodes))
        contract.save(folder)
        (folder / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n")
        return {"episodes": len(episodes), "data": episodes.fingerprint, "start": start,
                "contract": contract.model_dump(mode="json")}  # fmt: skip

    return run.perform("describe", work, say, given)


def lint(run: Run, say: Say) -> dict[str, Any]:
    """Faults of the dataset by itself and against the contract. Raises InputError listing the errors, if there are."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description = run.description()
        data, episodes = description.data, open_episodes(run)
        report = lint_dataset(
            data.path, state=data.state_column, action=data.action_column, pictures=2000, places=episodes.places
        )
        against = [*check_contract(episodes), *_failures(episodes)]
        write_json(folder / "report.json", {**report.as_json(), "contract": [f.__dict__ for f in against]})
        findings = [*report.findings, *against]
        for guess in report.guesses:
            tell(f"{guess.topic}: looks like {guess.answer} ({guess.sure:.0%} sure)")
        for f in findings:
            tell(_finding(f))
        errors = [f for f in findings if f.severity == "error"]
        if errors:
            raise InputError(
                f"lint: {len(errors)} errors in {data.path}; nothing is trained on them:"
                + "".join(f"\n  - {_finding(f)}" for f in errors)
            )
        tell(f"0 errors, {len(findings)} warnings")
        return {"warnings": [f.code for f in findings]}

    return run.perform("lint", work, say)


def _failures(episodes: RecordedEpisodes) -> Iterator[Finding]:
    """What lint says about episodes marked unsuccessful."""
    if False in episodes.success:
        remedy = "see that the labels are right; what is kept is imitated, failures as well"
        yield Finding("failures", "warning", str(episodes.data.path), failures_line(episodes), remedy)


def failures_line(episodes: RecordedEpisodes) -> str:
    """How many episodes are marked unsuccessful, and what becomes of them, in words."""
    failed, unmarked = episodes.success.count(False), episodes.success.count(None)
    if not failed:
        return "failures: none is marked" + (f", {unmarked} episodes say nothing about it" if unmarked else "")
    done = "left out" if episodes.data.failures == "drop" else "imitated like the others"
    return f"failures: {failed} of {len(episodes.success)} episodes are marked unsuccessful and {done} (data.failures)"


def stats(run: Run, say: Say) -> dict[str, Any]:
    """Statistics of the training episodes in the model's own space, and the contract that holds them."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description = run.description()
        episodes, contract = open_episodes(run), description.contract
        training = training_indices(len(episodes))
        state, action = _measured(episodes, training)
        method = description.normalization
        normalization = {
            side: Normalization(
                method=method, scale_floor=description.scale_floor or scale_floor(method, statistics),
                statistics=statistics,
            )
            for side, statistics in (("state", state), ("action", action))
        }  # fmt: skip
        update = {f"{side}_normalization": value for side, value in normalization.items()}
        made = Contract(robot=contract.robot, model=contract.model.model_copy(update=update))
        tell(f"{action.count} control steps of {len(training)} episodes; {len(episodes) - len(training)} are held out")
        for side, fields, statistics in (
            ("state", contract.robot.state, state),
            ("action", contract.robot.action, action),
        ):
            for line in _statistics_lines(side, fields, statistics):
                tell(line)
            for line in _floored_lines(side, fields, normalization[side]):
                tell(line)
        lost = _round_trip(made, episodes, training)
        tell(f"{method}; robot units to model rows and back loses {lost:.1e} of a column's range")
        made.save(folder)
        return {"normalization": {k: v.model_dump(mode="json") for k, v in normalization.items()}}

    return run.perform("stats", work, say)


def held_out_indices(count: int) -> list[int]:
    """Episodes that the trainer holds out: every 20th, from the first on."""
    return list(range(0, count, VALIDATION_EVERY))


def training_indices(count: int) -> list[int]:
    """Episodes that are trained on: all but those held out. Raises InputError where nothing would be left."""
    held_out = set(held_out_indices(count))
    chosen = [index for index in range(count) if index not in held_out]
    if not chosen:
        raise InputError(f"{count} episode is too few: the first one is held out to measure on; record more")
    return chosen


def training_commands(episodes: RecordedEpisodes) -> NDArray[np.float32]:
    """The commands (N, D) of all control steps that are trained on, robot units."""
    return np.concatenate([episodes.numbers(index)[1] for index in training_indices(len(episodes))])


def _measured(episodes: RecordedEpisodes, indices: Sequence[int]) -> tuple[Statistics, Statistics]:
    contract = episodes.contract
    states = SpaceMap(state_layout(contract.robot), contract.model.state_space, state_layout(contract.robot))
    actions = SpaceMap(action_layout(contract.robot), contract.model.action_space, state_layout(contract.robot))
    state, action = StatisticsAccumulator(states.model.width), StatisticsAccumulator(actions.model.width)
    for index in indices:
        seen, commands = episodes.numbers(index)
        state.update(states.to_model(seen))
        if not actions.relative:
            action.update(actions.to_model(commands))
            continue
        episode = episodes.episode(index)
        rows = actions.to_model(episode.actions, episode.state)
        action.update(rows[episode.valid])
    return state.finish(), action.finish()


def _round_trip(contract: Contract, episodes: RecordedEpisodes, indices: Sequence[int]) -> float:
    """The largest error of encoding and decoding, as a share of each column's range. Raises InputError if it is one."""
    codec, worst = Codec(contract), 0.0
    for index in indices[:5]:
        episode = episodes.episode(index)
        back = codec.decode_actions(codec.encode_actions(episode.actions, episode.state), episode.state, was_open=True)
        error = np.abs(back - episode.actions)[episode.valid]
        scale = np.ptp(episode.actions.reshape(-1, error.shape[1]).astype(np.float64), axis=0) + 1e-9
        worst = max(worst, float((error / scale).max()))
    if worst > ROUND_TRIP:
        raise InputError(
            f"stats: commands do not survive encoding and decoding: {worst:.1%} of a column's range is lost; are they "
            "within the robot's range, and its gripper's values the recorded ones?"
        )
    return worst


def scale_floor(method: str, statistics: Statistics) -> float:
    """The floor under all columns' scales where nobody gave one: the smallest scale of a column that moves, within
    ``FLOORS``."""
    moves = np.array(statistics.column("max")) > np.array(statistics.column("min"))
    sizes = _scales(method, statistics)[moves]
    return float(np.clip(sizes[sizes > 0].min(initial=FLOORS[1]), *FLOORS))


def _scales(method: str, statistics: Statistics) -> NDArray[np.float64]:
    """(D,) what each column is divided by where no floor holds: its half-range or standard deviation."""
    if method == "meanstd":
        return np.array(statistics.column("std"))
    low, high = ("min", "max") if method == "minmax" else ("q01", "q99")
    return (np.array(statistics.column(high)) - np.array(statistics.column(low))) / 2


def _floored_lines(side: str, fields: Sequence[FieldSpec], normalization: Normalization) -> Iterator[str]:
    """Which columns are divided by the floor instead of their own scale, in words."""
    assert normalization.statistics is not None
    floor, scales = normalization.scale_floor, _scales(normalization.method, normalization.statistics)
    for name, scale in zip(_column_names(fields, len(scales)), scales, strict=True):
        if scale < floor:
            yield (
                f"{side} {name}: its scale {scale:.3g} is below the floor {floor:.3g}, by which it is divided instead; "
                "if that is a motion and no noise, set a lower model.scale_floor"
            )


def _statistics_lines(side: str, fields: Sequence[FieldSpec], statistics: Statistics) -> list[str]:
    shown = ("min", "q01", "mean", "q99", "max")
    return [
        f"{side} {name}: " + ", ".join(f"{n} {statistics.column(n)[i]:.4g}" for n in shown)
        for i, name in enumerate(_column_names(fields, statistics.width))
    ]


def _column_names(fields: Sequence[FieldSpec], width: int) -> list[str]:
    """Names of ``width`` columns, numbers where the model's space is not that of ``fields``."""
    names = [name for field in fields for name in column_names(field)]
    return names if len(names) == width else [str(i) for i in range(width)]


def _told(fields: Sequence[FieldSpec]) -> str:
    return ", ".join(f"{f.name} ({f.width}, {f.unit})" for f in fields)


def _from(episodes: RecordedEpisodes, what: str) -> str:
    names = getattr(episodes.recordings, f"{what}_names")
    return ", ".join(names[c] if names else str(c) for c in episodes.columns[what])


def _finding(f: Finding) -> str:
    return f"{f.severity} {f.code} at {f.where}: {f.what}; {f.remedy}"
