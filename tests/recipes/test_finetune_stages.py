"""The stages of fine-tuning as folders: what is done stays done while what it was made from is the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from finetuning import Fakes, changed, until

from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.cli import main
from cosmos_robot.errors import InputError
from cosmos_robot.recipes.finetune import commands, finish, learn
from cosmos_robot.recipes.finetune.description import read_description
from cosmos_robot.recipes.finetune.reads import description_parts
from cosmos_robot.recipes.finetune.stages import BEGUN, Run


def test_a_stage_without_the_one_before_names_the_command(project: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", "lint", "--out", str(tmp_path)]) == 2
    assert f"cosmos-robot train describe DESCRIPTION.toml --out {tmp_path}" in capsys.readouterr().err
    commands.describe(project / "pusht.toml", tmp_path)
    with pytest.raises(InputError, match=r"stats: lint was not done .*; run: cosmos-robot train lint --out"):
        commands.stats(tmp_path)


def test_a_stopped_training_is_held_against_what_it_began_with(project: Path, tmp_path: Path, fakes: Fakes) -> None:
    until(tmp_path, project / "pusht.toml", "overfit")
    fakes.stops = True
    with pytest.raises(KeyboardInterrupt):
        commands.run(tmp_path)
    until(tmp_path, changed(project, "execute = 8", "execute = 9", "corrected"), "overfit")
    with pytest.raises(InputError, match=r"train: .*train was begun before contract\.model\.execute changed; move it"):
        commands.run(tmp_path)
    until(tmp_path, project / "pusht.toml", "overfit")
    fakes.stops = False
    commands.run(tmp_path)  # what it began with is back, so it goes on
    assert Run(tmp_path).is_done("train")


def test_an_unfinished_training_that_does_not_say_of_what_is_refused(
    project: Path, tmp_path: Path, fakes: Fakes
) -> None:
    until(tmp_path, project / "pusht.toml", "overfit")
    fakes.stops = True
    with pytest.raises(KeyboardInterrupt):
        commands.run(tmp_path)
    (tmp_path / "train" / BEGUN).unlink()
    with pytest.raises(InputError, match=r"train: .*train has no begun.json, so nobody knows .*; move it away"):
        commands.run(tmp_path)


def test_a_failed_overfit_is_repeated_once_its_description_changed(project: Path, tmp_path: Path, fakes: Fakes) -> None:
    fakes.error = 200.0
    for _ in range(2):  # with nothing changed, the same weights are judged again
        with pytest.raises(InputError, match=r"overfit: .* 2 of 2 columns .*\n  - agent_position.0: 200"):
            until(tmp_path, project / "pusht.toml", "overfit")
        (tmp_path / "overfit" / "mark").touch()
    fakes.error = 0.0
    until(tmp_path, changed(project, "steps = 25", "steps = 26", "longer"), "overfit")
    assert not (tmp_path / "overfit" / "mark").exists()


def test_new_weights_are_checked_anew(project: Path, tmp_path: Path, fakes: Fakes) -> None:
    run, checked = Run(tmp_path), []

    def check() -> None:
        run.perform("check", lambda folder, tell: checked.append(fakes.weights) or {}, print)

    until(tmp_path, project / "pusht.toml", "run")
    check()
    check()
    shutil.rmtree(tmp_path / "train")
    fakes.weights = b"others"
    commands.run(tmp_path)
    with pytest.raises(InputError, match=r"export: check was done in .* before train changed; run: cosmos-robot train"):
        commands.export(tmp_path)
    check()
    assert checked == [b"weights", b"others"]


def test_a_start_that_changed_is_noticed(project: Path, tmp_path: Path, fakes: Fakes, capsys) -> None:
    start = Path(shutil.copytree(find_checkpoint("tiny-libero").folder, tmp_path / "start"))
    path = changed(project, 'start = "tiny-libero"', f'start = "{start}"', "own-start")
    path.write_text(path.read_text().replace("[tokenizer] ", "# ").replace("steps = 2\n\n[overfit]", "\n[overfit]"))
    out = tmp_path / "run"

    def trained() -> None:
        until(out, path, "plan")
        commands.overfit(out)
        commands.run(out)

    trained()
    (weights,) = (start / "transformer").glob("*.safetensors")
    as_it_was = weights.read_bytes()
    weights.write_bytes(as_it_was[:-1] + bytes([as_it_was[-1] ^ 1]))
    for stage in (commands.check, commands.export):
        with pytest.raises(InputError, match=r"train was done in .* before start weights changed; run: .* train run"):
            stage(out)
    with pytest.raises(InputError, match=r"train: .* was trained before start weights changed; move it away"):
        trained()
    weights.write_bytes(as_it_was)  # at another time
    capsys.readouterr()
    trained()
    assert "train: done already" in capsys.readouterr().out
    shutil.rmtree(start)
    commands.run(out)
    assert "train: done already" in capsys.readouterr().out


def test_what_a_stage_does_not_read_leaves_it_done(project: Path, tmp_path: Path, fakes: Fakes, capsys) -> None:
    until(tmp_path, project / "pusht.toml", "run")
    commands.plan(tmp_path, probe=False)
    capsys.readouterr()
    commands.run(tmp_path)
    assert "train: done already" in capsys.readouterr().out
    other = changed(project, 'env = "pusht/0" ', "# ", "moved")
    other.write_text(other.read_text().replace("threads = 1", "threads = 2"))
    until(tmp_path, other, "run")
    told = capsys.readouterr().out
    assert "tokenizer: done already" in told and "train: done already" in told
    until(tmp_path, changed(project, "steps = 4\n", "steps = 5\n", "longer"), "overfit")
    assert "tokenizer: done already" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"train: .* was trained before training\.steps changed"):
        commands.run(tmp_path)


def test_a_run_may_be_moved(project: Path, tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two stages, and described by a path from where one stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finish, "save_untrained", lambda run, folder: folder)
    monkeypatch.setattr(finish, "_require_alike", lambda *about: None)
    until(Path("run"), project / "pusht.toml", "run")
    out = Path("run").rename("moved")
    Run(out).perform("check", lambda folder, tell: {}, print)
    commands.export(out)
    out = out.rename(tmp_path / "again")
    assert learn.start_of(Run(out), Run(out).description()) == str(out / "tokenizer" / "start")
    assert Run(out).found("train", "checkpoint") == out / "train" / "training"
    for name, folder in (("checkpoint", "pusht"), ("before", "pusht-before")):
        assert Run(out).found("export", name) == out / "export" / folder
    loaded: list[str] = []
    monkeypatch.setattr(finish, "load_policy", lambda checkpoint: loaded.append(str(checkpoint)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        commands.serve(out)
    assert loaded == [str(out / "export" / "pusht")]


def test_the_autoencoder_reads_the_camera(project: Path) -> None:
    first = description_parts("tokenizer", read_description(project / "pusht.toml"))
    other = changed(project, '# cameras.top = "NAME" ', 'cameras.top = "wrist" ', "wrist")
    assert description_parts("tokenizer", read_description(other)) != first


def test_recordings_that_changed_are_described_and_looked_at_anew(project: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(project / "demos", tmp_path / "demos")
    description, out = Path(shutil.copy(project / "pusht.toml", tmp_path)), tmp_path / "run"
    until(out, description, "lint")
    with (tmp_path / "demos" / "meta" / "info.json").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"no longer what was described.*run: cosmos-robot train describe"):
        commands.stats(out)
    capsys.readouterr()
    commands.describe(description, out)
    assert "done already" not in capsys.readouterr().out
    with pytest.raises(InputError, match=r"stats: lint was done in .* before recordings changed; run: .* train lint"):
        commands.stats(out)
