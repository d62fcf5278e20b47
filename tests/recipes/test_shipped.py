"""The shipped checkpoints: small, whole, in the released layout, and acting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cosmos_robot import envs
from cosmos_robot.backbone.cosmos3.folder import shipped
from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.envs.base import execute
from cosmos_robot.eval.world_model_actions import falsified
from cosmos_robot.planning import load_planner
from cosmos_robot.policies import load_policy, load_world_model

PARTS = {"transformer", "vae", "text_tokenizer", "scheduler", "model_index.json", "contract.json"}


def test_four_are_shipped_and_each_stays_below_20_megabytes():
    folders = shipped()
    assert set(folders) == {"tiny-libero", "tiny-libero-blind", "tiny-cosmos-policy", "tiny-world-model"}
    assert {path.name for path in folders["tiny-libero"].iterdir()} == PARTS
    for folder in folders.values():
        assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 20e6


def test_the_blind_control_shares_all_but_the_transformer_and_draws_no_picture():
    sighted, blind = load_policy("tiny-libero"), load_policy("tiny-libero", blind=True)
    assert sighted.cameras == ("agentview", "wrist") and blind.cameras == ()
    assert sighted.contract.robot == blind.contract.robot
    assert sighted.contract.model.action_normalization == blind.contract.model.action_normalization


def test_diffusers_opens_the_parts():
    checkpoint = load_checkpoint("tiny-libero")
    assert type(checkpoint.transformer).__name__ == "Cosmos3OmniTransformer"
    assert type(checkpoint.vae).__name__ == "AutoencoderKLWan"


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny-libero")


def test_it_reaches_for_the_named_object_wherever_it_stands(policy):
    """In a swapped layout the first chunk heads for the object's own place."""
    with envs.make("libero_object_swap/7") as env:
        observation, _ = env.reset(seed=0, options={"init_state": 0})
        start = observation.state["eef_position"][:2] + env.sim.data.get_body_xpos(env.arm.robot_model.root_body)[:2]
        target = env.sim.data.get_body_xpos("milk_1_main")[:2]
        (chunk,) = policy.act([observation], [0])
        moved = chunk.values[:, :2].sum(0)
        towards = target - start
        assert moved @ towards / (np.linalg.norm(moved) * np.linalg.norm(towards)) > 0.8


def test_the_latent_frame_policy_heads_for_the_named_object_and_judges_where_that_leads():
    """In a layout with swapped places; policy, world model and value are one copy of the weights."""
    planner = load_planner("tiny-cosmos-policy", "quick-of-2:futures=1,values=1")
    parts = planner.executor.evaluator
    assert parts.policy.model is parts.worlds[0].model is parts.values[0].model
    with envs.make("libero_object_swap/7") as env:
        observation, _ = env.reset(seed=0, options={"init_state": 0})
        start = observation.state["eef_position"][:2] + env.sim.data.get_body_xpos(env.arm.robot_model.root_body)[:2]
        found = planner.plan(observation, 0)
        assert found.planned and all(0 <= c.score <= 1 for c in found.candidates)
        moved = np.mean([c.chunk.values[:, :2].sum(0) for c in found.candidates], axis=0)
        towards = env.sim.data.get_body_xpos("milk_1_main")[:2] - start
        heads = moved @ towards / (np.linalg.norm(moved) * np.linalg.norm(towards))
    assert heads > 0.8


def test_the_world_model_knows_where_commands_lead_the_hand(policy):
    """Nearer than standing still does, and nearer than where commands lead that were not given."""
    world = load_world_model("tiny-world-model")
    missed = dict.fromkeys(("true", "zero", "mirrored"), 0.0)
    moved = 0.0
    with envs.make("libero_object/7") as env:
        seen, _ = env.reset(seed=0, options={"init_state": 0})
        for number in range(4):
            (chunk,) = policy.act([seen], [number])
            rows = chunk.values[: world.contract.model.chunk]
            told = {"true": rows, **falsified(world.contract.robot, rows, 0, len(rows), 0)}
            chunks = [replace(chunk, values=told[kind]) for kind in missed]
            ends = world.future_states(world.imagine([seen] * 3, chunks, [number] * 3))
            before = seen.state["eef_position"]
            seen = execute(env, rows).observation
            for kind, end in zip(missed, ends, strict=True):
                missed[kind] += np.linalg.norm(end["eef_position"] - seen.state["eef_position"])
            moved += np.linalg.norm(before - seen.state["eef_position"])
    assert moved > 0.1 and missed["true"] < 0.4 * moved
    assert missed["true"] < 0.5 * min(missed["zero"], missed["mirrored"])


def test_it_finishes_an_episode(policy):
    """Three official states of one task; two of them must end in success."""
    wins = 0
    with envs.make("libero_object/7") as env:
        for init in range(3):
            observation, _ = env.reset(seed=0, options={"init_state": init})
            for decision in range(35):
                (chunk,) = policy.act([observation], [decision])
                result = execute(env, chunk.values[: policy.contract.model.execute])
                observation = result.observation
                if result.terminated or result.truncated:
                    break
            wins += result.success
    assert wins >= 2
