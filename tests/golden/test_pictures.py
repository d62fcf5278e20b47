"""Pictures, level by level: padding, composition, and Cosmos Policy's way from camera to model."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cosmos_robot.contract import Box, CanvasSpec, Size
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.images import (
    Fitted,
    centre_crop,
    crop_and_restore,
    downscale_and_pad,
    jpeg_round_trip,
    model_values,
    one_above_two,
    place_on_canvas,
    remove_padding,
    resize,
    side_by_side,
    turn,
    unit_float_to_uint8,
)
from cosmos_robot.images.augment import Augmentation, augment


def assert_near(picture: np.ndarray, recorded: np.ndarray, levels: float = 1) -> None:
    """Equal within one level of 255; recorded floats of 0..1 are brought to levels first."""
    if recorded.dtype != np.uint8 and picture.dtype == np.uint8:
        recorded, levels = recorded * 255.0, levels + 1e-3
    assert picture.shape == recorded.shape
    assert np.abs(picture.astype(np.float64) - recorded.astype(np.float64)).max(initial=0) <= levels


def frames_of(array: np.ndarray, axes: str) -> list[np.ndarray]:
    """Pictures (H, W, 3) of an array whose axes are named, for instance "TCHW"."""
    if "T" not in axes:
        array, axes = array[None], "T" + axes
    return list(np.moveaxis(array, [axes.index(a) for a in "THWC"], range(4)))


@pytest.mark.golden("cosmos3/reflection_pad")
def test_padding(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/reflection_pad", case["id"])
    height, width = case["target_h"], case["target_w"]
    axes = "CHW" if arrays["in"].ndim == 3 else "CTHW"

    def fitted(picture: np.ndarray) -> Fitted:
        if case["keep_aspect_ratio"]:
            return downscale_and_pad(picture, height, width)
        return Fitted(resize(picture, height, width, "bicubic_antialias"), 0, 0, height, width)

    pictures = frames_of(arrays["in"], axes)
    if "error" in case:
        with pytest.raises(CosmosRobotError):
            fitted(pictures[0])
        return
    wanted = zip(frames_of(arrays["out"], axes), frames_of(arrays["unpadded"], axes), strict=True)
    for picture, (out, unpadded) in zip(pictures, wanted, strict=True):
        got = fitted(picture)
        assert got.canvas.dtype == out.dtype
        assert list(got.image_size) == case["image_size"]
        levels = 0 if out.dtype == np.uint8 else 1e-5
        assert_near(got.canvas, out, levels)
        assert_near(got.content, unpadded, levels)
        assert_near(remove_padding(out, got.image_size), unpadded, 0)


def sizes(pictures: dict[str, np.ndarray]) -> dict[str, Size]:
    return {name: Size(height=p.shape[0], width=p.shape[1]) for name, p in pictures.items()}


@pytest.mark.golden("cosmos3/views", where=lambda case: "_compose_roboarena" in case["kind"])
def test_composition_of_the_droid_server(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/views", case["id"])
    pictures = {name: arrays[name] for name in ("wrist", "ext1", "ext2")}
    if "error" in case:
        with pytest.raises(CosmosRobotError):
            one_above_two(sizes(pictures))
        return
    canvas = one_above_two(sizes(pictures))
    assert_near(place_on_canvas(canvas, pictures), arrays["out"])
    for name in arrays:
        if found := re.fullmatch(r"resized_(\d+)x(\d+)", name):
            height, width = int(found[1]), int(found[2])
            stretched = canvas.model_copy(
                update={
                    "height": height,
                    "width": width,
                    "composed": Size(height=canvas.height, width=canvas.width),
                }
            )
            assert_near(place_on_canvas(stretched, pictures), arrays[name])


@pytest.mark.golden("cosmos3/views", where=lambda case: "_compose_multi_view" in case["kind"])
def test_composition_of_the_droid_dataset(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/views", case["id"])
    views = {name: frames_of(arrays[name], "TCHW") for name in ("wrist", "left", "right")}
    first = {name: frames[0] for name, frames in views.items()}
    for name, keep_aspect in (("out", False), ("compose_multiview", True)):
        if name not in arrays:
            with pytest.raises(InputError):
                one_above_two(sizes(first), keep_aspect=keep_aspect)
            continue
        canvas = one_above_two(sizes(first), keep_aspect=keep_aspect, resize_rule="bilinear")
        for i, recorded in enumerate(frames_of(arrays[name], "TCHW")):
            assert_near(place_on_canvas(canvas, {n: frames[i] for n, frames in views.items()}), recorded)


@pytest.mark.golden("cosmos3/views", where=lambda case: "concatenate_images" in case["kind"])
def test_composition_of_the_libero_client(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/views", case["id"])
    pictures = {f"in{i}": levels_of(arrays[f"in{i}"]) for i in range(case["n_views"])}
    side = case["image_size"]
    canvas = CanvasSpec(
        height=side,
        width=side * len(pictures),
        placements=side_by_side(sizes(pictures), side, side),
        resize="pillow_bilinear",
    )
    assert_near(place_on_canvas(canvas, pictures), arrays["out"], 0)


def levels_of(picture: np.ndarray) -> np.ndarray:
    """As the caller who knows the range converts it: 0..1 by the package, 0..255 by cutting off, as recorded."""
    if picture.dtype == np.uint8:
        return picture
    return unit_float_to_uint8("view", picture) if picture.max() <= 1 else picture.astype(np.uint8)


@pytest.mark.golden("cosmos3/views", where=lambda case: case["kind"].startswith("_get_libero_image"))
def test_orientation_of_the_libero_client(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/views", case["id"])
    wanted = {
        (False, False): "upright",
        (False, True): "rot180",
        (True, False): "flip_vertical",
        (True, True): "mirror",
    }[case["flip_images"], case["rotate_180"]]
    assert_near(turn(arrays[case["camera"]], "upright", wanted), arrays["out"], 0)


@pytest.mark.golden("cosmos3/views", where=lambda case: case["kind"].startswith("LIBERO dataset _resize"))
def test_resize_of_the_libero_dataset(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays_of("cosmos3/views", case["id"])
    side = case["image_size"]
    for picture, recorded in zip(frames_of(arrays["in"], "TCHW"), frames_of(arrays["out"], "TCHW"), strict=True):
        assert_near(resize(picture, side, side, "bilinear"), recorded)
        assert_near(resize((picture / 255).astype(np.float32), side, side, "bilinear"), recorded, 1e-5)


KINDS = (
    "_compose_roboarena",
    "_compose_multi_view",
    "concatenate_images",
    "_get_libero_image",
    "LIBERO dataset _resize",
)


@pytest.mark.golden("cosmos3/views")
def test_every_kind_of_view_is_known(case: dict[str, Any]) -> None:
    assert any(kind in case["kind"] for kind in KINDS)


@pytest.mark.golden("cosmos_policy/images", where=lambda case: "flip" in case)
def test_a_camera_of_cosmos_policy(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays("cosmos_policy/images")
    raw, side = arrays[f"{case['case']}_raw"], case["target"]
    assert centre_crop(np.zeros((side, side)), 0.9).shape == (case["crop_size"],) * 2
    flipped = turn(raw, "flip_vertical", "upright")
    assert int(flipped.sum()) == case["sums"]["flipped"]
    compressed = jpeg_round_trip(flipped, 95)
    assert_near(compressed[:32], arrays[f"{case['case']}_jpeg_roundtrip_rows_0_32"])
    assert abs(int(compressed.sum()) - case["sums"]["jpeg"]) <= compressed.size // 1000
    variants = {
        "prepared_jpeg_crop": (95, 0.9),
        "prepared_nojpeg_crop": (None, 0.9),
        "prepared_nojpeg_nocrop": (None, None),
    }
    for name, (quality, fraction) in variants.items():
        canvas = CanvasSpec(
            height=side,
            width=side,
            placements=side_by_side(sizes({"camera": raw}), side, side),
            jpeg_quality=quality,
            resize="pillow_bicubic",
            crop_fraction=fraction,
        )
        seen = place_on_canvas(canvas, {"camera": raw}, {"camera": "flip_vertical"})
        assert abs(int(seen.sum()) - case["sums"][name]) <= seen.size // 1000
        if (whole := arrays.get(f"{case['case']}_{name}")) is not None:
            assert_near(seen, whole)
        if (patch := arrays.get(f"{case['case']}_{name}_patch_80_144")) is not None:
            assert_near(seen[80:144, 80:144], patch)


@pytest.mark.golden("cosmos_policy/images", where=lambda case: "resize_is_copy" in case)
def test_single_steps_of_cosmos_policy(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays("cosmos_policy/images")
    stored = {name: arrays[f"{case['case']}_{name}"] for name in ("raw", "jpeg", "resized", "crop_resized")}
    side = case["target"]
    assert_near(jpeg_round_trip(stored["raw"], 95), stored["jpeg"])
    small = resize(stored["raw"], side, side, "pillow_bicubic")
    assert_near(small, stored["resized"], 0)
    assert centre_crop(small, 0.9).shape[0] == case["crop_size"]
    assert (small is stored["raw"]) == case["resize_is_copy"]
    assert_near(crop_and_restore(small, 0.9), stored["crop_resized"])
    both = crop_and_restore(resize(stored["jpeg"], side, side, "pillow_bicubic"), 0.9)
    assert_near(both, arrays[f"{case['case']}_jpeg_resized_crop"])


@pytest.mark.golden("cosmos_policy/evaluation", key="observations")
def test_pictures_of_cosmos_policys_evaluation(case: dict[str, Any]) -> None:
    for camera in ("primary", "wrist"):
        raw = np.array(case[f"raw_{camera}"], np.uint8)
        seen = turn(raw, "flip_vertical", "upright")
        assert_near(seen, np.array(case[f"{camera}_image"], np.uint8), 0)


@pytest.mark.golden("cosmos_policy/images", key="augmentation")
def test_augmentation_of_cosmos_policy(case: dict[str, Any], golden: Any) -> None:
    arrays = golden.arrays("cosmos_policy/images")
    numbers = case["parameters"]
    top, left, height, width = numbers["crop_top_left_height_width"]
    change = Augmentation(
        Box(top=top, left=left, height=height, width=width),
        rotate=numbers.get("rotate", 0.0),
        **{name: numbers[f"adjust_{name}"] for name in ("brightness", "contrast", "saturation", "hue")},
    )
    inputs, outputs = (frames_of(arrays[f"{case['case']}_{end}"], "CTHW") for end in ("in", "out"))
    assert len(inputs) == case["frames"]
    for picture, recorded in zip(inputs, outputs, strict=True):
        assert_near(augment(picture, change), recorded)


def test_pixels_become_model_values(golden: Any) -> None:
    stored = golden.json("cosmos_policy/images")
    pixels = np.array(stored["pixel_values"], np.uint8)
    for precision, recorded in stored["pixel_to_model"].items():
        np.testing.assert_array_equal(model_values(pixels, bfloat16=precision == "bfloat16"), recorded)
