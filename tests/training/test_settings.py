"""Settings of trainings: words, switches, numbers and their ranges."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cosmos_robot.errors import InputError
from cosmos_robot.training.config import Augmentation, PolicyTraining, Stage, TokenizerTraining
from cosmos_robot.training.frame_config import FrameAugmentation, FrameTraining
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.model_config import ModelTraining, PostTraining, Sharding, Stream
from cosmos_robot.training.session import Budget, RunFolder


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"heads": "reinit"}, "heads is 'reinit'; expected 'keep' or 'reinitialise'; did you mean 'reinitialise'"),
        ({"trainable": "everything"}, "trainable is 'everything'; expected 'generator' or 'all'"),
        ({"schedule": "constant"}, "schedule is 'constant'; expected 'cosine' or 'linear'"),
        ({"noise": "logit-normal"}, "did you mean 'logitnormal'"),
        ({"shift": 0}, "shift is 0; expected above 0"),
        ({"warmup": -1}, "warmup is -1; expected at least 0"),
        ({"warmup": 2.5}, "warmup is 2.5; expected a whole number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected at least 0"),
        ({"video_weight": -1.0}, "video_weight is -1.0; expected at least 0"),
        ({"by_active": "no"}, "by_active is 'no'; expected True or False"),
        ({"by_active": 1}, "expected True or False"),
        ({"lr": float("nan")}, "lr is nan; expected a finite number"),
        ({"lr": "3e-4"}, "lr is '3e-4'; expected a finite number"),
        ({"clip": 0}, "clip is 0; expected above 0"),
        ({"ema_rate": 0.0}, "ema_rate is 0.0; expected above 0"),
        ({"final_lr": 1.5}, "final_lr is 1.5; expected from 0 to 1"),
        ({"betas": (0.9, 1.0)}, "expected each below 1"),
        ({"betas": (0.9,)}, "expected a tuple of 2"),
        ({"caption_dropout": 1.0}, "expected each below 1"),
    ],
)
def test_wrong_values_of_the_recipe_are_named(wrong, said):
    with pytest.raises(InputError) as error:
        PostTraining(**wrong)
    assert "post-training: " in str(error.value) and said in str(error.value)


def test_what_is_declared_passes():
    recipe = PostTraining(lr=1, shift=5, ema_rate=None, betas=(0.9, 0.95), heads="keep", noise="uniform", warmup=0)
    assert recipe.shift == 5 and PostTraining(shift=None).shift is None


def test_other_trainings_check_theirs(contract):
    stream = Stream(name="dots", contract=contract)
    whole = {"out": Path("x"), "streams": (stream,), "start": "tiny-libero", "cache": Path("x"), "steps": 1}
    with pytest.raises(InputError, match="compute is 'float16'; expected 'bfloat16' or 'float32'"):
        ModelTraining(**whole, compute="float16")
    with pytest.raises(InputError, match=r"loggers is .*expected 'tensorboard' or 'wandb'; did you mean 'tensorboard'"):
        ModelTraining(**whole, loggers=("tensorbord",))
    with pytest.raises(InputError, match="replicas is 0; expected above 0"):
        Sharding(replicas=0)
    with pytest.raises(InputError, match="stage 'a': video_weight is -1"):
        Stage(name="a", steps=1, video_weight=-1.0)
    with pytest.raises(InputError, match="state_dropout is 2"):
        Augmentation(state_dropout=2.0)
    with pytest.raises(InputError, match=r"variants is 1.5; expected a whole number"):
        FrameAugmentation(variants=1.5)
    shared = {"out": Path("x"), "cache": Path("x"), "contract": contract}
    with pytest.raises(InputError, match=r"normalization is 'max'; .*did you mean 'minmax'"):
        stages = (Stage(name="a", steps=1),)
        PolicyTraining(**shared, datasets=(Path("x"),), tokenizer=Path("x"), stages=stages, normalization="max")
    with pytest.raises(InputError, match=r"tokenizer training: noise is -0.1"):
        TokenizerTraining(**shared, datasets=(Path("x"),), steps=1, noise=-0.1)
    with pytest.raises(InputError, match=r"frame training: demo_share is 2.0; expected from 0 to 1"):
        FrameTraining(**shared, demos=(Path("x"),), start=Path("x"), steps=1, demo_share=2.0)


class Nothing:
    """Learns nothing."""

    def train_step(self, cycle, step, rate):
        return {}

    def validate(self):
        return {}

    def state(self):
        return {}


@pytest.mark.parametrize(("warmup", "told"), [(5, True), (4, False)])
def test_a_warm_up_that_never_ends_is_told(tmp_path, caplog, warmup, told):
    cycle = Cycle("training", Budget(None, 5), 0.1, warmup, 0.0)
    with caplog.at_level(logging.WARNING):
        run(Nothing(), RunFolder(tmp_path, {}, ()), [cycle], Pace(1e9, 1e9, progress=False))
    assert ("warmup is 5 steps and the whole cycle 5" in caplog.text) == told
