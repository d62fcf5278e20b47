"""Recorded episodes as a world-model evaluation reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cosmos_robot.contract import Contract
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.errors import InputError
from cosmos_robot.eval.world_model import WorldModelConfig, episodes_asked, open_source, run_header
from cosmos_robot.eval.world_model_session import SessionSettings
from cosmos_robot.eval.world_model_sources import Recorded


def recorded(run, stride: int, chunk: int, wanted: float | None = None) -> Episode:
    """A row every ``stride`` steps of what was run; by one who wanted ``wanted`` times that, if given."""
    rows = np.arange(0, len(run), stride)
    sent, valid = chunk_rows(run.commands, rows, chunk)
    actions = sent if wanted is None else wanted * sent
    images = {c: np.stack([run.seen.pictures[int(r)][c] for r in rows]) for c in ("table", "hand")}
    state = np.stack([np.concatenate(list(run.seen.states[int(r)].values())) for r in rows])
    extras = {} if wanted is None else {"executed": sent}
    return Episode(TASKS[0], images, state, actions, valid, EpisodeInfo("fake", 0, 0, "expert", True), extras)


def test_commands_are_those_that_were_sent(dots, tmp_path) -> None:
    """A disturbed demonstrator's clean commands are its actions; its pictures follow from ``executed``."""
    contract = dots.dot_contract()
    run = dots.DotSource(1, steps=14).run(0, contract)
    path = write_dataset([recorded(run, 4, 4, wanted=-1)], tmp_path / "dots", FAKE_ROBOT, stride=4)
    read = Recorded(path, 1).run(0, contract).commands
    assert read.shape == (14, 3) and np.allclose(read, run.commands, atol=1e-6), "the last, shorter row included"


def test_chunks_shorter_than_their_stride_are_refused(dots, tmp_path) -> None:
    """However short the episode: with what was not recorded left out, later commands would stand too early."""
    contract = dots.dot_contract()
    run = dots.DotSource(1, steps=15).run(0, contract)
    path = write_dataset([recorded(run, 4, 3)], tmp_path / "dots", FAKE_ROBOT, stride=4)
    with pytest.raises(InputError, match="dots episode 0: its rows hold 3 commands but are 4 steps"):
        Recorded(path, 1).run(0, contract)


def test_failures_in_recordings_of_others_keep_their_numbers(dots, tmp_path) -> None:
    """A world model is asked about failed episodes, too, and success is known where it is labelled."""
    contract = dots.dot_contract()
    every = Contract(robot=contract.robot, model=contract.model.model_copy(update={"actions_per_frame": 1}))
    source = dots.DotSource(3, steps=16)
    runs = [source.run(number, every) for number in range(3)]
    path = write_dataset([recorded(run, 1, 4) for run in runs], tmp_path / "theirs", FAKE_ROBOT, stride=1)
    (path / "meta" / "cosmos_robot.json").unlink()
    [table] = (path / "meta" / "episodes").glob("*/*.parquet")
    pq.write_table(pq.read_table(table).append_column("success", pa.array([False, True, None])), table)
    held = Recorded(path, 9)
    assert held.names() == [f"theirs episode {number}" for number in range(3)]
    for number, (run, success) in enumerate(zip(runs, (False, True, None), strict=True)):
        read = held.run(number, contract)
        assert np.allclose(read.commands, run.commands, atol=1e-6) and read.success is success


def test_episodes_are_chosen_by_number(dots, tmp_path) -> None:
    """Such as those that training held out; another choice is another run."""
    contract, source = dots.dot_contract(), dots.DotSource(3, steps=16)
    runs = [source.run(number, contract) for number in range(3)]
    path = write_dataset([recorded(run, 4, 4) for run in runs], tmp_path / "dots", FAKE_ROBOT, stride=4)
    config = WorldModelConfig("still", data=path, numbers=(2, 0))
    chosen = open_source(config)
    assert chosen.names() == ["dots episode 2", "dots episode 0"] and episodes_asked(config) == 2
    for place, number in enumerate(config.numbers):
        assert np.allclose(chosen.run(place, contract).commands, runs[number].commands, atol=1e-6)
    assert run_header(config, SessionSettings(), contract, chosen)["numbers"] == [2, 0]
    for wrong in ((0, 3), (-1,), (1, 1)):
        with pytest.raises(InputError, match=f"--numbers from 0 to 2, each once, got {' '.join(map(str, wrong))}"):
            open_source(replace(config, numbers=wrong)).names()
    for other in ({"episodes": 2}, {"first_episode": 1}, {"data": None, "env": "fake/0"}):
        with pytest.raises(InputError, match="drop either"):
            open_source(replace(config, **other))
