"""Texts of action prompts, character by character: every form the public training pipeline and servers make."""

from __future__ import annotations

from typing import Any

import pytest
from images_in import source_canvas
from pydantic import ValidationError

from cosmos_robot.contract import PromptSpec, load_contract
from cosmos_robot.errors import CosmosRobotError
from cosmos_robot.images import aspect_name, auto_tier, image_size, tier_size
from cosmos_robot.prompts import VIEWPOINTS, PromptFacts, left_to_right, render_prompt

FORMS: dict[str, dict[str, Any]] = {
    "prompt_json": {"template": "action_json", "idle": "given"},
    "prompt_json_float_seconds": {"template": "action_json", "idle": "given", "seconds": "decimal"},
    "prompt_plain_text": {"template": "action_plain"},
    "prompt_plain_text_with_idle": {"template": "action_plain", "idle": "given"},
}


def sample_of(case: dict[str, Any]) -> dict[str, Any]:
    """The sample as the pipeline got it: ``extra`` holds keys of its own and keys that override."""
    sample = {
        "ai_caption": case["caption"],
        "mode": case["mode"],
        "viewpoint": case["viewpoint"],
        "additional_view_description": case.get("layout_text"),
        "conditioning_fps": case["fps"],
        "idle_frames": case.get("idle_frames"),
        "idle_frames_total": case.get("action_rows"),
        "video_num_frames": case["video_frames"],
        "relabel_prompt": {},
    }
    return sample | case.get("extra", {})


def facts_of(case: dict[str, Any], sample: dict[str, Any]) -> PromptFacts:
    height, width = case["video_hw"]
    canvas = source_canvas(height, width, case["resolution"])
    return PromptFacts(
        frames=sample["video_num_frames"],
        fps=sample["conditioning_fps"],
        canvas=image_size(canvas)[:2],
        source=(height, width),
        rows=sample["idle_frames_total"],
        idle_frames=sample["idle_frames"],
        inverse=sample["mode"] == "inverse_dynamics",
        relabel=sample["relabel_prompt"] or {},
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.golden("cosmos3/prompts")
def test_text_of_a_sample(case: dict[str, Any], form: str) -> None:
    recorded = case.get(form)
    if recorded is None:
        pytest.skip(f"no {form} was recorded")
    sample = sample_of(case)
    if not sample["ai_caption"].strip():
        with pytest.raises(CosmosRobotError):
            render_prompt(PromptSpec(template="instruction"), sample["ai_caption"])
        return
    viewpoint, layout = sample["viewpoint"], sample["additional_view_description"] or ""
    if viewpoint not in VIEWPOINTS:
        with pytest.raises(ValidationError):
            PromptSpec(viewpoint=viewpoint, layout_text=layout, **FORMS[form])
        viewpoint = None
    if isinstance(recorded, dict):
        with pytest.raises((CosmosRobotError, ValidationError)):
            spec = PromptSpec(viewpoint=viewpoint, layout_text=layout, **FORMS[form])
            render_prompt(spec, sample["ai_caption"], facts_of(case, sample))
        return
    spec = PromptSpec(viewpoint=viewpoint, layout_text=layout, **FORMS[form])
    assert render_prompt(spec, sample["ai_caption"], facts_of(case, sample)) == recorded


@pytest.mark.golden("cosmos3/prompts", where=lambda case: "image_size" in case)
def test_canvas_of_a_sample(case: dict[str, Any]) -> None:
    canvas = source_canvas(*case["video_hw"], case["resolution"])
    assert list(image_size(canvas)) == case["image_size"]


@pytest.mark.golden("cosmos3/server_samples", where=lambda case: case["server"] == "robolab")
def test_text_of_the_droid_server(case: dict[str, Any]) -> None:
    height, width, *_ = case["image_size"]
    cfg = case["cfg"]
    canvas = source_canvas(*droid_source(case), cfg["resolution"])
    assert list(image_size(canvas)) == case["image_size"]
    spec = load_contract("cosmos3-nano-droid").model.prompt
    if not case["format_prompt_as_json"]:
        spec = spec.model_copy(update={"template": "action_plain"})
    facts = PromptFacts(
        frames=cfg["action_chunk_size"] + 1,
        fps=int(cfg["conditioning_fps"]),
        canvas=(int(height), int(width)),
        source=droid_source(case),
        rows=cfg["action_chunk_size"] + cfg["use_state"],
    )
    assert render_prompt(spec, case["obs"]["prompt"], facts) == case["prompt_string"]


def droid_source(case: dict[str, Any]) -> tuple[int, int]:
    """The server brings every composition to 540x640 unless told another size."""
    return case["cfg"].get("image_height", 540), case["cfg"].get("image_width", 640)


CAMERA_VIEWS = {"agentview": "third-person view", "wrist": "wrist-mounted camera"}


@pytest.mark.golden("cosmos3/server_samples", where=lambda case: case["server"] == "libero")
def test_text_of_the_libero_client_and_server(case: dict[str, Any]) -> None:
    cameras = case["cameras"]
    append: tuple[str, ...] = ()
    if case["client_appended_view_text"] and len(cameras) > 1:
        append = (VIEWPOINTS["concat_view"], left_to_right([CAMERA_VIEWS[name] for name in cameras]))
    assert render_prompt(PromptSpec(template="instruction", append=append), case["task"]) == case["client_prompt"]
    height, width = served_size(case)
    canvas = source_canvas(height, width, auto_tier(height, width))
    assert list(image_size(canvas)) == case["image_size"]
    json_form = case["format_prompt_as_json"]
    spec = PromptSpec(
        template="action_json" if json_form else "action_plain",
        viewpoint="concat_view" if json_form else None,
        append=append,
        idle="zero" if json_form else "omit",
        seconds="whole" if json_form else "decimal",
        resolution="canvas" if json_form else "source",
    )
    facts = PromptFacts(
        frames=case["action_chunk_size"] + 1,
        fps=case["fps"],
        canvas=image_size(canvas)[:2],
        source=(height, width),
        rows=case["action_chunk_size"],
    )
    assert render_prompt(spec, case["task"], facts) == case["prompt_string"]
    assert case["video_shape"] == [3, facts.frames, *facts.canvas]


def served_size(case: dict[str, Any]) -> tuple[int, int]:
    """The server scales a picture of another height to the requested one, its width in proportion."""
    height, width = case["image_hw"]
    wanted = case["image_size_request"]
    return wanted, width if height == wanted else round(width * wanted / height)


@pytest.mark.golden("cosmos3/target_sizes")
def test_canvas_of_a_tier(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(CosmosRobotError):
            tier_size(case["h"], case["w"], case["tier"]) if "tier" in case else auto_tier(case["h"], case["w"])
        return
    for tier, (width, height) in case["target_wh"].items():
        assert tier_size(case["h"], case["w"], tier) == (height, width)
        assert aspect_name(height, width).replace(",", "").isdigit()
    if "int_tier_480" in case:
        assert tier_size(case["h"], case["w"], 480) == tuple(reversed(case["int_tier_480"]))
    if isinstance(case["auto_tier"], dict):
        with pytest.raises(CosmosRobotError):
            auto_tier(case["h"], case["w"])
    else:
        assert auto_tier(case["h"], case["w"]) == case["auto_tier"]
