"""Fine-tuning, stage by stage: what is refused, what is told, and that all of it runs from recordings to a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.cli import main
from cosmos_robot.contract import Contract, load_contract, read_contract
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.pusht import PUSHT, PushTEnv
from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.recipes.finetune import commands
from cosmos_robot.recipes.finetune.description import read_description
from cosmos_robot.recipes.finetune.measures import action_error, error_of, standing
from cosmos_robot.recipes.finetune.plan import parameter_counts, recipe_of
from cosmos_robot.recipes.finetune.stages import AFTER, Run

EXAMPLE = Path(__file__).parents[2] / "examples" / "pusht.toml"
SMALL = {
    'path = "../runs/pusht-demos"': 'path = "demos"',
    "stride = 1 ": "stride = 8 ",
    "steps = 4000": "steps = 4",
    "steps = 200": "steps = 25",
    "batch = 64": "batch = 8",
    "warmup = 100": "warmup = 1",
    "threads = 2": "threads = 1",
    "steps = 400\n": "steps = 2\n",
}


def circling(phase: float, scale: float = 1.0, rows: int = 40) -> Episode:
    """A disc that circles, with the pictures of a real PushT."""
    env = PushTEnv()
    observation, _ = env.reset(seed=3)
    angles = phase + np.arange(rows) * 0.3
    commands = 256 + 120 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pictures, states = [], []
    for row in commands:
        pictures.append(observation.images["top"])
        states.append(observation.state["agent_position"])
        observation = env.step(row)[0]
    actions, valid = chunk_rows(scale * commands, np.arange(rows), 2)
    info = EpisodeInfo("pusht", 0, 3, "expert", True)
    state = scale * np.array(states, np.float32)
    return Episode("Push the T", {"top": np.stack(pictures)}, state, actions, valid, info)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A description and three episodes beside it."""
    folder = tmp_path_factory.mktemp("project")
    write_dataset([circling(phase) for phase in (0.0, 1.0, 2.0)], folder / "demos", PUSHT, stride=1)
    (folder / "pusht.toml").write_text(smaller(EXAMPLE.read_text()))
    return folder


def smaller(text: str) -> str:
    for normal, small in SMALL.items():
        assert normal in text
        text = text.replace(normal, small)
    return text


def changed(project: Path, old: str, new: str, name: str) -> Path:
    text = (project / "pusht.toml").read_text()
    assert old in text
    path = project / f"{name}.toml"
    path.write_text(text.replace(old, new))
    return path


def test_the_example_describes_pusht_completely(project: Path) -> None:
    description = read_description(project / "pusht.toml")
    assert description.contract.robot == PUSHT and description.data.path == project / "demos"
    begun = load_contract("tiny-libero").model
    assert description.contract.model.prompt == begun.prompt and "prompt" in description.taken
    assert description.contract.model.sampler == begun.sampler and description.contract.model.domain_id == 7


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("chunk = 16\n", "model.chunk"),
        ("domain_id = 7 ", "model.domain_id"),
        ('start = "tiny-libero"', "start"),
        ("height = 96\n", "model.canvas.height"),
        ("stride = 8 ", "data.stride"),
        ('[robot]\nknown = "pusht" ', "robot"),
        ("steps = 4\n", "training.steps"),
    ],
)
def test_each_missing_field_is_named(project: Path, line: str, missing: str) -> None:
    path = changed(project, line, "\n" if line[0] != "[" else "# ", "missing")
    with pytest.raises(ContractError, match=rf"does not say everything:(.|\n)*- {missing}"):
        read_description(path)


def test_unknown_fields_and_settings_are_refused(project: Path) -> None:
    with pytest.raises(ContractError, match=r"model.*chnk"):
        read_description(changed(project, "chunk = 16", "chunk = 16\nchnk = 3", "unknown"))
    with pytest.raises(ContractError, match="trainign: unknown"):
        read_description(changed(project, "[training]", "[trainign]", "section"))
    wrong = read_description(changed(project, "lr = 7e-4", "learning_rate = 7e-4", "recipe"))
    with pytest.raises(UnknownNameError, match="learning_rate"):
        recipe_of(wrong.training)


def test_a_description_may_be_python(project: Path) -> None:
    path = project / "pusht.py"
    path.write_text(
        "import tomllib, pathlib\n"
        "DESCRIPTION = tomllib.loads((pathlib.Path(__file__).parent / 'pusht.toml').read_text())\n"
        "DESCRIPTION['model']['execute'] = 12\n"
    )
    assert read_description(path).contract.model.execute == 12
    path.write_text("DESCRIPTION = 3\n")
    with pytest.raises(ContractError, match="expected a dictionary DESCRIPTION, got int"):
        read_description(path)


