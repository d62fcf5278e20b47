"""The command line: dispatch, messages, exit statuses."""

from __future__ import annotations

import re

import pytest
from command_lines import parser_of

from cosmos_robot import cli
from cosmos_robot.errors import CheckpointError, Interrupted


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Install a function as ``cosmos-robot try``."""

    def install(function):
        monkeypatch.setattr(cli, "tried", function, raising=False)
        monkeypatch.setitem(cli.COMMANDS, "try", cli.Command("cosmos_robot.cli:tried", "for this test"))

    return install


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, made in cli.COMMANDS.items():
        assert f"  {name} " in printed and made.summary in printed


def test_no_words_at_all_shows_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "usage: cosmos-robot COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["ckpt"], ["ckpt", "--help"]])
def test_a_group_shows_its_own_commands_only(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "ckpt inspect" in printed and "demo" not in printed


@pytest.mark.parametrize(
    ("words", "near"), [(["doctr"], "'doctor'"), (["ckpt", "inspct"], "'ckpt inspect'"), (["trian"], "'train'")]
)
def test_unknown_command_suggests_the_nearest(words: list[str], near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == cli.REFUSED
    assert f"did you mean {near}" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_tells_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert stop.value.code == 0
    assert f"usage: cosmos-robot {name}" in capsys.readouterr().out


def test_flags_are_parameters_and_the_result_is_the_status(command) -> None:
    seen = []

    def tried(episodes: int = 3, out: str = "x") -> int:
        seen.append((episodes, out))
        return 7

    command(tried)
    assert cli.main(["try", "--episodes", "5"]) == 7
    assert seen == [(5, "x")]


def test_what_has_no_default_is_given_by_flag_or_by_place(command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def tried(first: str, second: str) -> None:
        seen.append((first, second))

    command(tried)
    assert cli.main(["try", "--first", "a", "--second", "b"]) == 0
    monkeypatch.setitem(cli.COMMANDS, "try", cli.COMMANDS["try"]._replace(positional=True))
    assert cli.main(["try", "c", "d"]) == 0
    assert seen == [("a", "b"), ("c", "d")]


def test_anything_but_a_number_is_success(command) -> None:
    command(lambda: "a report")
    assert cli.main(["try"]) == 0


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (CheckpointError("no such folder"), cli.REFUSED, "error: no such folder"),
        (Interrupted("run it again to resume"), cli.INTERRUPTED, "run it again to resume"),
        (KeyboardInterrupt(), cli.INTERRUPTED, "interrupted"),
    ],
)
def test_our_errors_become_a_message(
    command, error: BaseException, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def tried() -> None:
        raise error

    command(tried)
    assert cli.main(["try"]) == status
    printed = capsys.readouterr().err
    assert text in printed and "Traceback" not in printed


def test_a_path_that_cannot_be_written_is_named(command, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    def tried() -> None:
        (tmp_path / "file" / "folder").mkdir()

    command(tried)
    assert cli.main(["try"]) == cli.REFUSED
    assert f"{tmp_path / 'file' / 'folder'}: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--steps", "--episodes", "--length"])
def test_a_bench_of_nothing_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "rendering", "--env", "fake/0", flag, "0"]) == cli.REFUSED
    assert "at least 1" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(command) -> None:
    def tried() -> None:
        raise ZeroDivisionError

    command(tried)
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_an_absent_module_that_no_extra_brings_is_a_fault(command) -> None:
    def tried() -> None:
        raise ModuleNotFoundError("No module named 'cosmos_robot.mistyped'", name="cosmos_robot.mistyped")

    command(tried)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["try"])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_of_every_command_is_explained(name: str) -> None:
    marks = re.compile(r"\(default.*?\)|\(required\)|\(repeatable\)")
    bare = [
        a.option_strings or a.dest for a in parser_of(name)._actions if not marks.sub("", str(a.help or "")).strip()
    ]
    assert not bare
