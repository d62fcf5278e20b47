"""The protocol as data: what it derives, what it refuses, and what makes two of them differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from cosmos_robot.errors import InputError
from cosmos_robot.eval.protocol import (
    EvalProtocol,
    Job,
    current_versions,
    derive_seed,
    load_protocol,
    protocol_differences,
)


def test_jobs_are_the_init_states_of_each_task(fake) -> None:
    jobs = fake.fake_protocol(episodes=2, tasks=(2, 0), init_offset=5).jobs()
    assert [(job.env_name, job.init) for job in jobs] == [("fake/2", 5), ("fake/2", 6), ("fake/0", 5), ("fake/0", 6)]


def test_seeds_are_the_same_on_every_machine() -> None:
    job = Job("libero_object", 3, 7)
    assert [derive_seed(0, job, part) for part in (0, 1, "reset")] == [420554558, 3785830378, 2260961317]


def test_seeds_differ_in_everything_they_are_derived_from() -> None:
    seeds = {
        derive_seed(seed, Job(suite, task, init), part)
        for seed in (0, 1)
        for suite in ("libero_object", "libero_object_swap")
        for task in (0, 1)
        for init in (0, 1)
        for part in (0, 1, "reset")
    }
    assert len(seeds) == 48
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_settling_uses_up_the_budget_only_if_told_to(fake) -> None:
    assert fake.fake_protocol(settle_steps=10, max_steps=60).budget == 60
    counted = fake.fake_protocol(settle_steps=10, max_steps=60, settle_counts=True)
    assert counted.budget == 50
    assert counted.env_options == {"settle_steps": 10, "step_budget": 50, "prompt_source": "scene"}


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": ()},
        {"tasks": (1, 1)},
        {"tasks": (-1,)},
        {"episodes": 0},
        {"init_offset": -1},
        {"execute": 0},
        {"settle_steps": 10, "max_steps": 10, "settle_counts": True},
        {"camera": "agentview"},
    ],
)
def test_nonsense_is_refused(fake, change) -> None:
    with pytest.raises(ValidationError):
        fake.fake_protocol(**change)


def test_reading_back_gives_the_same_protocol(fake) -> None:
    protocol = fake.fake_protocol()
    assert EvalProtocol.model_validate_json(protocol.model_dump_json()) == protocol


def test_differences_name_field_and_values(fake) -> None:
    versions = current_versions()
    other = versions.model_copy(update={"packages": versions.packages | {"mujoco": "2.3.7"}})
    found = protocol_differences(fake.fake_protocol(), fake.fake_protocol(execute=2, versions=other))
    assert found == ["execute: 4 then, 2 now", f"mujoco: {versions.packages['mujoco']} then, 2.3.7 now"]


def test_the_choice_of_episodes_may_be_left_out(fake) -> None:
    one, other = fake.fake_protocol(), fake.fake_protocol(episodes=5, tasks=(1,), init_offset=3)
    assert protocol_differences(one, other, episodes_may_differ=True) == []
    assert len(protocol_differences(one, other)) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "suite: is missing"),
        ('{"protocol": 5}', "expected a JSON object, got 5"),
        ("[1]", "expected a JSON object"),
        ("hello", "not even JSON"),
        ('{"episodes": 0, "foo": 1}', "foo: is no field of this version"),
    ],
)
def test_a_bad_protocol_file_is_told_in_plain_words(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        load_protocol(path)
    assert str(path) in str(caught.value)
    assert "pydantic" not in str(caught.value) and "validation error" not in str(caught.value)
