"""The command over real, untrained checkpoints: simulator and dataset, JSON and report, resumed and in parallel."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.cli import main
from cosmos_robot.contract import Contract, ModelSpec
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.errors import InputError
from cosmos_robot.eval.world_model_models import ModelsSpec, shuffle_weights
from cosmos_robot.eval.world_model_sources import Live, Recorded
from cosmos_robot.eval.world_model_windows import Window, windows_of
from cosmos_robot.policies import load_world_model

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
MODES = ("forward_dynamics", "inverse_dynamics", "wam")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Cosmos 3 that imagines, reads videos and foresees: chunks of four commands, a frame each."""
    made = untrained_contract(FAKE_ROBOT, "every-mode", chunk=4, execute=2)
    sampler = made.model.sampler.model_copy(update={"steps": 1})
    model = made.model.model_copy(update={"modes": MODES, "sampler": sampler, "state_row": False})
    contract = Contract(robot=made.robot, model=ModelSpec.model_validate(model.model_dump()))
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "every", contract, TASKS, **SMALL)


def test_a_run_that_cannot_suffice_is_told_so_at_the_start(folder, tmp_path, capsys) -> None:
    flags = ["--ckpt", "still", "--contract", str(folder), "--env", "fake/1", "--driver", "random", "--steps", "9"]
    flags += ["--json", str(tmp_path / "out.json"), "--filmed", "0"]
    assert main(["eval-world-model", *flags, "--episodes", "2"]) == 0
    warned = capsys.readouterr().err.replace("\n", " ")
    assert "warning: at most 8 windows of 2 episodes" in warned and "raise --episodes" in warned
    assert warned.index("warning") < warned.index("1/2 fake/1 init 0")
    assert main(["eval-world-model", *flags, "--gamma", "0", "--fresh"]) == 2
    assert "the published one is 0.99" in capsys.readouterr().err.replace("\n", " ")


