"""Steps and sizes at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import camera, circle, contract_of, letter_f, scene, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cosmos_robot.contract import Box, CanvasSpec, Size
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.images import (
    TIERS,
    aspect_name,
    auto_tier,
    canvas_parts,
    centre_crop,
    downscale_and_pad,
    fit_on_canvas,
    image_size,
    jpeg_round_trip,
    latent_content,
    letterbox,
    one_above_two,
    remove_padding,
    resize,
    tier_size,
    turn,
)
from cosmos_robot.images.augment import COSMOS_POLICY, Augmentation, augment, draw_augmentation

SIDES = st.integers(1, 60)


@given(SIDES, SIDES, st.integers(16, 64), st.integers(16, 64), st.sampled_from(["black", "reflect"]))
@settings(max_examples=60, deadline=None)
def test_a_padded_picture_gives_its_content_back(height: int, width: int, tall: int, wide: int, pad: str) -> None:
    picture = scene(1, height, width)
    if min(tall / height, wide / width, 1) * min(height, width) < 0.5:
        with pytest.raises(InputError, match="vanishes"):
            downscale_and_pad(picture, tall, wide, pad=pad)
        return
    fitted = downscale_and_pad(picture, tall, wide, pad=pad)
    assert fitted.canvas.shape == (tall, wide, 3)
    np.testing.assert_array_equal(fitted.content, remove_padding(fitted.canvas, fitted.image_size))
    if height <= tall and width <= wide:
        np.testing.assert_array_equal(fitted.content, picture)
    black = np.array(fitted.canvas)
    black[: fitted.height, : fitted.width] = 0
    assert (pad == "reflect") or not black.any()


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(sorted(TIERS)))
def test_a_tier_gives_a_canvas_of_its_table(height: int, width: int, tier: str) -> None:
    tall, wide = tier_size(height, width, tier)
    assert (wide, tall) in TIERS[tier].values()
    assert tall % 8 == 0 and wide % 8 == 0
    assert all(part.isdigit() for part in aspect_name(tall, wide).split(","))


def test_names_and_numbers_that_are_not_in_the_table() -> None:
    with pytest.raises(UnknownNameError, match="480"):
        tier_size(540, 640, "48O")
    with pytest.raises(InputError, match="at most 2048"):
        auto_tier(2049, 4000)
    with pytest.raises(InputError, match="at least 1"):
        tier_size(0, 10, "256")
    assert auto_tier(768, 1360) == "768"
    assert aspect_name(540, 640) == "32,27"


def test_turning_twice_is_nothing() -> None:
    picture = letter_f(20, 30)
    for a in ("upright", "flip_vertical", "mirror", "rot180"):
        for b in ("upright", "flip_vertical", "mirror", "rot180"):
            np.testing.assert_array_equal(turn(turn(picture, a, b), b, a), picture)
    np.testing.assert_array_equal(turn(picture, "upright", "mirror"), picture[:, ::-1])


def test_steps_refuse_what_they_cannot_do() -> None:
    picture = scene(1, 20, 30)
    with pytest.raises(UnknownNameError, match="did you mean 'bilinear'"):
        resize(picture, 10, 10, "bilinaer")
    with pytest.raises(InputError, match="uint8 only"):
        resize(picture.astype(np.float32), 10, 10, "pillow_bicubic")
    with pytest.raises(InputError, match="at least 1x1"):
        resize(picture, 0, 10, "area")
    with pytest.raises(InputError, match="1 to 100"):
        jpeg_round_trip(picture, 0)
    with pytest.raises(InputError, match="share of the area"):
        centre_crop(picture, 1.5)
    with pytest.raises(InputError, match="does not fit"):
        remove_padding(picture, (20, 31, 10, 10))


def test_a_letterbox_never_squeezes() -> None:
    fitted = letterbox(circle(40, 100, 15), 64, 64, "bilinear_antialias")
    assert (fitted.top, fitted.left, fitted.height, fitted.width) == (19, 0, 26, 64)
    assert not fitted.canvas[:19].any()
    assert not fitted.canvas[45:].any()


def test_latents_are_cut_to_their_content() -> None:
    canvas = CanvasSpec(
        height=256, width=512, placements=(whole("a", 256, 512, 0, 0, 256, 512),), tier="256", pad="reflect"
    )
    assert image_size(canvas) == (192, 320, 160, 320)
    assert latent_content(image_size(canvas)) == (10, 20)
    fitted = fit_on_canvas(canvas, {"a": scene(1, 256, 512)})
    assert fitted.image_size == image_size(canvas)
    np.testing.assert_array_equal(fitted.canvas[160:192], fitted.canvas[127:159][::-1])


def test_a_canvas_that_was_resized_cannot_be_cut() -> None:
    canvas = CanvasSpec(height=64, width=64, placements=(whole("a", 64, 64, 0, 0, 64, 64),), tier="256")
    with pytest.raises(InputError, match="cannot be cut"):
        canvas_parts(canvas, scene(1, 256, 256))


def test_places_may_not_overlap_or_leave() -> None:
    with pytest.raises(ValidationError, match="overlap"):
        CanvasSpec(height=64, width=64, placements=(whole("a", 9, 9, 0, 0, 32, 32), whole("b", 9, 9, 31, 31, 32, 32)))
    with pytest.raises(ValidationError, match="leaves the 32x64"):
        CanvasSpec(
            height=64,
            width=64,
            composed=Size(height=32, width=64),
            placements=(whole("a", 9, 9, 8, 0, 32, 32),),
        )


def test_one_above_two_needs_an_even_width_and_one_height() -> None:
    size = Size(height=36, width=64)
    with pytest.raises(InputError, match="even width"):
        one_above_two({"a": Size(height=36, width=63), "b": size, "c": size})
    with pytest.raises(InputError, match="three cameras"):
        one_above_two({"a": size, "b": size})
    with pytest.raises(InputError, match="one height"):
        one_above_two({"a": size, "b": size, "c": Size(height=64, width=64)}, keep_aspect=True)


def test_a_crop_fraction_zooms_into_the_middle() -> None:
    canvas = CanvasSpec(
        height=64, width=64, placements=(whole("a", 64, 64, 0, 0, 64, 64),), resize="pillow_bicubic", crop_fraction=0.25
    )
    contract = contract_of((camera("a", 64, 64),), canvas)
    seen = fit_on_canvas(contract.model.canvas, {"a": circle(64, 64, 10)}).canvas
    assert abs(int((seen[..., 0] > 127).any(0).sum()) - 40) <= 2


def test_a_draw_of_augmentation_is_the_generators_and_keeps_the_size() -> None:
    picture = scene(3, 64, 64)
    draws = [draw_augmentation(COSMOS_POLICY, 64, 64, np.random.default_rng(5)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != draw_augmentation(COSMOS_POLICY, 64, 64, np.random.default_rng(6))
    assert augment(picture, draws[0]).shape == picture.shape
    assert draws[0].crop is not None
    assert draws[0].crop.height == 61
    with pytest.raises(InputError, match="must not be negative"):
        Augmentation(contrast=-0.1)
    with pytest.raises(InputError, match="leaves the 64x64"):
        augment(picture, Augmentation(crop=Box(top=10, left=0, height=60, width=60)))


def test_an_augmentation_of_nothing_changes_at_most_a_level() -> None:
    picture = scene(4, 32, 32)
    assert np.abs(augment(picture, Augmentation()).astype(int) - picture).max() <= 1
