"""The command over real, untrained checkpoints: simulator and dataset, JSON and report, resumed and in parallel."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from cosmos_robot import __version__
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.cli import main
from cosmos_robot.contract import Contract, ModelSpec
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.errors import ContractError, CosmosRobotError, InputError, UnknownNameError
from cosmos_robot.eval.world_model import WorldModelConfig, open_source, rank_policies, run_header
from cosmos_robot.eval.world_model_case import Models
from cosmos_robot.eval.world_model_log import WindowLog
from cosmos_robot.eval.world_model_models import ModelsSpec, checkpoint_hash, shuffle_weights
from cosmos_robot.eval.world_model_ranking import Arena
from cosmos_robot.eval.world_model_seeds import seed_of
from cosmos_robot.eval.world_model_session import SessionSettings, episode_records, measure_all
from cosmos_robot.eval.world_model_sources import Live, Recorded
from cosmos_robot.eval.world_model_windows import Window, windows_of
from cosmos_robot.policies import load_world_model
from cosmos_robot.policies.fakes import StillWorld

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


@pytest.fixture
def foreign(tmp_path, folder):
    """A recording with a row for every command, of which this package knows nothing but the file format."""
    contract, source = Contract.load(folder), Live(("fake/0",), 1, "random", steps=12)
    run = source.run(0, contract)
    source.close()
    rows = np.arange(12)
    actions, valid = chunk_rows(run.commands, rows, 4)
    images = {c: np.stack([run.seen.pictures[int(r)][c] for r in rows]) for c in ("table", "hand")}
    state = np.stack([np.concatenate(list(run.seen.states[int(r)].values())) for r in rows])
    episode = Episode(TASKS[0], images, state, actions, valid, EpisodeInfo("fake", 0, 0, "expert", True))
    path = write_dataset([episode], tmp_path / "foreign", FAKE_ROBOT, stride=1)
    (path / "meta" / "cosmos_robot.json").unlink()
    return run, path


def renamed(path, names: list[str]) -> None:
    """The same numbers, said to be others."""
    info = json.loads((path / "meta" / "info.json").read_text())
    info["features"]["action"]["names"] = names
    (path / "meta" / "info.json").write_text(json.dumps(info))


def test_foreign_recordings_are_read_by_name(folder, foreign) -> None:
    made, path = foreign
    contract = Contract.load(folder)
    run = Recorded(path, 1).run(0, contract)
    assert np.allclose(run.commands, made.commands, atol=1e-6) and run.instruction == TASKS[0]
    starts = [window.start for window in windows_of(run, contract, 1, 9)]
    assert starts == [0, 7], "a row for every command, a picture for every row, none over another"
    assert np.allclose(run.seen.states[3]["position"], made.seen.states[3]["position"], atol=1e-6)
    before = Recorded(path, 1).fingerprint(contract)
    renamed(path, ["grip", "move.0", "move.1"])
    turned = Recorded(path, 1).run(0, contract)
    assert np.allclose(turned.commands, run.commands[:, [1, 2, 0]]), "columns go by their names, not their places"
    assert Recorded(path, 1).fingerprint(contract) != before
    renamed(path, ["grip", "x", "y"])
    with pytest.raises(ContractError, match=r"(?s)no column 'move.0', 'move.1'.*write_dataset"):
        Recorded(path, 1).run(0, contract)


def test_foreign_recordings_that_cannot_be_used(folder, foreign, monkeypatch) -> None:
    """No rate, no task, numbers that are none: refused as in training."""
    _, path = foreign
    contract, held = Contract.load(folder), open_recordings(path)
    whole = held[0]
    cases = {
        "states no rate": {"fps": None},
        "no task text": {"recording": lambda _: replace(whole, instruction=" ")},
        "its action is not finite": {"recording": lambda _: replace(whole, actions=whole.actions * np.nan)},
    }
    for message, changes in cases.items():
        held = open_recordings(path)
        for name, value in changes.items():
            setattr(held, name, value)
        with monkeypatch.context() as patch, pytest.raises(CosmosRobotError, match=message):
            patch.setattr("cosmos_robot.data.bridge.open_recordings", lambda *_, held=held, **__: held)
            Recorded(path, 1).run(0, contract)


def test_a_run_of_another_content_does_not_go_on(folder, foreign, tmp_path, capsys) -> None:
    """The dataset and the driver are in the header by what they hold, not by name alone."""
    _, path = foreign
    flags = ["--ckpt", "still", "--contract", str(folder), "--data", str(path), "--episodes", "1", "--windows", "1"]
    flags += ["--json", str(tmp_path / "out.json"), "--filmed", "0"]
    assert main(["eval-world-model", *flags]) == 0
    renamed(path, ["grip", "move.0", "move.1"])
    assert main(["eval-world-model", *flags]) == 2
    assert "data_fingerprint: " in capsys.readouterr().err
    config = WorldModelConfig("still", contract=str(folder), env="fake/0", driver=str(folder), inverse_ckpt=str(folder))
    contract = Contract.load(folder)
    header = run_header(config, SessionSettings(), contract, open_source(config))
    assert header["driver_sha256"] == header["inverse_checkpoint_sha256"] == checkpoint_hash(str(folder))
    assert header["version"] == __version__ and header["data_fingerprint"] is None
    assert checkpoint_hash("still") is checkpoint_hash("random") is checkpoint_hash(None) is None


def test_films_that_are_gone_or_come_late(folder, tmp_path) -> None:
    """A report needs no film, and says which are missing."""
    path = tmp_path / "out.json"
    flags = ["--ckpt", "still", "--contract", str(folder), "--env", "fake/0", "--driver", "random", "--steps", "9"]
    flags += ["--windows", "1", "--episodes", "2", "--json", str(path)]
    for filmed, missing, more in (("0", None, []), ("1", "1 episodes", []), ("1", None, ["--fresh"])):
        assert main(["eval-world-model", *flags, "--filmed", filmed, *more]) == 0
        told = json.loads(path.read_text())["not_available"].get("films", "")
        assert (missing is None and not told) or told.startswith(str(missing)), filmed
    shutil.rmtree(path.with_suffix(".films"))
    assert main(["eval-world-model", *flags, "--filmed", "1"]) == 0
    assert "--fresh" in json.loads(path.read_text())["not_available"]["films"]
    assert "video/mp4" not in path.with_suffix(".html").read_text()


def test_every_episode_has_commands_and_noise_of_its_own(folder) -> None:
    contract = Contract.load(folder)
    source = Live(("fake/0", "fake/1"), 2, "random", steps=12)
    runs = [source.run(number, contract) for number in range(4)]
    again = source.run(3, contract)
    source.close()
    for i, run in enumerate(runs):
        for other in runs[:i]:
            assert not np.allclose(run.commands, other.commands), (run.name, other.name)
    assert np.array_equal(again.commands, runs[3].commands)
    models, settings = Models(StillWorld(contract)), SessionSettings(windows=1, probed=0, filmed=0)
    records = [r for number in range(4) for r in episode_records(models, source, settings, number)]
    assert len({record["seed"] for record in records}) == 4
    assert seed_of(0, "fake/0 init 0", 4) == 3997131036, "the same in every process"
    source.close()


def test_a_workers_error_is_told(folder, tmp_path) -> None:
    """Also where it is raised while models are loaded, and cannot be rebuilt from its message."""
    log = WindowLog(tmp_path / "out.windows.jsonl", {})
    with pytest.raises(UnknownNameError, match="unknown world model 'nothing'"):
        measure_all(
            ModelsSpec("nothing"), Live(("fake/0",), 2, "random"), SessionSettings(workers=2), log, Console(quiet=True)
        )
    log.close()


def test_recordings_without_a_window_have_a_remedy_of_their_own(folder, foreign, tmp_path, capsys) -> None:
    _, path = foreign
    flags = ["--ckpt", "still", "--contract", str(folder), "--data", str(path), "--chunks", "4"]
    assert main(["eval-world-model", *flags, "--json", str(tmp_path / "out.json")]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "record longer episodes" in told and "--steps" not in told


def test_rankings_are_checked_before_anything_is_measured(folder, tmp_path, capsys) -> None:
    flags = ["--ckpt", str(folder), "--env", "fake/0", "--driver", "random", "--json", str(tmp_path / "out.json")]
    cases = {"at least 3": ["zero"], "twice": ["zero", "zero", "random"], "a value": ["zero", "random", "random~0.1"]}
    for message, names in cases.items():
        assert main(["eval-world-model", *flags, "--rank", *names]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_rankings_run_over_all_tasks_and_go_on(folder, tmp_path, monkeypatch) -> None:
    asked = []

    def run(self, name, start):
        asked.append((name, start))
        return {"success": name != "zero", "value": float(len(name)) + 0.1 * start.init}

    monkeypatch.setattr(Arena, "run", run)
    names = ("zero", "random", str(folder))
    config = WorldModelConfig("any", env="fake", tasks=(0, 2), rank=names, rank_starts=2, first_episode=1)
    told = []
    for expected in (12, 0):
        asked.clear()
        log = WindowLog(tmp_path / "out.windows.jsonl", {})
        console = Console(quiet=True)
        told.append(rank_policies(config, ModelsSpec("any"), log, console))
        log.close()
        assert len(asked) == expected
    assert told[0] == told[1] and told[0]["tasks"] == ["fake/0", "fake/2"] and told[0]["agreement"]["starts"] == 4
    assert any(checkpoint_hash(str(folder))[:16] in key for key in log.lines), "another checkpoint of a name runs again"


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
