import json

import numpy as np
import pytest

pytest.importorskip("gym_pusht")

from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.envs.pusht import PushTEnv
from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import student_mean
from cosmos_robot.recipes import trends
from cosmos_robot.training.cache import EpisodeList


def wandering(seed: int, rows: int = 24) -> Episode:
    """The disc walks about: what a window needs, without the demonstrator's search."""
    random, pictures, states, commands = np.random.default_rng(seed), [], [], []
    with PushTEnv() as env:
        seen, _ = env.reset(seed=seed)
        for _ in range(rows):
            pictures.append(seen.images["top"])
            states.append(seen.state["agent_position"])
            commands.append(np.clip(states[-1] + random.normal(0, 40, 2), 0, 512))
            seen, *_ = env.step(commands[-1])
    actions, valid = chunk_rows(np.array(commands), np.arange(rows), trends.CHUNK)
    info = EpisodeInfo("pusht", 0, seed, "expert", True)
    return Episode(env.instruction, {"top": np.stack(pictures)}, np.array(states, np.float32), actions, valid, info)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Four episodes in memory in place of the recorded ones, tiny numbers."""
    source = EpisodeList([wandering(seed) for seed in range(4)])
    monkeypatch.setattr(trends, "StoredEpisodes", lambda path, contract: source)
    for name, value in {
        "STEPS": 4,
        "BATCH": 4,
        "WINDOWS": 2,
        "SEEDS": (0,),
        "HELD_OUT_EVERY": 3,
        "STEP_BUDGET": 12,
        "THREADS": 1,
    }.items():
        monkeypatch.setattr(trends, name, value)
    monkeypatch.setattr(trends, "_episodes", lambda scale: 2)
    monkeypatch.setattr(trends, "TOKENIZER_STEPS", 2)
    (tmp_path / "demos").mkdir()
    return tmp_path


def test_intervals():
    mean, low, high = student_mean([1.0, 2.0, 3.0])
    assert mean == 2 and (high - mean) == pytest.approx(4.303 / np.sqrt(3), rel=1e-3) and low == pytest.approx(4 - high)
    assert student_mean([1.0]) == (1, 1, 1) and student_mean([]) is None


def test_measures_of_the_truth_are_perfect(small):
    windows = trends.held_out_windows(small, trends.contract(trends.MODES))
    assert len(windows) == 2 and windows[0].video.frames.shape == (5, 96, 96, 3)
    truth = [w.video.frames for w in windows]
    assert (
        trends.psnr(truth, truth) > 100
        and trends.error([w.wanted for w in windows], [w.sent.values for w in windows]) == 0
    )
    control = trends.controls(trends.adapted_start(small, small, 1.0), small, 2)
    assert (
        control["fd_latents"] > 0
        and 0 <= control["coverage"] < 0.5
        and control["fd_psnr"] < 60
        and control["id_error"] > 5
    )


def test_the_joint_trend_is_resumed_and_written(small, monkeypatch):
    trends.joint(small)
    report = json.loads((small / "trends-joint.json").read_text())
    assert set(report["table"]) == {"joint", *trends.MODES, "control", "autoencoder"}
    assert set(report["runs"]["joint"][0]) == set(trends.MEASURES)
    assert set(report["runs"]["policy"][0]) == {"coverage", "policy_error"} and len(report["runs"]["policy"]) == 1
    monkeypatch.setattr(trends, "train_model", None)  # everything is there
    trends.joint(small)
    assert json.loads((small / "trends-joint.json").read_text()) == report
    assert (small / "trends-joint.md").read_text().count("|\n") == 8
    with pytest.raises(InputError, match=r"other settings \(scale 1.0\)"):
        trends.joint(small, scale=0.5)


def test_the_adaptation_trend(small, monkeypatch):
    monkeypatch.setattr(trends, "STEPS", 8)
    trained = []
    train_model = trends.train_model
    monkeypatch.setattr(
        trends, "train_model", lambda config, sources: trained.append(config) or train_model(config, sources)
    )
    monkeypatch.setattr(trends, "POINTS", (0.5,))
    trends.adaptation(small)
    report = json.loads((small / "trends-adaptation.json").read_text())
    assert set(report["table"]) == {"tiny-libero", "fresh"} and report["steps"] == [4]
    assert [(config.fresh, config.steps) for config in trained] == [(False, 4), (True, 4)]
    errors = {arm: rows["error@4"][0] for arm, rows in report["table"].items()}
    assert errors["tiny-libero"] != errors["fresh"]


def test_there_is_nothing_to_stop_after(tmp_path):
    with pytest.raises(InputError, match="leave until"):
        trends.joint(tmp_path, until="demos")
