"""Policies by name, and what a checkpoint policy does with cameras, state, text and seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError
from cosmos_robot.policies import cosmos3_model, load_policy
from cosmos_robot.policies.conformance import some_observation
from cosmos_robot.policies.cosmos3 import Cosmos3Policy
from cosmos_robot.policies.fakes import RandomPolicy, ZeroPolicy


@pytest.fixture(scope="module")
def policy(folder: Path) -> Cosmos3Policy:
    return load_policy(folder)


def chunk(policy: Cosmos3Policy, observation, seed: int = 0) -> np.ndarray:
    return policy.act([observation], [seed])[0].values


def test_zero_is_zero_with_an_open_gripper(contract: Contract) -> None:
    values = ZeroPolicy(contract).act([some_observation(contract)], [0])[0].values
    assert not values[:, :3].any() and (values[:, 3] == -1).all()


def test_random_fills_the_range_and_tosses_for_the_gripper(contract: Contract) -> None:
    chunks = RandomPolicy(contract).act([some_observation(contract)] * 200, range(200))
    values = np.concatenate([c.values for c in chunks])
    assert values[:, :3].min() < -0.95 and values[:, :3].max() > 0.95
    assert set(values[:, 3]) == {-1, 1} and abs(values[:, 3].mean()) < 0.1


def test_a_robot_that_fakes_cannot_serve_is_refused(contract: Contract) -> None:
    def changed(**update) -> Contract:
        return contract.model_copy(update={"robot": contract.robot.model_copy(update=update)})

    with pytest.raises(ContractError, match="absolute"):
        ZeroPolicy(changed(action_reference="absolute"))
    with pytest.raises(ContractError, match="action_low"):
        RandomPolicy(changed(action_low=None))


def test_every_input_matters(policy: Cosmos3Policy) -> None:
    seen = some_observation(policy.contract, 1)
    base = chunk(policy, seen)
    other = some_observation(policy.contract, 2)
    for change in (
        {"images": other.images},
        {"state": other.state},
        {"instruction": "put the bowl on the plate"},
    ):
        assert np.abs(chunk(policy, dataclasses.replace(seen, **change)) - base).max() > 1e-6, change
    assert np.abs(chunk(policy, seen, seed=1) - base).max() > 0.1
    same_words = dataclasses.replace(seen, instruction="Pick up  the RED block.")
    assert np.array_equal(chunk(policy, same_words), base)


def test_the_blind_control_sees_black_and_nothing_else(folder: Path) -> None:
    blind = load_policy(folder, blind=True)
    observations = [some_observation(blind.contract, 1), some_observation(blind.contract, 2)]
    observations[1] = dataclasses.replace(observations[0], images=observations[1].images)
    a, b = (chunk(blind, o) for o in observations)
    assert np.array_equal(a, b) and not blind.canvas(observations[0]).any() and blind.cameras == ()
    black = {c.name: np.zeros((c.height, c.width, 3), np.uint8) for c in blind.contract.robot.cameras}
    sighted = load_policy(folder)
    np.testing.assert_allclose(chunk(sighted, dataclasses.replace(observations[0], images=black)), a, atol=1e-5)


def test_text_is_run_once_per_instruction_and_forgotten_in_the_end(policy: Cosmos3Policy, monkeypatch) -> None:
    encoded = []
    real = cosmos3_model.encode_text
    monkeypatch.setattr(cosmos3_model, "encode_text", lambda t, ids: encoded.append(ids) or real(t, ids))
    checkpoint = policy.model.checkpoint
    ids = prompt_tokens(checkpoint.tokenizer, "a", policy.contract.model.prompt.system_prompt)
    monkeypatch.setattr(cosmos3_model, "TEXT_BYTES", 2 * real(checkpoint.transformer, [ids]).nbytes)  # room for two
    fresh = Cosmos3Policy(checkpoint)
    for instruction in ("a", "b", "a", "c", "a", "b"):
        chunk(fresh, some_observation(policy.contract, instruction=instruction))
    assert len(encoded) == 4  # a, b, c, and b again: it was the oldest when c came


def test_guidance_runs_the_empty_prompt_beside(policy: Cosmos3Policy) -> None:
    def guided(guidance: float) -> np.ndarray:
        contract = policy.contract
        sampler = contract.model.sampler.model_copy(update={"guidance": guidance})
        model = contract.model.model_copy(update={"sampler": sampler})
        checkpoint = dataclasses.replace(policy.model.checkpoint, contract=contract.model_copy(update={"model": model}))
        return Cosmos3Policy(checkpoint).act([some_observation(contract)], [0])[0].values[:, :3]

    plain, twice, barely = guided(1), guided(2), guided(1 + 1e-6)
    np.testing.assert_allclose(barely, plain, atol=1e-4)
    assert np.abs(twice - plain).max() > 1e-5


def test_bad_observations_are_named(policy: Cosmos3Policy) -> None:
    good = some_observation(policy.contract)
    with pytest.raises(InputError, match="wrist"):
        chunk(policy, dataclasses.replace(good, images={"front": good.images["front"]}))
    with pytest.raises(InputError, match="fingers"):
        chunk(policy, dataclasses.replace(good, state={"position": np.zeros(3)}))
    with pytest.raises(InputError, match="no words"):
        chunk(policy, dataclasses.replace(good, instruction=" . "))


def test_names(contract: Contract, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        load_policy("randon", contract=contract)
    with pytest.raises(InputError, match="needs a contract"):
        load_policy("zero")
    with pytest.raises(InputError, match="brings its own"):
        load_policy(folder, contract=contract)
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        load_policy(folder.parent / "small-blind", blind=True)


def test_a_blind_control_that_sees_is_refused(contract: Contract, tmp_path: Path) -> None:
    save_untrained(tmp_path / "x-blind", contract, ["pick up the red block"], hidden_size=64, num_hidden_layers=1)
    with pytest.raises(ContractError, match="sees=True"):
        load_policy(tmp_path / "x", blind=True)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, "a", None])
def test_a_seed_that_is_no_whole_number_is_refused(policy: Cosmos3Policy, seed) -> None:
    with pytest.raises(InputError, match="whole numbers"):
        policy.act([some_observation(policy.contract)], [seed])


@pytest.mark.parametrize(
    ("change", "words"), [({"instruction": None}, "instruction"), ({"state": {"position": ["a", "b"]}}, "'position'")]
)
def test_an_observation_of_other_types_is_refused(policy: Cosmos3Policy, change, words: str) -> None:
    with pytest.raises(InputError, match=words):
        dataclasses.replace(some_observation(policy.contract), **change)
