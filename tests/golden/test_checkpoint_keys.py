"""Names of weights against those recorded from the reference converter."""

from __future__ import annotations

import pytest
from diffusers import Cosmos3OmniTransformer
from golden_files import GoldenFolder

from cosmos_robot.backbone.cosmos3.keys import split_native, to_diffusers, to_native
from cosmos_robot.backbone.cosmos3.modules import unfilled


def recorded(golden: GoldenFolder) -> list[dict]:
    found = sorted((golden.root / "cosmos3").glob("mot_config_*.json"))
    if not found:
        pytest.skip(f"no cosmos3/mot_config_*.json in {golden.root}")
    return [golden.json(f"cosmos3/{path.stem}") for path in found]


def test_every_name_is_mapped_and_back(golden: GoldenFolder) -> None:
    for case in recorded(golden):
        pairs = case["native_to_diffusers"]
        assert {native: to_diffusers(native) for native in pairs} == pairs
        assert {to_native(name): name for name in pairs.values()} == pairs


def test_the_mapping_covers_the_module_exactly(golden: GoldenFolder) -> None:
    for case in recorded(golden):
        module = unfilled(Cosmos3OmniTransformer, case["diffusers_config"], golden.root)
        found = split_native(f"model.net.{native}" for native in case["native_to_diffusers"])
        assert set(found.transformer.values()) == module.state_dict().keys()
