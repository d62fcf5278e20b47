"""Pictures that must not reach a model: wrong type, range, size or camera. Case reports carry their number."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from drawn import camera, circle, contract_of, letter_f, scene, two_views, whole

from cosmos_robot.contract import CanvasSpec
from cosmos_robot.errors import InputError
from cosmos_robot.images import CanvasComposer, compose_canvas, extra_cameras, unit_float_to_uint8
from cosmos_robot.types import LazyImages, Observation

CLEAR = letter_f(96, 128)
BROKEN = CLEAR / 255.0
BROKEN[3, 4, 0] = np.nan

REFUSED = {
    "unit": ((CLEAR / 255).astype(np.float32), "unit_float_to_uint8"),
    "levels": (CLEAR.astype(np.float64), "range is 0..255"),
    "signed": (CLEAR / 127.5 - 1, "-1..1"),
    "nan": (BROKEN, "1 values that are not finite"),
    "beyond": (CLEAR * 2.0, "no usual range"),
    "int": (CLEAR.astype(np.int64), "range is 0..255"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_pc_13_pictures_of_another_type_are_refused_by_camera_and_range(kind: str) -> None:
    picture, reason = REFUSED[kind]
    contract = two_views()
    for read in (
        lambda: compose_canvas(contract, {"wrist": picture, "exterior_1": CLEAR}),
        lambda: Observation({"wrist": picture, "exterior_1": CLEAR}, {}, "go"),
        lambda: LazyImages(("wrist",), lambda name: picture)["wrist"],
    ):
        with pytest.raises(InputError, match=f"'wrist'.*{picture.dtype}.*{reason}"):
            read()


def test_pc_13_uint8_and_the_explicit_conversion_give_the_same_canvas() -> None:
    contract = two_views()
    same = {"wrist": unit_float_to_uint8("wrist", (CLEAR / 255).astype(np.float32)), "exterior_1": CLEAR}
    expected = compose_canvas(contract, {"wrist": CLEAR, "exterior_1": CLEAR})
    np.testing.assert_array_equal(compose_canvas(contract, same), expected)
    assert expected.max() > 150


@pytest.mark.parametrize("picture", [CLEAR.astype(np.float64), CLEAR / 127.5 - 1, BROKEN, CLEAR, CLEAR[..., 0] / 255])
def test_pc_13_the_conversion_takes_only_floats_of_0_to_1(picture: np.ndarray) -> None:
    with pytest.raises(InputError, match="'wrist'"):
        unit_float_to_uint8("wrist", picture)


def one_camera(fit: str) -> CanvasSpec:
    return CanvasSpec(
        height=256,
        width=256,
        placements=(whole("front", 480, 640, 0, 0, 256, 256),),
        resize="bilinear_antialias",
        fit=fit,
    )


def extent(picture: np.ndarray) -> tuple[int, int]:
    """Rows and columns that hold something bright."""
    bright = picture[..., 0] > 127
    return int(bright.any(1).sum()), int(bright.any(0).sum())


@pytest.mark.parametrize(("fit", "rows", "columns"), [("letterbox", 128, 128), ("stretch", 171, 128)])
def test_pc_14_a_circle_keeps_the_geometry_of_training(fit: str, rows: int, columns: int) -> None:
    canvas = compose_canvas(
        contract_of((camera("front", 480, 640),), one_camera(fit)), {"front": circle(480, 640, 160)}
    )
    tall, wide = extent(canvas)
    assert abs(tall - rows) <= 1
    assert abs(wide - columns) <= 1
    middle = np.argwhere(canvas[..., 0] > 127).mean(0)
    np.testing.assert_allclose(middle, 127.5, atol=0.6)  # bars above and below are equal
    bars = canvas[:32].max(), canvas[-32:].max()
    assert bars == (0, 0)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((256, 256), "second resize"),
        ((480, 480), "squeezed"),
        ((360, 640), "squeezed"),
        ((240, 320), "resized before"),
    ],
)
def test_pc_14_a_picture_that_was_resized_already_is_reported(size: tuple[int, int], reason: str) -> None:
    contract = contract_of((camera("front", 480, 640),), one_camera("letterbox"))
    with pytest.raises(InputError, match=rf"'front': expected 480x640 pixels, got {size[0]}x{size[1]}.*{reason}"):
        compose_canvas(contract, {"front": circle(*size, 50)})


def test_pc_16_a_missing_camera_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="camera 'wrist' is missing") as caught:
        compose_canvas(two_views(), {"exterior_1": CLEAR})
    assert "exterior_1" in str(caught.value)
    with pytest.raises(InputError, match="rename 'exterior_2' to 'exterior_1'"):
        compose_canvas(two_views(), {"wrist": CLEAR, "exterior_2": CLEAR})


def test_pc_16_an_extra_camera_is_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    contract = two_views()
    right = {"wrist": scene(1), "exterior_1": scene(2)}
    compose = CanvasComposer(contract)
    with caplog.at_level(logging.WARNING, logger="cosmos_robot"):
        for _ in range(3):
            canvas = compose({"default": scene(3), **right})
    np.testing.assert_array_equal(canvas, compose_canvas(contract, right))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "default" in caplog.text
    assert extra_cameras(contract, right) == ()


def test_an_extra_camera_is_never_drawn() -> None:
    drawn: list[str] = []

    def draw(name: str) -> np.ndarray:
        drawn.append(name)
        return CLEAR

    CanvasComposer(two_views())(LazyImages(("default", "wrist", "exterior_1"), draw))
    assert drawn == ["wrist", "exterior_1"]


def test_pc_16_cameras_are_matched_by_name_not_by_order() -> None:
    wrist, exterior = scene(1), scene(2)
    canvas = compose_canvas(two_views(), {"exterior_1": exterior, "wrist": wrist})
    np.testing.assert_array_equal(canvas, np.concatenate([wrist, exterior], 1))