def test_a_stage_without_the_one_before_names_the_command(project: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", "lint", "--out", str(tmp_path)]) == 2
    assert f"cosmos-robot train describe DESCRIPTION.toml --out {tmp_path}" in capsys.readouterr().err
    commands.describe(project / "pusht.toml", tmp_path)
    with pytest.raises(InputError, match=r"stats: lint was not done .*; run: cosmos-robot train lint --out"):
        commands.stats(tmp_path)


def test_a_camera_that_is_not_recorded_is_refused(project: Path, tmp_path: Path) -> None:
    path = changed(project, '# cameras.top = "NAME" ', 'cameras.top = "wrist" ', "camera")
    with pytest.raises(ContractError, match="camera 'top': the recording has no camera 'wrist'"):
        commands.describe(path, tmp_path)


def test_lint_stops_numbers_of_another_unit(project: Path, tmp_path: Path) -> None:
    write_dataset([circling(p, scale=0.001) for p in (0.0, 1.0)], tmp_path / "demos", PUSHT, stride=1)
    shutil.copy(project / "pusht.toml", tmp_path)
    commands.describe(tmp_path / "pusht.toml", tmp_path / "run")
    with pytest.raises(InputError, match=r"error unit at state agent_position: values lie in .* of another unit"):
        commands.lint(tmp_path / "run")
    assert not Run(tmp_path / "run").is_done("lint")


def test_statistics_are_those_of_the_training_episodes(project: Path, tmp_path: Path) -> None:
    for stage in (lambda: commands.describe(project / "pusht.toml", tmp_path), lambda: commands.lint(tmp_path),
                  lambda: commands.stats(tmp_path)):  # fmt: skip
        stage()
    found = read_contract(tmp_path / "stats" / "contract.json").model.action_normalization
    commands_of = [circling(p).actions[:, 0] for p in (1.0, 2.0)]
    assert found.method == "minmax" and found.statistics is not None
    assert np.allclose(found.statistics.max, np.concatenate(commands_of).max(0), rtol=1e-6)
    assert found.statistics.count == 80


def test_a_changed_description_makes_what_is_cheap_anew(project: Path, tmp_path: Path, capsys) -> None:
    commands.describe(project / "pusht.toml", tmp_path)
    commands.lint(tmp_path)
    commands.lint(tmp_path)
    assert "lint: done already" in capsys.readouterr().out
    commands.describe(changed(project, "execute = 8", "execute = 10", "other"), tmp_path)
    commands.lint(tmp_path)
    out = capsys.readouterr().out
    assert "done already" not in out and "10 run" in out


def test_the_plan_counts_without_loading() -> None:
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.backbone.cosmos3.load import load_checkpoint
    from cosmos_robot.recipes.finetune.description import TrainingSpec

    whole = TrainingSpec(steps=1, recipe={"trainable": "all"})
    counted = parameter_counts(find_checkpoint("tiny-libero"), whole)
    assert counted["all"] == counted["trained"]
    assert counted["all"] == sum(p.numel() for p in load_checkpoint("tiny-libero").transformer.parameters())
    assert parameter_counts(find_checkpoint("tiny-libero"), TrainingSpec(steps=1))["trained"] < counted["all"]
    assert parameter_counts(find_checkpoint("tiny-libero"), TrainingSpec(steps=1, lora=2))["trained"] < 1e6


def test_errors_count_valid_commands_only() -> None:
    episode = circling(0.0)
    wrong = episode.actions.copy()
    wrong[-1, 1] += 1000  # past the end
    assert action_error(wrong, episode) == 0
    wrong[0, 0, 0] += 79
    assert action_error(wrong, episode) == pytest.approx(79 / 2 / 79)
    rows = [0, 39]
    assert error_of("wrong", [(wrong[rows], episode, rows)], 2).columns == (pytest.approx(79 / 3), 0)
    still = standing(PUSHT, episode, [5], 3)
    assert np.allclose(still[0], episode.state[5])
    assert not standing(PUSHT.model_copy(update={"action_reference": "per_step"}), episode, [5], 3).any()


def test_from_recordings_to_a_server(project: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stages, resumed once, with trainings of a few steps: what comes out is loaded by ``serve`` and acts."""
    monkeypatch.setattr("cosmos_robot.recipes.finetune.learn.FITS", 10.0)
    commands.everything(project / "pusht.toml", tmp_path)
    told = capsys.readouterr().out
    assert all(f"{stage}:" in told for stage in AFTER)
    for words in ("memory in all", "time: ", "replay: none", "repeat the state", "the same question in this process"):
        assert words in told
    (found,) = (tmp_path / "plan").glob("done.json")
    assert json.loads(found.read_text())["facts"]["seconds_per_step"] > 0
    made = tmp_path / "export" / "pusht"
    assert Contract.load(made).model.name == "pusht" and Contract.load(made).robot == PUSHT
    weights = (made / "transformer" / "diffusion_pytorch_model.safetensors").stat()
    commands.everything(project / "pusht.toml", tmp_path)
    again = capsys.readouterr().out
    assert again.count("done already") == len(AFTER)
    assert (made / "transformer" / "diffusion_pytorch_model.safetensors").stat().st_mtime == weights.st_mtime
    with pytest.raises(InputError, match=r"train: .* was trained before describe"):
        commands.describe(changed(project, "execute = 8", "execute = 9", "later"), tmp_path)
        for stage in (commands.lint, commands.stats, commands.plan):
            stage(tmp_path)
        commands.run(tmp_path)
