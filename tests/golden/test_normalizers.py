"""The seven normalisers, the older helper, and Cosmos Policy's min-max, against the reference.

The reference computes in float32, so a value of a near-constant dimension is known only to the rounding of its
statistics: tolerances follow |x| + |offset| over the scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_files import numbers

from cosmos_robot.actions.normalization import Normalizer, range_map, to_bfloat16
from cosmos_robot.actions.statistics import statistics_of
from cosmos_robot.actions.statistics_files import blocks_of, choose_block, default_block
from cosmos_robot.contract import Normalization, Statistics
from cosmos_robot.errors import CosmosRobotError

EPS = float(np.finfo(np.float32).eps)
STD_FLOOR, HALF_RANGE_FLOOR = 1e-8, 0.5e-8


def single(value: Any) -> np.ndarray:
    """Printed float32 numbers: the shortest decimals that restore them."""
    return numbers(value, np.float32).astype(np.float64)


def statistics(block: dict[str, Any]) -> Statistics:
    return Statistics(**{name: tuple(single(value).tolist()) for name, value in block.items()})


def specification(method: str, block: dict[str, Any], **options: Any) -> Normalization:
    floor = STD_FLOOR if method in ("meanstd", "quantile_rot_scale_floor") else HALF_RANGE_FLOOR
    return Normalization(**({"scale_floor": floor} | options), method=method, statistics=statistics(block))


def assert_forward(got: np.ndarray, want: Any, x: np.ndarray, normalizer: Normalizer) -> None:
    rounding = 4 * EPS * (np.abs(x) + np.abs(normalizer.map.offset)) / normalizer.map.scale
    assert (np.abs(got - single(want)) <= rounding + 1e-5 * np.abs(got) + 1e-7).all()


def assert_inverse(got: np.ndarray, want: Any, y: np.ndarray, normalizer: Normalizer) -> None:
    want = single(want)
    # sinh turns the rounding of y into a relative error of its result.
    curve = 1 + np.abs(y) if "asinh" in normalizer.spec.method else 1
    rounding = 8 * EPS * (np.abs(got - normalizer.map.offset) * curve + np.abs(normalizer.map.offset))
    assert (np.abs(got - want) <= rounding + 1e-5 * np.abs(want)).all()


@pytest.mark.golden("cosmos3/normalizers")
def test_methods(case, golden) -> None:
    block = golden.json("cosmos3/normalizers")["stats"][case["stats"]]
    if case["default_key"]:
        assert default_block(case["method"]) == case["stats"].split(":")[1]
    clamp = 1.0 if case["apply_forward_clamp"] and "asinh" not in case["method"] else None
    if case["method"] == "meanstd":
        clamp = None  # the reference never clamps it
    options = {"beta": case["beta"]} if "beta" in case else {}
    spec = specification(case["method"], block, clamp=clamp, **options)
    raw, model = single(case["raw_in"]), single(case["model_in"])
    normalizer = Normalizer(spec, raw.shape[-1])

    ends = np.abs(normalizer.map.offset) + normalizer.map.scale
    for name in ("offset", "scale"):
        assert (np.abs(getattr(normalizer.map, name) - single(case[name])) <= 2 * EPS * ends).all()
    assert_forward(normalizer.normalize(raw), case["normalized"], raw, normalizer)
    there = single(case["normalized"])
    assert_inverse(normalizer.denormalize(there), case["round_trip"], there, normalizer)
    assert_inverse(normalizer.denormalize(model), case["denormalized"], model, normalizer)


@pytest.mark.golden("cosmos3/normalizers", key="load_errors")
def test_files_without_what_the_method_needs_are_refused(case, golden) -> None:
    blocks = golden.json("cosmos3/normalizers")["stats"]
    file = {}
    for key in case["top_level_keys"]:
        known = blocks.get(f"{case['stats_file']}:{key}")
        file[key] = known if known else [0.0, 0.0] if key in ("mean", "std", "min", "max", "q01", "q99") else {}
    with pytest.raises(CosmosRobotError):
        choose_block(blocks_of(file), method=case["method"], key=case["stats_key"])


@pytest.mark.golden("cosmos3/normalizers_extra")
def test_other_normalizers(case) -> None:
    for beginning, check in CHECKS.items():
        if case["kind"].startswith(beginning):
            return check(case)
    pytest.fail(f"unknown kind {case['kind']!r}")


def pose_scale(case: dict[str, Any]) -> None:
    def make() -> Normalizer:
        factors = {name: case[name] for name in ("translation_scale", "rotation_scale")}
        return Normalizer(Normalization(method="pose_scale", **factors), case["action_dim"])

    if "error" in case:
        with pytest.raises((CosmosRobotError, ValueError)):
            make()
        return
    normalizer, raw = make(), single(case["raw_in"])
    np.testing.assert_allclose(normalizer.map.scale, single(case["scale"]), rtol=1e-6)
    np.testing.assert_allclose(normalizer.normalize(raw), single(case["normalized"]), rtol=1e-6)
    np.testing.assert_allclose(normalizer.denormalize(raw), single(case["denormalized"]), rtol=1e-6)


def old_helper(case: dict[str, Any]) -> None:
    spec = specification(case["method"], case["stats"], formula="from_low")
    raw = single(case["raw_in"])
    normalizer = Normalizer(spec, raw.shape[-1])
    assert_forward(normalizer.normalize(raw), case["normalized"], raw, normalizer)
    got, want = normalizer.denormalize(raw), single(case["denormalized_of_raw_in"])
    low, high = (single(case["stats"][n]) for n in (("min", "max") if case["method"] == "minmax" else ("q01", "q99")))
    rounding = 4 * EPS * (np.abs(low) + np.abs(high)) * (1 + np.abs(raw))
    assert (np.abs(got - want) <= rounding + 1e-5 * np.abs(want)).all()


def piecewise(case: dict[str, Any]) -> None:
    normalizer = Normalizer(
        specification("piecewise_asinh_rot", around(case), beta=case["beta"]), len(case["offset"])
    )  # fmt: skip
    raw = single(case["raw_in"])
    assert_forward(normalizer.normalize(raw), case["normalized"], raw, normalizer)
    there = single(case["normalized"])
    assert_inverse(normalizer.denormalize(there), case["round_trip"], there, normalizer)


def clamp_mask(case: dict[str, Any]) -> None:
    low, high = case["forward_clamp"]
    assert -low == high
    mask = tuple(case["forward_clamp_mask"])
    spec = specification("meanstd", {"mean": case["offset"], "std": case["scale"]}, clamp=high, clamp_mask=mask)
    raw = single(case["raw_in"])
    normalizer = Normalizer(spec, raw.shape[-1])
    assert_forward(normalizer.normalize(raw), case["normalized"], raw, normalizer)


def processor(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(CosmosRobotError):
            affine(case).normalize(single(case["action"]))
        return
    normalizer, raw, width = affine(case), single(case["action"]), case["out_raw_action_dim"]
    out, generated = single(case["out_action"]), single(case["generated"])
    assert_forward(normalizer.normalize(raw), out[:, :width].tolist(), raw, normalizer)
    assert not out[:, width:].any()
    assert_inverse(
        normalizer.denormalize(generated[:, :width]), case["postprocessed"], generated[:, :width], normalizer
    )


def libero_server(case: dict[str, Any]) -> None:
    model = single(case["model_in"])[:, : case["raw_action_dim"]]
    if case["method"] == "meanstd":
        got = Normalizer(specification("meanstd", case["stats"], formula="from_low"), model.shape[1]).denormalize(model)
    else:
        ends = ("min", "max") if case["method"] == "minmax" else ("q01", "q99")
        low, high = (single(case["stats"][name]) for name in ends)
        got = range_map(low, high, formula="from_low", floor=HALF_RANGE_FLOOR, inverse_floor=0.5e-6).inverse(model)
    want = single(case["denormalized"])
    centre = np.abs(single(case["stats"]["min"])) + np.abs(single(case["stats"]["max"]))
    np.testing.assert_array_less(np.abs(got - want), 1e-5 * np.abs(want) + 4 * EPS * centre + 1e-12)


def affine(case: dict[str, Any]) -> Normalizer:
    return Normalizer(specification("meanstd", {"mean": case["offset"], "std": case["scale"]}), len(case["offset"]))


def around(case: dict[str, Any]) -> dict[str, Any]:
    offset, scale = single(case["offset"]), single(case["scale"])
    return {"q01": (offset - scale).tolist(), "q99": (offset + scale).tolist()}


CHECKS = {
    "pose_scale": pose_scale,
    "old_flat_helper": old_helper,
    "piecewise_asinh": piecewise,
    "affine with forward_clamp_mask": clamp_mask,
    "ActionProcessor": processor,
    "LIBERO server": libero_server,
}


def min_max(block: dict[str, Any], what: str) -> Normalizer:
    """Cosmos Policy's: no floor; a constant dimension, where it divides by zero, is held at 0 instead."""
    low, high = (tuple(numbers(block[f"{what}{end}"]).tolist()) for end in ("min", "max"))
    spec = Normalization(
        method="minmax", formula="from_low", scale_floor=1e-300, constant="centre",
        statistics=Statistics(min=low, max=high),
    )  # fmt: skip
    return Normalizer(spec, len(low))


