"""The episode log and the result file: what is kept, what is refused, and what is never counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.eval.results import (
    EpisodeError,
    EpisodeLog,
    EpisodeRecord,
    build_result,
    hash_folder,
    log_path,
    read_result,
    write_result,
)


def record(task: int = 0, init: int = 0, success: bool = True) -> EpisodeRecord:
    return EpisodeRecord(
        suite="fake",
        task=task,
        init=init,
        instruction="Touch it",
        success=success,
        ended="success" if success else "budget",
        steps=9,
        decisions=3,
        reset_seed=1,
        noise_seeds=(1, 2, 3),
        seconds=0.5,
    )


@pytest.fixture
def header(fake):
    return fake.fake_entrant().header(fake.fake_protocol())


def test_the_log_is_read_back(tmp_path, header) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    log = EpisodeLog(path, header)
    log.append(record(0, 0))
    log.append(record(1, 0, success=False))
    log.close()
    assert EpisodeLog(path, header).finished == {(0, 0): record(0, 0), (1, 0): record(1, 0, success=False)}


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_cut_short_is_dropped(tmp_path, header, cut: int) -> None:
    path = tmp_path / "a.jsonl"
    log = EpisodeLog(path, header)
    log.append(record(0, 0))
    log.append(record(0, 1))
    log.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = EpisodeLog(path, header)
    assert list(again.finished) == [(0, 0)]
    again.append(record(0, 2))
    again.close()
    assert list(EpisodeLog(path, header).finished) == [(0, 0), (0, 2)]


def test_a_log_cut_in_its_header_begins_anew(tmp_path, header) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"policy": "se')
    EpisodeLog(path, header).close()
    assert EpisodeLog(path, header).finished == {}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("text", ["my notes", "my notes\n", "{}\n"])
def test_a_file_that_is_no_log_is_left_alone(tmp_path, header, text: str, fresh: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="not an episode log"):
        EpisodeLog(path, header, fresh=fresh)
    assert path.read_text() == text


def test_a_log_of_another_run_is_refused_with_the_differences(tmp_path, fake, header) -> None:
    path = tmp_path / "a.jsonl"
    EpisodeLog(path, header).close()
    before = path.read_bytes()
    other = header.model_copy(update={"checkpoint_sha256": "1" * 64, "protocol": fake.fake_protocol(execute=2)})
    with pytest.raises(InputError) as caught:
        EpisodeLog(path, other)
    assert f"checkpoint_sha256: {'0' * 64} then, {'1' * 64} now" in str(caught.value)
    assert "execute: 4 then, 2 now" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert path.read_bytes() == before


def test_fresh_discards_a_log(tmp_path, fake, header) -> None:
    path = tmp_path / "a.jsonl"
    log = EpisodeLog(path, header)
    log.append(record())
    log.close()
    other = header.model_copy(update={"control": "blind"})
    assert EpisodeLog(path, other, fresh=True).finished == {}


def test_more_episodes_of_the_same_run_are_welcome(tmp_path, fake, header) -> None:
    path = tmp_path / "a.jsonl"
    log = EpisodeLog(path, header)
    log.append(record())
    log.close()
    more = header.model_copy(update={"protocol": fake.fake_protocol(episodes=7)})
    assert list(EpisodeLog(path, more).finished) == [(0, 0)]


def test_a_file_of_another_kind_is_refused_and_kept(tmp_path, header) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("my shopping list\n")
    with pytest.raises(InputError, match="not an episode log"):
        EpisodeLog(path, header)
    assert path.read_text() == "my shopping list\n"


def test_the_result_holds_what_was_asked_for(header) -> None:
    records = [record(1, 0), record(0, 0), record(0, 1, success=False)]
    error = EpisodeError(suite="fake", task=2, init=0, message="gone")
    result = build_result(header, records, [error], seconds=12.34, resumed=1)
    assert (result["successes"], result["episodes"]) == (2, 3)
    assert result["success_rate"] == pytest.approx(2 / 3)
    assert result["ci95"] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    assert [(row["task"], row["successes"], row["episodes"]) for row in result["per_task"]] == [
        (0, 1, 2),
        (1, 1, 1),
        (2, 0, 0),
    ]
    assert result["per_task"][2]["success_rate"] is None
    assert result["protocol"]["versions"]["packages"]["numpy"]
    assert result["errors"] == [{"suite": "fake", "task": 2, "init": 0, "message": "gone"}]
    assert [(r["task"], r["init"]) for r in result["records"]] == [(0, 0), (0, 1), (1, 0)]


def test_the_result_file_is_read_back(tmp_path, header) -> None:
    path = tmp_path / "a.json"
    write_result(path, build_result(header, [record()], [], seconds=1, resumed=0))
    assert read_result(path) == (header, [record()])
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"records": []})])
def test_another_file_is_no_result(tmp_path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match="is not a result"):
        read_result(tmp_path / "a.json")


def test_the_log_lies_beside_the_result(tmp_path) -> None:
    assert log_path(tmp_path / "out.json") == tmp_path / "out.episodes.jsonl"


def test_the_hash_sees_names_and_contents(tmp_path) -> None:
    hashes = set()
    for number, (name, content) in enumerate([("a", "1"), ("b", "1"), ("a", "2")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(content)
        hashes.add(hash_folder(folder))
        hashes.add(hash_folder(folder))
    assert len(hashes) == 3


def test_two_evaluations_do_not_write_one_result(fake, tmp_path: Path) -> None:
    header = fake.fake_entrant().header(fake.fake_protocol())
    path = tmp_path / "out.episodes.jsonl"
    first = EpisodeLog(path, header)
    before = path.read_bytes()
    for fresh in (False, True):
        with pytest.raises(CheckpointError, match="another process is evaluating into"):
            EpisodeLog(path, header, fresh=fresh)
    assert path.read_bytes() == before, "a refused run touched the log of the other"
    first.close()
    EpisodeLog(path, header).close()
