"""An F through every checkpoint's pipeline.

The expected pictures were made with torch, torchvision and Pillow alone, step by step as the public servers and data
loaders run, starting from raw OpenGL rows where the camera is a simulator's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn import camera, contract_of, letter_f, whole
from PIL import Image as PILImage

from cosmos_robot.contract import CanvasSpec, Contract, load_contract
from cosmos_robot.images import canvas_parts, compose_canvas, turn
from cosmos_robot.images.sheet import model_sheet, write_model_sheet

EXPECTED = Path(__file__).parent / "expected"
COLOURS = ((200, 60, 20), (30, 200, 60), (230, 200, 40))
ORIENTATIONS = ("upright", "flip_vertical", "mirror", "rot180")


def pictures_for(contract: Contract) -> dict[str, np.ndarray]:
    """An upright F before each camera, one colour each, as the camera delivers it."""
    return {
        c.name: turn(letter_f(c.height, c.width, colour), "upright", c.orientation)
        for c, colour in zip(contract.robot.cameras, COLOURS, strict=False)
    }


def levels_apart(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def expected(name: str) -> np.ndarray:
    return np.asarray(PILImage.open(EXPECTED / f"{name}.png"))


CHECKPOINTS = sorted(path.stem for path in EXPECTED.glob("*.png"))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_pc_11_the_letter_reaches_the_model_as_in_training(name: str) -> None:
    contract = load_contract(name)
    seen = compose_canvas(contract, pictures_for(contract))
    assert seen.shape == expected(name).shape
    assert levels_apart(seen, expected(name)) <= 1


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_pc_11_a_camera_that_arrives_another_way_is_turned_back(name: str) -> None:
    contract = load_contract(name)
    for orientation in ORIENTATIONS:
        cameras = tuple(c.model_copy(update={"orientation": orientation}) for c in contract.robot.cameras)
        turned = contract.model_copy(update={"robot": contract.robot.model_copy(update={"cameras": cameras})})
        assert levels_apart(compose_canvas(turned, pictures_for(turned)), expected(name)) <= 1


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_pc_11_every_wrong_orientation_shows(name: str) -> None:
    contract = load_contract(name)
    for orientation in set(ORIENTATIONS) - {contract.model.canvas.orientation}:
        canvas = contract.model.canvas.model_copy(update={"orientation": orientation})
        wrong = contract.model_copy(update={"model": contract.model.model_copy(update={"canvas": canvas})})
        assert levels_apart(compose_canvas(wrong, pictures_for(wrong)), expected(name)) > 50


def test_pc_11_one_simulator_three_conventions() -> None:
    """Raw OpenGL rows as seen by Cosmos 3 (turned by 180 degrees), Cosmos Policy (flipped) and LeRobot (raw)."""
    true = letter_f(96, 96)
    raw = np.flipud(true)
    seen = {"mirror": raw[::-1, ::-1], "upright": np.flipud(raw), "flip_vertical": raw}
    for orientation, picture in seen.items():
        canvas = CanvasSpec(
            height=96, width=96, placements=(whole("front", 96, 96, 0, 0, 96, 96),), orientation=orientation
        )
        contract = contract_of((camera("front", 96, 96, "flip_vertical"),), canvas)
        np.testing.assert_array_equal(compose_canvas(contract, {"front": raw}), picture)
    assert not np.array_equal(seen["mirror"], seen["upright"])


def test_cosmos_policys_canvas_is_cut_into_its_slots() -> None:
    contract = load_contract("cosmos-policy-libero")
    pictures = pictures_for(contract)
    parts = canvas_parts(contract.model.canvas, compose_canvas(contract, pictures))
    assert [p.shape for p in parts] == [(224, 224, 3)] * 2
    pictures["agentview"] = np.zeros_like(pictures["agentview"])
    dark = canvas_parts(contract.model.canvas, compose_canvas(contract, pictures))
    assert [p.camera for p in contract.model.canvas.placements] == ["wrist", "agentview"]
    assert (dark[0] == parts[0]).all()
    assert dark[1].max() <= 1


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_pc_11_the_sheet_holds_cameras_canvas_and_training_frame(name: str, tmp_path: Path) -> None:
    contract = load_contract(name)
    pictures = pictures_for(contract)
    sheet = np.asarray(model_sheet(contract, pictures, training=expected(name)))
    seen = compose_canvas(contract, pictures)
    parts = [pictures[p.camera] for p in contract.model.canvas.placements] + [expected(name)]
    if contract.model.canvas.tier:  # no outline is drawn over it
        parts.append(seen)
    for part in parts:
        assert holds(sheet, part)
    path = write_model_sheet(contract, pictures, tmp_path / "sheet.png")
    assert PILImage.open(path).size[0] == sheet.shape[1]


def holds(sheet: np.ndarray, part: np.ndarray) -> bool:
    """Whether ``part`` lies somewhere on ``sheet``, pixel by pixel."""
    corners = np.argwhere((sheet == part[0, 0]).all(-1))
    height, width = part.shape[:2]
    return any(np.array_equal(sheet[y : y + height, x : x + width], part) for y, x in corners)
