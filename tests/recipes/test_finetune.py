"""Fine-tuning: what is refused, what is told, and that all of it runs from recordings to a server."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finetuning import Fakes, changed, circling, until

from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.actions.statistics import StatisticsAccumulator
from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.contract import Contract, Normalization, load_contract, read_contract
from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.pusht import PUSHT
from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.recipes.finetune import commands, finish, learn
from cosmos_robot.recipes.finetune.description import read_description
from cosmos_robot.recipes.finetune.measures import column_errors, column_ratios, error_of, standing, worst_of
from cosmos_robot.recipes.finetune.plan import parameter_counts, recipe_of
from cosmos_robot.recipes.finetune.prepare import scale_floor
from cosmos_robot.recipes.finetune.stages import AFTER, Run


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


@pytest.mark.parametrize("name", ["", "org/name", "../evil", ".hidden", "é", "a b", "x" * 81])
def test_a_name_that_is_no_folders_is_refused(project: Path, name: str) -> None:
    with pytest.raises(ContractError, match=r"model\.name: got .* expected 1 to 80 letters"):
        read_description(changed(project, 'name = "pusht"\ndomain_id', f'name = "{name}"\ndomain_id', "name"))


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


def test_failures_are_left_out_unless_asked_for(project: Path, tmp_path: Path, capsys) -> None:
    failed = circling(1.0)
    outlier = failed.state.copy()
    outlier[3:] = 1e5  # an error to lint, were it kept
    failed = replace(failed, state=outlier, info=replace(failed.info, success=False))
    write_dataset([circling(0.0), failed, circling(2.0)], tmp_path / "demos", PUSHT, stride=1)
    path = tmp_path / "pusht.toml"
    path.write_text((project / "pusht.toml").read_text())
    until(tmp_path / "run", path, "stats")
    told = capsys.readouterr().out
    assert "data: 2 episodes" in told and "1 of 3 episodes are marked unsuccessful and left out" in told
    assert "warning failures at" in told
    found = read_contract(tmp_path / "run" / "stats" / "contract.json").model.action_normalization.statistics
    assert found is not None and np.allclose(found.max, circling(2.0).actions[:, 0].max(0), rtol=1e-6)
    path.write_text(path.read_text().replace("stride = 8 ", 'failures = "keep"\nstride = 8 '))
    with pytest.raises(InputError, match=r"lint: \d errors"):
        until(tmp_path / "run", path, "lint")
    told = capsys.readouterr().out
    assert "data: 3 episodes" in told and "unsuccessful and imitated like the others" in told


def test_what_is_trained_becomes_the_contracts_modes(project: Path) -> None:
    released = changed(project, 'start = "tiny-libero"', 'start = "cosmos3-libero"', "released")
    assert load_contract("cosmos3-libero").model.modes == ("wam",)
    assert read_description(released).contract.model.modes == ("policy",)
    text = released.read_text()
    released.write_text(text.replace("[training]", '[training]\nmodes = "joint"'))
    joint = read_description(released)
    assert joint.contract.model.modes == tuple(joint.training.shares) == ("forward_dynamics", "inverse_dynamics", "wam")
    assert joint.training.acts
    released.write_text(text.replace("domain_id = 7", 'modes = ["wam"]\ndomain_id = 7'))
    with pytest.raises(ContractError, match=r"model\.modes: .* training\.modes"):
        read_description(released)
    for wrong in ("{ polcy = 1 }", "{ policy = 0 }", "{}"):
        released.write_text(text.replace("[training]", f"[training]\nmodes = {wrong}"))
        with pytest.raises(ContractError, match=r"training\.modes"):
            read_description(released)


def filmed(project: Path, mode: str) -> Path:
    """A description that trains ``mode``, with a picture every 8 control steps and the start's own autoencoder."""
    path = changed(project, "chunk = 16", "chunk = 32\nactions_per_frame = 8", mode)
    text = path.read_text().replace("[training]", f"[training]\nmodes = {{ {mode} = 1 }}")
    text = text.replace("[tokenizer] ", "# ").replace("steps = 2\n\n[overfit]", "\n[overfit]")
    path.write_text(text.replace("steps = 25", "steps = 2"))
    return path


