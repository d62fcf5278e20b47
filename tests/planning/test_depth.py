"""Searching further than one chunk over untrained checkpoints of both backbones: what the next chunk sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.backbone.predict2.load import save_checkpoint
from cosmos_robot.backbone.predict2.text import TextEmbeddings
from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae
from cosmos_robot.bench.plan import plan_contract
from cosmos_robot.contract import Contract, SamplerSpec
from cosmos_robot.contract.model import ModelSpec
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.latent_frames.fill import future_state
from cosmos_robot.latent_frames.volumes import averaged
from cosmos_robot.planning import conformance, load_planner
from cosmos_robot.policies import load_world_model
from cosmos_robot.policies.conformance import INSTRUCTIONS, some_observation
from cosmos_robot.policies.latent_frames import (
    ImaginedObservation,
    LatentFrameModel,
    LatentFrameWorldModel,
    onward_of,
)

PLAN = "best-of-2:depth=2,futures=2,values=2"


def changed(contract: Contract, **fields) -> Contract:
    return Contract(robot=contract.robot, model=ModelSpec.model_validate(contract.model.model_dump() | fields))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One checkpoint of each backbone."""
    home, plain = tmp_path_factory.mktemp("checkpoints"), plan_contract(32, steps=1)
    flow = {"backbone": "cosmos3", "domain_id": 0, "sampler": SamplerSpec(solver="unipc", steps=1).model_dump()}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    return {
        "predict2": save_checkpoint(
            home / "predict2",
            transformer=tiny_transformer(0, num_attention_heads=2, text_embed_dim=8),
            vae=tiny_vae(0, 4),
            texts=TextEmbeddings(tiny_texts(list(INSTRUCTIONS), 8), 6),
            contract=plain,
            dtype=torch.float32,
        ),
        "cosmos3": save_untrained(home / "cosmos3", changed(plain, **flow), INSTRUCTIONS, **sizes),
    }


@pytest.mark.parametrize("backbone", ["predict2", "cosmos3"])
def test_the_kit_two_chunks_deep(folders, backbone: str) -> None:
    assert "best_is_chosen" in conformance.run(lambda: load_planner(folders[backbone], PLAN))


@pytest.mark.parametrize("backbone", ["predict2", "cosmos3"])
def test_the_next_chunk_sees_the_future_and_nothing_older(folders, backbone: str, monkeypatch) -> None:
    """Predicted pictures as latents, predicted state; the last future is of the second chunk."""
    begun, begin = [], LatentFrameWorldModel._imagine

    def imagine(self, observations, actions, seeds):
        begun.append((observations, begin(self, observations, actions, seeds)))
        return begun[-1][1]

    monkeypatch.setattr(LatentFrameWorldModel, "_imagine", imagine)
    planner = load_planner(folders[backbone], PLAN)
    seen = some_observation(planner.contract)
    found = planner.plan(seen, 1)
    assert found.planned and len(begun) == 2
    (first, futures), (second, later) = begun
    assert all(o is seen for o in first) and all(isinstance(o, ImaginedObservation) for o in second)
    layout = planner.executor.evaluator.policy.model.layout
    for moment, before, after in zip(second, futures, later, strict=True):
        for camera in layout.cameras:
            assert torch.equal(
                after.latents[:, layout.index(camera)], before.latents[:, layout.index("future " + camera)]
            )
        expected = future_state(before.latents[None], layout, 9)
        entered = averaged(after.latents[None, :, layout.index("state")], (9,))
        torch.testing.assert_close(entered, expected, atol=1e-5, rtol=0)
        assert moment.time == before.end_time and not moment.images
        np.testing.assert_array_equal(after.frames[0], before.frames[1])
    assert found.candidates[0].futures[0].start_time == pytest.approx(seen.time + 16 / 20)


def test_a_judge_with_other_weights_is_looked_at_through_pictures(folders) -> None:
    """Its latents are its own; what it imagined is decoded and encoded again by the policy that goes on."""
    planner = load_planner(folders["predict2"], PLAN, folders["cosmos3"])
    parts = planner.executor.evaluator
    assert parts.policy.model is not parts.worlds[0].model
    assert planner.plan(some_observation(planner.contract), 3).planned


def test_what_a_future_does_not_say_is_refused(folders) -> None:
    world = load_world_model(folders["predict2"])
    frames = tuple(f for f in world.contract.model.frames if f != "future state")
    world.model.layout = type(world.model.layout)(frames)
    with pytest.raises(ContractError, match="does not predict 'state'"):
        onward_of(world.model, world.model)
    with pytest.raises(InputError, match="depth above 1 needs checkpoints with latent frames"):
        load_planner("random", PLAN, contract=plan_contract(32))


def test_steps_of_members(folders) -> None:
    """Members with as many steps are one model, so they share their calls; the policy keeps the contract's."""
    plan = "best-of-2:futures=3,values=3,world_steps=5,value_steps=1,member_steps=spread"
    parts = load_planner(folders["predict2"], plan).executor.evaluator
    assert [w.steps for w in parts.worlds] == [1, 3, 5] and parts.policy.steps is None
    assert [v.steps for v in parts.values] == [1, 1, 1] and len({id(v) for v in parts.values}) == 1
    assert len({id(w.model) for w in (*parts.worlds, *parts.values, parts.policy)}) == 1


def test_steps_change_what_is_computed(folders, monkeypatch) -> None:
    asked, sample = [], LatentFrameModel.sample

    def watched(self, mode, latents, instructions, seeds, steps=None):
        asked.append((mode, len(seeds), steps))
        return sample(self, mode, latents, instructions, seeds, steps)

    planner = load_planner(
        folders["cosmos3"], "best-of-2:futures=2,values=2,policy_steps=2,world_steps=3,value_steps=1"
    )
    monkeypatch.setattr(LatentFrameModel, "sample", watched)
    found = planner.plan(some_observation(planner.contract), 1)
    assert asked == [("policy", 2, 2), ("world_model", 4, 3), ("value", 8, 1)]
    assert "world_steps=3" in found.as_chunk().info["plan"]["settings"]


def test_steps_that_a_model_does_not_take() -> None:
    with pytest.raises(InputError, match="is not sampled in steps"):
        load_planner("random", "best-of-2:value_steps=1", contract=plan_contract(32))


@pytest.mark.parametrize("backbone", ["predict2", "cosmos3"])
def test_several_robots_decide_together(folders, backbone: str, monkeypatch) -> None:
    """The same candidates and scores as alone, in one call of each model."""
    planner = load_planner(folders[backbone], "best-of-2:futures=1,values=2")
    moments = [some_observation(planner.contract, 5), some_observation(planner.contract, 6)]
    alone = [planner.plan(o, s) for o, s in zip(moments, (8, 9), strict=True)]
    calls, sample = [], LatentFrameModel.sample
    monkeypatch.setattr(LatentFrameModel, "sample", lambda self, mode, *a: calls.append(mode) or sample(self, mode, *a))
    together = planner.plan_all(moments, [8, 9])
    assert calls == ["policy", "world_model", "value"]
    for one, other in zip(alone, together, strict=True):
        assert [c.seed for c in one.candidates] == [c.seed for c in other.candidates]
        np.testing.assert_allclose([c.score for c in one.candidates], [c.score for c in other.candidates], atol=1e-4)
        np.testing.assert_allclose(one.chunk.values, other.chunk.values, atol=1e-3)
