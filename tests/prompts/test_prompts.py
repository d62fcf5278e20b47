"""Texts: what is refused, what is logged, and what a contract's prompt says when it is run."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from cosmos_robot.contract import Contract, PromptSpec, load_contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.prompts import VIEWPOINTS, PromptFacts, Prompts, left_to_right, prompt_facts, render_prompt

FACTS = PromptFacts(frames=17, fps=15, canvas=(544, 736), source=(540, 640), rows=16)


def test_droids_prompt_states_the_canvas_and_no_idle_frames() -> None:
    text = Prompts(load_contract("cosmos3-nano-droid")).text("pick up the cup")
    said = json.loads(text)
    assert list(said) == ["cinematography", "actions", "duration", "fps", "resolution", "aspect_ratio"]
    assert said["actions"] == [{"time": "0:00-0:02", "description": "pick up the cup."}]
    assert (said["duration"], said["fps"]) == ("2s", 15.0)
    assert said["resolution"] == {"H": 544, "W": 736}
    assert said["cinematography"]["framing"].startswith(VIEWPOINTS["concat_view"])
    assert "wrist-mounted camera" in said["cinematography"]["framing"]


def test_liberos_prompt_says_that_nothing_stands_still() -> None:
    said = json.loads(Prompts(load_contract("cosmos3-libero")).text("Close the drawer."))
    assert said["actions"][0]["idle_frame"] == "0 out of 16."
    assert said["resolution"] == {"H": 192, "W": 320}


def test_nothing_about_actions_is_said_where_they_are_asked_for() -> None:
    said = json.loads(Prompts(load_contract("cosmos3-libero")).text("Close the drawer.", inverse=True))
    assert list(said["actions"][0]) == ["time", "description"]


def test_each_text_is_logged_once_and_exactly(caplog: pytest.LogCaptureFixture) -> None:
    prompts = Prompts(load_contract("cosmos3-libero"))
    with caplog.at_level(logging.DEBUG, logger="cosmos_robot.prompts"):
        first = prompts.text("close the drawer")
        prompts.text("close the drawer")
        prompts.text("open the drawer")
    assert [r.levelname for r in caplog.records] == ["DEBUG", "DEBUG"]
    assert caplog.records[0].getMessage().endswith(first)


def test_a_contract_without_its_prompt_is_refused(tmp_path: Path) -> None:
    document = load_contract("cosmos3-libero").model_dump(mode="json")
    del document["model"]["prompt"]
    (tmp_path / "contract.json").write_text(json.dumps(document))
    with pytest.raises(ContractError, match=r"model\.prompt"):
        Contract.load(tmp_path)


@pytest.mark.parametrize("template", ["action_json", "action_plain"])
def test_an_action_prompt_without_facts_is_refused(template: str) -> None:
    with pytest.raises(ContractError, match=template):
        render_prompt(PromptSpec(template=template, viewpoint="ego_view"), "go")


@pytest.mark.parametrize("template", ["caption", "instruction", "action_json", "action_plain"])
@pytest.mark.parametrize("instruction", ["", "  ", " . ", "?!"])
def test_an_instruction_without_words_is_refused(template: str, instruction: str) -> None:
    with pytest.raises(InputError, match="holds no words"):
        render_prompt(PromptSpec(template=template, viewpoint="ego_view"), instruction, FACTS)


@pytest.mark.parametrize("fps", [0, -1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(fps: float) -> None:
    with pytest.raises(InputError, match="fps"):
        PromptFacts(frames=17, fps=fps, canvas=(256, 256), source=(256, 256))
    with pytest.raises(InputError, match="frame"):
        PromptFacts(frames=0, fps=10, canvas=(256, 256), source=(256, 256))


def test_a_framing_that_says_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="viewpoint"):
        PromptSpec(template="action_json")


def test_times_round_half_to_even_and_durations_are_cut() -> None:
    spec = PromptSpec(template="action_json", viewpoint="ego_view")
    for frames, time, duration in ((25, "0:00-0:02", "2s"), (35, "0:00-0:04", "3s"), (655, "0:00-1:06", "65s")):
        facts = PromptFacts(frames=frames, fps=10, canvas=(256, 256), source=(256, 256))
        said = json.loads(render_prompt(spec, "go", facts))
        assert (said["actions"][0]["time"], said["duration"]) == (time, duration)


def test_sentences_are_appended_once() -> None:
    spec = PromptSpec(template="instruction", append=("It is late.", left_to_right(["a", "b"])))
    once = render_prompt(spec, "Go ")
    assert once == "Go. It is late. The left half shows the a; the right half shows the b."
    assert render_prompt(spec, once) == once
    assert left_to_right(["a", "b", "c"]).endswith("as: a, b, c.")


def test_relabelled_keys_win_and_empty_ones_vanish() -> None:
    facts = PromptFacts(
        17, 15, (256, 256), (256, 256), 16, relabel={"description": "Lift.", "state": {"grip": "", "next": [None]}}
    )
    spec = PromptSpec(template="action_json", viewpoint="ego_view")
    entry = json.loads(render_prompt(spec, "go", facts))["actions"][0]
    assert entry == {"time": "0:00-0:01", "description": "Lift."}


def test_facts_of_a_contract() -> None:
    facts = prompt_facts(load_contract("cosmos3-nano-droid"))
    assert (facts.frames, facts.fps, facts.rows) == (33, 15, 33)
    assert (facts.canvas, facts.source) == ((544, 736), (540, 640))