@pytest.mark.golden("cosmos_policy/normalisation")
def test_cosmos_policy_normalisation(case) -> None:
    exact = {"rtol": 1e-12, "atol": 1e-12}
    for what in ("actions", "proprio"):
        normalizer = min_max(case["statistics"], f"{what}_")
        for episode, rows in case[what].items():
            got = normalizer.normalize(numbers(rows))
            np.testing.assert_allclose(got, numbers(case[f"normalized_{what}"][episode]), **exact)
        whole = statistics_of(np.concatenate([numbers(rows) for rows in case[what].values()]))
        for name in ("min", "max", "mean", "std"):
            want = numbers(case["statistics"][f"{what}_{name}"])
            np.testing.assert_allclose(whole.column(name), want, rtol=1e-6, atol=1e-6)
    first = next(iter(case["actions"]))
    in_one = numbers(case["episode0_actions_via_rescale_episode_data"])
    np.testing.assert_allclose(
        min_max(case["statistics"], "actions_").normalize(numbers(case["actions"][first])), in_one, **exact
    )
    proprio = numbers(next(iter(case["proprio"].values())))
    low, high = (numbers(case["statistics"][f"proprio_{end}"]) for end in ("min", "max"))
    for key, target in {"non_negative_only": (0.0, 1.0), "scale_multiplier_2": (-2.0, 2.0)}.items():
        got = range_map(low, high, floor=0.0, target=target).forward(proprio)
        np.testing.assert_allclose(got, numbers(case[key]), **exact)
    evaluated = min_max(case["statistics"], "proprio_").normalize(numbers(case["eval_proprio"]))
    np.testing.assert_allclose(evaluated, numbers(case["eval_proprio_normalized"]), **exact)
    predicted = numbers(case["predicted_actions"])
    restored = min_max(case["statistics"], "actions_").denormalize(predicted)
    low, high = (numbers(case["statistics"][f"actions_{end}"]) for end in ("min", "max"))
    assert_restored(restored, case["unnormalized_actions"], predicted, high - low)
    doubled = range_map(low, high, floor=0.0, target=(-2.0, 2.0)).inverse(predicted)
    assert_restored(doubled, case["unnormalized_scale_2"], predicted, high - low)


