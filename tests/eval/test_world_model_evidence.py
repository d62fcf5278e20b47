"""What is said of a world model, and what is not: by records made so that the answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cosmos_robot.errors import CheckpointError
from cosmos_robot.eval import world_model_verdicts as verdicts
from cosmos_robot.eval.world_model import WorldModelConfig, cut_at, episodes_asked, open_source, summary
from cosmos_robot.eval.world_model_actions import GRIPPER, KINDS
from cosmos_robot.eval.world_model_case import Models
from cosmos_robot.eval.world_model_faults import can_tell, faults, shortfalls
from cosmos_robot.eval.world_model_measure import MeasureSettings
from cosmos_robot.eval.world_model_metrics import LEAST_MOVED, frame_scores
from cosmos_robot.eval.world_model_report import print_result, write_report
from cosmos_robot.eval.world_model_session import SessionSettings, episode_records
from cosmos_robot.eval.world_model_windows import Run, Seen, spread, windows_of

ALL = (*KINDS, GRIPPER)


def record(run: int = 0, start: int = 0, **changes) -> dict:
    """A window that a good model predicts well."""
    frame = {"step": 4, "camera": "table", "moved_pixels": 100}
    scores = {"model": (30.0, 10.0), "last": (20.0, 100.0)}
    frame |= {who: {"psnr": db, "ssim": 0.9, "moving_psnr": db, "moving_error": e} for who, (db, e) in scores.items()}
    plain = {
        "key": f"{run} @ {start}",
        "run": f"episode {run}",
        "start": start,
        "steps": 40,
        "instruction": "touch",
        "success": True,
        "frames": [frame],
        "cameras": {"nearest": {"table": "table", "hand": "hand"}, "first": 60.0},
        "error": {"true": 10.0, "last": 100.0, **dict.fromkeys(ALL, 120.0)},
        "effect": {"true": 0.0, **dict.fromkeys(ALL, 90.0)},
        "motion_ratio": 1.0,
        "scales": {"0.25": 60.0, "4": 80.0},
        "exchanged": {"as they are": 0.1, "table as hand, hand as table": 1.5},
    }
    return plain | changes


def many(episodes: int = 5, windows: int = 4, **changes) -> list[dict]:
    return [record(run, 8 * w, **changes) for run in range(episodes) for w in range(windows)]


def said(records: list[dict]) -> dict[str, bool | None]:
    return {fault.name: fault.found for fault in faults(records)}


def why(records: list[dict], name: str) -> str:
    return next(fault.evidence for fault in faults(records) if fault.name == name)


def test_windows_of_few_episodes_say_nothing() -> None:
    assert verdicts.following(many()).follows is True
    two = verdicts.following(many(2, 30))
    assert two.follows is None and "60 windows of 2 episodes" in two.sentence and "10 of 3 are needed" in two.sentence
    assert verdicts.following(many(3, 3)).follows is None, "9 windows"
    assert set(said(many()).values()) == {False}
    assert set(said(many(2, 30)).values()) == {None}


def test_intervals_are_by_episode() -> None:
    """10 of 10 windows of 3 episodes are not 1 to 1, nor what Wilson would say of 10 draws."""
    share = verdicts.following(many(3, 4)[:10]).all_kinds
    assert (share.successes, share.windows, share.episodes, share.high) == (10, 10, 3, 1.0) and share.low < 0.5
    lost = [r | {"error": r["error"] | {"true": 200.0}} if r["run"] == "episode 0" else r for r in many(5, 8)]
    spread_out = [r | {"error": r["error"] | {"true": 200.0}} if r["start"] == 0 else r for r in many(8, 5)]
    one, all_over = verdicts.following(lost).all_kinds, verdicts.following(spread_out).all_kinds
    assert one.rate == all_over.rate == 0.8 and one.low < all_over.low, "one bad episode tells less"


def test_absence_needs_evidence() -> None:
    """Four windows, of one record each way, or half of them: nothing is found nor ruled out."""
    for name, changes in {
        "repeats the last frame": {"motion_ratio": 0.0},
        "a future frame leaks in": {"error": {"true": 1.0, "last": 100.0, **dict.fromkeys(ALL, 1.0)}},
        "ignores the commands": {"effect": {"true": 0.0, **dict.fromkeys(ALL, 0.0)}},
        "commands arrive at another scale": {"scales": {"0.25": 60.0, "4": 1.0}},
        "cameras are exchanged": {"exchanged": {"as they are": 0.9, "table as hand, hand as table": 0.1}},
        "predicted cameras are exchanged": {"cameras": {"nearest": {"table": "hand", "hand": "table"}}},
    }.items():
        bad, good = many(**changes), many()
        assert said(bad)[name] is True, name
        assert said(good)[name] is False, name
        assert said(bad[:1])[name] is None and said(good[:1])[name] is None, f"{name}: one window"
        half = [b if b["run"] in ("episode 0", "episode 1") else g for b, g in zip(bad, good, strict=True)]
        assert said(half)[name] is None, f"{name}: two of five episodes"
        assert "raise --episodes" in why(half, name)


def test_a_model_worse_than_the_last_frame_hides_its_faults() -> None:
    worse = many(
        error={"true": 150.0, "last": 100.0, **dict.fromkeys(ALL, 150.0)},
        scales={"0.25": 140.0, "4": 180.0},
        exchanged={"as they are": 1.5, "table as hand, hand as table": 1.6},
    )
    for name in ("commands arrive at another scale", "cameras are exchanged"):
        assert said(worse)[name] is None and "a fault would not show" in why(worse, name), name


def test_defaults_suffice_for_a_verdict_and_for_every_fault() -> None:
    for given in ({"env": "libero_object"}, {"env": "libero_object/3"}, {"data": Path("somewhere")}):
        config = WorldModelConfig(ckpt="x", **given)
        episodes = episodes_asked(config) * (10 if config.env == "libero_object" else 1)
        assert shortfalls(episodes, config.windows, config.probed) == [], given
        assert can_tell(config.probed * episodes, episodes)
    assert episodes_asked(WorldModelConfig(ckpt="x", env="libero_object")) == 2
    assert episodes_asked(WorldModelConfig(ckpt="x", env="libero_object", tasks=(1, 2, 3))) == 4
    assert len(open_source(WorldModelConfig(ckpt="x", env="libero_object/3")).names()) == 10


def test_numbers_that_cannot_suffice_are_told_at_the_start() -> None:
    (verdict,) = shortfalls(2, 4, 2)
    assert "at most 8 windows of 2 episodes" in verdict and "--episodes" in verdict
    assert "raise --episodes or --windows" in shortfalls(4, 2, 2)[0]
    (fault,) = shortfalls(3, 4, 2)
    assert "any fault" in fault and "raise --episodes" in fault
    (probe,) = shortfalls(6, 4, 1)
    assert "6 probed windows" in probe and "raise --episodes or --probed" in probe
    assert shortfalls(6, 4, 0) == []


def test_windows_do_not_lie_over_each_other(dots) -> None:
    contract = dots.dot_contract()

    def starts(steps: int, most: int, every: int = 4) -> list[int]:
        told = {step: {} for step in range(0, steps + 1, every)}
        run = Run("a", "touch", np.zeros((steps, 3)), Seen(told, told))
        return [window.start for window in windows_of(run, contract, 1, most)]

    assert starts(40, 5) == [0, 8, 16, 24, 32]
    assert starts(40, 9) == [0, 8, 16, 24, 32], "no more fit"
    assert starts(20, 4) == [0, 12], "of 20 steps two windows of 8"
    assert starts(100, 4)[0] == 0 and starts(100, 4)[-1] == 92 and min(np.diff(starts(100, 4))) >= 24
    assert starts(40, 1) == [16], "the middle"
    assert starts(7, 3) == []
    for steps in range(8, 60):
        for most in range(1, 8):
            found = starts(steps, most, every=2)
            assert len(found) == min(most, steps // 8) and all(np.diff(found) >= 8), (steps, most)


def test_probed_windows_are_spread(dots) -> None:
    assert spread(4, 2) == [1, 3] and spread(4, 1) == [2] and spread(3, 5) == [0, 1, 2] and spread(4, 0) == []
    settings = SessionSettings(windows=4, probed=2)
    records = episode_records(Models(dots.Oracle()), dots.DotSource(1), settings, 0)
    assert ["scales" in r for r in records] == [False, True, False, True]


def test_few_moved_pixels_have_no_score() -> None:
    truth = np.zeros((20, 20, 3), np.uint8)
    mask = np.zeros((20, 20), bool)
    mask.flat[: LEAST_MOVED - 1] = True
    assert np.isnan(frame_scores(truth, truth, mask)["moving_psnr"])
    mask.flat[:LEAST_MOVED] = True
    assert frame_scores(truth, truth, mask)["moving_psnr"] == 60
    assert np.isnan(frame_scores(truth, truth, mask & False)["moving_error"])


def test_better_than_weighs_pixels() -> None:
    """A few pixels that are drawn perfectly do not outweigh many that are drawn badly."""

    def frame(pixels: int, own: float, last: float) -> dict:
        scores = {
            who: {"psnr": 1.0, "ssim": 1.0, "moving_psnr": db, "moving_error": e}
            for who, (db, e) in {"model": (60 - own, own), "last": (60 - last, last)}.items()
        }
        return {"step": 4, "camera": "table", "moved_pixels": pixels, **scores}

    records = many(frames=[frame(16, 0.0, 40.0), frame(4000, 30.0, 20.0)])
    assert verdicts.better_than(records, "last").successes == 0
    nothing = many(
        frames=[frame(3, 0.0, 0.0) | {"model": {"psnr": 1.0, "ssim": 1.0, "moving_psnr": None, "moving_error": None}}]
    )
    assert verdicts.better_than(nothing + many(3), "last").windows == 12
    assert verdicts.overall(nothing + many(3))["model"]["moving_windows"] == 12
    assert verdicts.scores(nothing + many(3))[0]["moving_windows"] == 12


def with_state(broken: tuple[str, ...] = (), **changes) -> dict:
    error = {"true": 0.1, "last": 1.0, **dict.fromkeys(ALL, 1.0)} | dict.fromkeys(broken)
    field = {"place": {"model": None if "true" in broken else 0.1, "last": 1.0, "unit": "m"}}
    return {"state": {"error": error, "fields": field, "not_finite": list(broken)}, **changes}


def test_predictions_that_are_no_number_lose() -> None:
    lost = verdicts.following(many(**with_state(("true", "zero"))), "state")
    assert lost.all_kinds.successes == 0 and lost.all_kinds.windows == 20 and lost.follows is False
    assert lost.not_finite == 20 and lost.left_out == {}
    won = verdicts.following(many(**with_state(("zero",))), "state")
    assert won.wins["zero"].rate == 1 and won.follows is True and won.not_finite == 20
    missing = verdicts.following(many(state=None), "state")
    assert missing.left_out == {"no state is predicted": 20}


def test_they_are_counted_and_shown(tmp_path) -> None:
    values = {"value": None, "value_not_finite": True, "value_steps_left": 8}
    records = many(4, **with_state(("true",)), **values, path={"not_finite": True})
    good = {"value": 0.9, "value_not_finite": False, "value_steps_left": 8}
    path = {who: {"rre_degrees": 1.0, "rte": 0.1, "ate": 0.1, "poses": 2} for who in ("model", "last")}
    records += [record(9, w, **with_state(), **good, path=path) for w in range(4)]
    content = summary({"checkpoint": "dots", "source": "dot"}, records, None, {})
    assert content["not_finite"] == {"state": 16, "path": 16, "value": 16}
    assert content["value_calibration"]["left_out"] == 16 and content["value_calibration"]["count"] == 4
    assert (content["path"]["windows"], content["path"]["not_finite"]) == (4, 16)
    assert content["states"]["not_finite"] == 16
    page = write_report(tmp_path / "report.html", content, None).read_text()
    console = Console(record=True, width=400, file=open(tmp_path / "shown", "w"))  # noqa: SIM115
    print_result(content, console)
    for shown in (page, console.export_text()):
        assert "state: the prediction is no number on 16 windows" in shown
        assert "something moved, and has a PSNR, on 20 of them" in shown and "of 5 episodes" in shown
    assert summary({}, many(4, **values), None, {})["value_calibration"]["cut_off_windows"] == 0


def test_a_model_whose_numbers_break_is_measured_all_the_same(dots) -> None:
    class Broken(dots.Oracle):
        def future_states(self, predictions):
            return [{name: np.full_like(value, np.nan) for name, value in p.latents.items()} for p in predictions]

    class NoValue(dots.Nearness):
        def _score(self, observations, actions, futures, seeds):
            return np.full(len(actions), np.nan)

    models, source = Models(Broken(), value=NoValue()), dots.DotSource(5)
    records = [r for n in range(5) for r in episode_records(models, source, SessionSettings(probed=0), n)]
    verdict = verdicts.following(records, "state")
    assert verdict.follows is False and verdict.all_kinds.windows == verdict.not_finite > 10
    assert verdicts.not_finite(records) == {"state": len(records), "value": len(records)}


def test_a_pose_that_is_no_number_is_counted(dots) -> None:
    from cosmos_robot.contract import FieldSpec
    from cosmos_robot.eval.world_model_probes import _path

    fields = (
        FieldSpec(name="place", width=3, unit="m", kind="position"),
        FieldSpec(name="turn", width=4, unit="1", kind="rotation", rotation="quat_xyzw"),
    )
    contract = dots.dot_contract()
    robot = contract.robot.model_copy(update={"state": fields})
    contract = contract.model_copy(update={"robot": robot})
    pose = {"place": np.zeros(3), "turn": np.array([0.0, 0, 0, 1])}
    assert _path(contract, [pose, pose], [pose])["model"]["ate"] == 0
    assert _path(contract, [pose, pose], [pose | {"turn": np.full(4, np.nan)}]) == {"not_finite": True}


def test_errors_name_the_window(dots) -> None:
    class Breaking(dots.Oracle):
        def _imagine(self, observations, actions, seeds):
            raise CheckpointError("the generator made latents that are not finite")

    with pytest.raises(CheckpointError, match=r"dot 1 @ 0: the generator made latents"):
        episode_records(Models(Breaking()), dots.DotSource(2), SessionSettings(), 1)


def test_commands_that_lead_to_the_same_do_not_count(dots) -> None:
    """In a corner the true physics ties, and where that is known the window is left out."""
    same = {"nearest": {}, "left_out": {}, "same": {"pictures": ["zero"], "state": ["zero"]}, "repeats": 60.0}
    tied = record()["error"] | {"true": 0.0, "zero": 0.0}
    unknown = verdicts.following(many(error=tied))
    assert unknown.follows is False, "without outcomes a tie counts against"
    known = verdicts.following([*many(error=tied, outcomes=same), *many()])
    assert known.follows is True and known.all_kinds.rate == 1
    assert known.left_out == {"zero: led to the same outcome as the true commands": 20}
    assert verdicts.gripper(many(outcomes=same)).all_kinds.windows == 20, "its own outcome is another"

    class Stuck(dots.DotSource):
        """The hand starts in a corner and is told to stay there or to leave it."""

        def run(self, number, contract):
            from cosmos_robot.eval.world_model_sources import drive_episode

            env = dots.DotEnv(0, step_budget=self.steps + 1)
            env.reset(seed=number)
            env._hand = np.array([1.0, 1.0])
            rng = np.random.default_rng(number)
            stays = rng.uniform([0.5, 0.5, -1], [1, 1, -1], (16, 3))
            leaves = rng.uniform([-1, -1, -1], [0.2, 0.2, 1], (self.steps - 16, 3))
            rows = iter(np.concatenate([stays, leaves]))
            driver = type("Rows", (), {"act": lambda self: next(rows)})()
            return drive_episode(env, driver, contract, self.names()[number], self.steps)

    settings = SessionSettings(MeasureSettings(outcomes=True), windows=5, probed=0)
    records = episode_records(Models(dots.Oracle()), Stuck(1), settings, 0)
    verdict, pairs = verdicts.following(records), verdicts.pairing(records)
    assert verdict.all_kinds.rate == 1 and verdict.left_out
    rates = pairs["nearest_to_own_outcome"].values()
    assert all(rate["successes"] == rate["windows"] for rate in rates) and pairs["left_out"]


def test_values_are_held_against_discounted_returns() -> None:
    """A perfect value 60 steps before success is 0.55, and is not called wrong."""
    records = [
        record(run, 8 * w, success=run < 4, value=0.99**left * (run < 4), value_not_finite=False, value_steps_left=left)
        for run in range(6)
        for w, left in enumerate((90, 60, 30, 0))
    ]
    found = verdicts.values(records)
    assert found["ece"] == pytest.approx(0) and found["mae"] == pytest.approx(0) and found["auroc"] == 1
    assert found["episodes"] == 6 and found["ece_low"] is not None and found["constant_mae"] > 0.3
    assert verdicts.values(records, gamma=1.0)["ece"] > 0.2
    cut = verdicts.values(records, cut_at=40)
    assert (cut["cut_off_windows"], cut["cut_off_episodes"], cut["count"]) == (8, 2, 16), "what --steps cut off"
    assert verdicts.values(records[16:], cut_at=40)["cut_off_windows"] == 8, "said even where nothing is left"


def test_which_episodes_the_steps_cut_off() -> None:
    assert cut_at(WorldModelConfig(ckpt="x", data=Path("a"))) is None
    assert cut_at(WorldModelConfig(ckpt="x", env="libero_object", steps=200)) == 200
    assert cut_at(WorldModelConfig(ckpt="x", env="libero_object/3", steps=280)) is None, "its own budget"
    assert cut_at(WorldModelConfig(ckpt="x", env="fake/0", steps=12)) == 12