def test_a_wam_is_tried_and_served_like_a_policy(project: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    until(tmp_path, filmed(project, "wam"), "plan", probe=False)
    assert "a sample is 105 tokens (wam) besides its text" in capsys.readouterr().out
    monkeypatch.setattr(learn, "FITS", 1000.0)
    commands.overfit(tmp_path)
    done = tmp_path / "overfit" / "training"
    monkeypatch.setattr(learn, "train_on", lambda run, d, c, out, **how: Path(shutil.copytree(done, out)) / "export")
    for stage in (commands.run, commands.check, commands.export, commands.serve):
        stage(tmp_path)
    told = capsys.readouterr().out
    assert read_contract(tmp_path / "export" / "pusht" / "contract.json").model.modes == ("wam",)
    for words in ("each column against the best", "the same question in this process"):
        assert words in told


def test_without_a_policy_it_is_said_what_cannot_be_checked(
    project: Path, tmp_path: Path, capsys, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "save_untrained", lambda run, folder: folder)
    until(tmp_path, filmed(project, "forward_dynamics"), "plan", probe=False)
    for stage in (commands.overfit, commands.run, commands.check, commands.export, commands.serve):
        stage(tmp_path)
    told = capsys.readouterr().out
    for words in ("cannot be checked: trained as", "cannot be measured: trained as", "not served: trained as"):
        assert f"{words} forward_dynamics, it gives no commands" in told
    exported = tmp_path / "export" / "pusht"
    assert f"eval-world-model --ckpt {exported} --data {project / 'demos'} --numbers 0" in told


def test_held_out_episodes_of_a_world_model_are_named(project: Path, tmp_path: Path) -> None:
    """By their numbers in the dataset, failures left out; not where the command could not read the recordings."""
    disc = circling(0.0, rows=2)
    labels = [replace(disc, info=replace(disc.info, success=number > 0)) for number in range(23)]
    write_dataset(labels, tmp_path / "demos", PUSHT, stride=1)
    text = filmed(project, "forward_dynamics").read_text()
    mapped = text.replace('# state.agent_position = ["x", "y"]', "state.agent_position = [0, 1]")
    told = []
    for name, description in (("named", text), ("mapped", mapped)):
        (tmp_path / f"{name}.toml").write_text(description)
        commands.describe(tmp_path / f"{name}.toml", tmp_path / name)
        told.append(finish.trials(Run(tmp_path / name), [Path("A"), Path("B")]))
    assert [line.split("--ckpt")[1] for line in told[0]] == [
        f" {name} --data {tmp_path / 'demos'} --numbers 1 21" for name in "AB"
    ]
    [line] = told[1]
    assert "reads no data.state;" in line and "--ckpt" not in line and line.endswith("--numbers 0 20")


def test_videos_need_rows_that_fall_on_their_pictures(project: Path, tmp_path: Path) -> None:
    path = changed(project, "[training]", '[training]\nmodes = "joint"', "apart")
    with pytest.raises(InputError, match=r"pictures of its videos stand 1 control steps apart"):
        commands.describe(path, tmp_path)


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


@pytest.mark.parametrize("method", ["minmax", "quantile", "meanstd"])
def test_a_small_motion_fills_the_models_range(method: str) -> None:
    small, still, noise = (0.002 * np.array([1.0, -1.0]), [0.3, 0.3], [0.0, 2e-6])
    rows = np.stack([small, still, noise, [-1.0, 1.0]], axis=1).repeat(50, axis=0)
    tally = StatisticsAccumulator(4)
    tally.update(rows)
    statistics = tally.finish()
    floor = scale_floor(method, statistics)
    made = Normalizer(Normalization(method=method, scale_floor=floor, statistics=statistics), 4).normalize(rows)
    assert floor == pytest.approx(1e-4) and np.abs(made).max(0)[[0, 3]] == pytest.approx(1, abs=0.02)
    assert np.abs(made).max(0)[[1, 2]] == pytest.approx(0, abs=0.02)
    large = statistics.model_copy(update=dict.fromkeys(("max", "q99", "std"), (5.0, 0.0, 5.0, 5.0)))
    assert scale_floor(method, large.model_copy(update=dict.fromkeys(("min", "q01"), (0.0,) * 4))) == 0.01


def test_the_scale_floor_may_be_said_and_where_it_acts_is_told(project: Path, tmp_path: Path, capsys) -> None:
    until(tmp_path / "as-it-is", project / "pusht.toml", "stats")
    assert "below the floor" not in capsys.readouterr().out
    said = 'normalization = "minmax"'
    until(tmp_path / "said", changed(project, said, f"{said}\nscale_floor = 200.0", "floor"), "stats")
    assert "action agent_position.1: its scale 120 is below the floor 200" in capsys.readouterr().out
    assert Run(tmp_path / "said").contract().model.action_normalization.scale_floor == 200
    with pytest.raises(ContractError, match="scale_floor"):
        read_description(changed(project, said, f"{said}\nscale_floor = 0.0", "none"))


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
    assert column_errors(wrong, episode).tolist() == [0, 0]
    wrong[0, 0, 0] += 79
    assert column_errors(wrong, episode).tolist() == [pytest.approx(1), 0]
    rows = [0, 39]
    assert error_of("wrong", [(wrong[rows], episode, rows)], 2).columns == (pytest.approx(79 / 3), 0)
    still = standing(PUSHT, episode, [5], 3)
    assert np.allclose(still[0], episode.state[5])
    assert not standing(PUSHT.model_copy(update={"action_reference": "per_step"}), episode, [5], 3).any()


def test_columns_are_compared_one_by_one() -> None:
    two = PUSHT.action[0].model_copy(update={"name": "gripper", "width": 2, "low": None, "high": None})
    robot = PUSHT.model_copy(update={"action": (*PUSHT.action, two)})
    mine, mean = (1.9, 0.1, 0.0, 0.3), (2.0, 1.0, 500.0, 1e-9)
    ratios = column_ratios(robot, mine, {"mean": mean, "zero": (9.0, 0.5, 900.0, 9.0)}, mean, (2.0, 2.0, 400.0, 1.0))
    assert [r.share for r in ratios] == [pytest.approx(0.95), pytest.approx(0.2), 0, None]
    assert [r.than for r in ratios] == ["mean", "zero", "mean", "mean"]
    worst = worst_of(ratios)
    assert worst is not None and worst.column == "agent_position.0" and "0.95 of what 'mean' misses" in worst.told
    with pytest.raises(InputError, match=r"1 of 4 columns (.|\n)*- agent_position\.0: 1\.9, 0\.95"):
        learn._require_fit(ratios, 10)
    learn._require_fit(ratios[1:], 10)


def test_one_episode_is_learnt_without_noise(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = changed(project, "caption_dropout = 0.0", "caption_dropout = 0.1", "noisy")
    until(tmp_path, path, "stats")
    run, recipes = Run(tmp_path), []
    monkeypatch.setattr(learn, "train_model", lambda config, sources: recipes.append(config.recipe))
    for only in (0, None):
        learn.train_on(run, run.description(), run.contract(), tmp_path, steps=10, only=only)
    assert [(r.state_noise, r.latent_noise, r.caption_dropout) for r in recipes] == [(0, 0, 0), (0.02, 0.05, 0.1)]


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
    facts = Run(tmp_path).facts("check")
    assert facts["worst"] in ("agent_position.0", "agent_position.1") and facts["better"] in (True, False)