def assert_restored(got: np.ndarray, want: Any, y: np.ndarray, reach: np.ndarray) -> None:
    """The reference adds 1 to a float32 prediction before it turns to float64."""
    assert (np.abs(got - numbers(want)) <= EPS * (np.abs(y) + 1) * reach).all()


def test_cosmos_policy_constant_dimensions(golden) -> None:
    if not golden.path("cosmos_policy/normalisation.json").is_file():
        pytest.skip("cosmos_policy/normalisation.json is not in the folder")
    case = golden.json("cosmos_policy/normalisation")["constant"]
    normalizer = min_max(case, "")
    got, want = normalizer.normalize(numbers(case["x"])), numbers(case["normalized"])
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-12)
    assert not got[~finite].any()  # the reference divides by zero here
    np.testing.assert_allclose(normalizer.denormalize(numbers(case["y"])), numbers(case["unnormalized"]), rtol=1e-12)


@pytest.mark.golden("cosmos_policy/postprocess")
def test_cosmos_policy_postprocessing(case) -> None:
    proprio = numbers(case["proprio"])
    sent = min_max(case["statistics"], "proprio_").normalize(proprio)
    np.testing.assert_array_equal(to_bfloat16(sent), numbers(case["proprio_sent_to_model_bf16"]))
    np.testing.assert_array_equal(to_bfloat16(proprio), numbers(case["proprio_unnormalized_bf16"]))
    predicted = numbers(case["normalized_actions"])
    low, high = (numbers(case["statistics"][f"actions_{end}"]) for end in ("min", "max"))
    restored = min_max(case["statistics"], "actions_").denormalize(predicted)
    assert_restored(restored, case["actions"], predicted, high - low)