def run(capsys, *flags: str) -> dict:
    assert main(["eval-world-model", *flags, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_simulator_from_one_command(folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--ckpt", str(folder), "--env", "fake/0", "--driver", "random", "--episodes", "2", "--steps", "12"]
    flags += ["--windows", "1"]
    content = run(capsys, *flags)
    assert content["windows"] == 2 and content["episodes"] == 2
    assert set(content["overall"]) == {"model", "last", "mean", "untrained"}
    assert content["verdict"]["follows"] is None and "at least 10 of 3" in content["verdict"]["sentence"]
    assert (content["gamma"], content["cut_at"], content["episodes_asked"]) == (0.99, 12, 2)
    assert {f["name"] for f in content["faults"]} >= {"a future frame leaks in", "commands arrive at another scale"}
    assert content["inverse"]["windows"] == 2 and content["inverse"]["model"]["rmse"] > 0
    assert content["joint"] is None, "this simulator cannot go back to a moment"
    assert set(content["not_available"]) == {"lpips", "value_calibration", "states", "pairing", "ranking", "joint"}
    beside = tmp_path / "runs" / "world_model"
    assert {p.suffix for p in beside.iterdir()} == {".json", ".html", ".jsonl", ".films"}
    page = next(beside.glob("*.html")).read_text()
    assert page.count("data:video/mp4") == 2

    log = next(beside.glob("*.jsonl"))
    before = log.read_bytes()
    again = run(capsys, *flags)
    assert again == content and log.read_bytes() == before, "nothing was measured again"
    assert main(["eval-world-model", *flags, "--seed", "1"]) == 2
    assert "seed: 0 then, 1 now" in capsys.readouterr().err


def test_workers_measure_the_same(folder, tmp_path) -> None:
    flags = ["--ckpt", "still", "--contract", str(folder), "--env", "fake/1", "--driver", "random", "--steps", "9"]
    results = []
    for workers in ("1", "2"):
        path = tmp_path / f"{workers}.json"
        assert main(["eval-world-model", *flags, "--workers", workers, "--json", str(path), "--filmed", "0"]) == 0
        results.append(json.loads(path.read_text()))
    assert results[0] == results[1]
    assert {f["name"] for f in results[0]["faults"] if f["found"]} == {"repeats the last frame", "ignores the commands"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, folder):
    """One episode that the fake environment recorded, every second step, and one that was only labelled."""
    contract = Contract.load(folder)
    source = Live(("fake/0",), 1, "random", steps=16)
    run = source.run(0, contract)
    source.close()
    rows = np.arange(0, 16, 2)
    actions, valid = chunk_rows(run.commands, rows, 4)
    images = {c: np.stack([run.seen.pictures[int(r)][c] for r in rows]) for c in ("table", "hand")}
    state = np.stack([np.concatenate(list(run.seen.states[int(r)].values())) for r in rows])
    episodes = [
        Episode(TASKS[0], images, state, actions, valid, EpisodeInfo("fake", 0, 0, kind, True))
        for kind in ("expert", "dagger")
    ]
    return run, write_dataset(episodes, tmp_path_factory.mktemp("data") / "dots", FAKE_ROBOT, stride=2)


def test_recorded_episodes_are_what_was_run(folder, dataset) -> None:
    made, path = dataset
    contract = Contract.load(folder)
    two = Contract(robot=contract.robot, model=contract.model.model_copy(update={"actions_per_frame": 2}))
    run = Recorded(path, 1).run(0, two)
    assert np.allclose(run.commands, made.commands, atol=1e-6) and run.success is True and run.replay is None
    windows = windows_of(run, two, chunks=2, most=9)
    assert [w.start for w in windows] == [2], "one of 8 steps, about the middle: what lies beyond 14 was not seen"
    apart = windows[0].truth(two).astype(int) - Window(made, windows[0].start, 2).truth(two)
    assert np.abs(apart).mean() < 3, "pictures come back from the video"
    with pytest.raises(InputError, match="pictures every 2 steps, 'every-mode' predicts one every 1"):
        Recorded(path, 1).run(0, contract)
    with pytest.raises(InputError, match="nobody ran"):
        Recorded(path, 2).run(1, two)
    with pytest.raises(InputError, match="--first-episode 5 is beyond"):
        Recorded(path, 1, first=5).names()


def test_shuffled_weights_are_the_same_numbers(folder) -> None:
    world, control = load_world_model(folder), load_world_model(folder)
    shuffle_weights(control)
    for a, b in zip(
        world.model.checkpoint.transformer.parameters(), control.model.checkpoint.transformer.parameters(), strict=True
    ):
        assert (a.flatten().sort().values == b.flatten().sort().values).all()
    a, b = (m.model.checkpoint.transformer.proj_in.weight for m in (world, control))
    assert (a != b).any()


def test_refusals(folder, tmp_path, capsys) -> None:
    cases = {
        "pass either --env": ["--ckpt", str(folder)],
        "drop --tasks": ["--ckpt", str(folder), "--env", "fake/0", "--tasks", "1"],
        "ending in .json": ["--ckpt", str(folder), "--env", "fake/0", "--json", "out.txt"],
        "driver 'expert' is LIBERO's": ["--ckpt", str(folder), "--env", "fake/0"],
        "under whose contract still works": ["--ckpt", "still", "--env", "fake/0"],
        "name it with --env": ["--ckpt", str(folder), "--data", str(tmp_path), "--rank", "zero"],
        "no dataset at": ["--ckpt", str(folder), "--data", str(tmp_path / "nothing")],
        "fewer --chunks": ["--ckpt", str(folder), "--env", "fake/0", "--driver", "random", "--steps", "3"],
        "windows: expected": ["--ckpt", str(folder), "--env", "fake/0", "--windows", "0"],
    }
    for message, flags in cases.items():
        given = flags if "--json" in flags else [*flags, "--json", str(tmp_path / "out.json")]
        assert main(["eval-world-model", *given, "--fresh"]) == 2, message
        assert message in capsys.readouterr().err.replace("\n", " "), message
    with pytest.raises(InputError, match="threads"):
        ModelsSpec(str(folder), threads=0)()
