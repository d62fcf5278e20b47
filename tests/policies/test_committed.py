"""Chunks that go on from rows already committed: clean rows for the model, which denoises only what is left."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.layout import given_rows, policy_plan
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.policies import conformance, load_policy
from cosmos_robot.policies.base import Policy
from cosmos_robot.policies.fakes import ZeroPolicy


def test_given_rows_are_the_first_commands_of_a_plan():
    plan = policy_plan(2, 2, 6, 20.0, state_row=True, history=1)
    assert given_rows(plan, 6, 0) is plan
    assert given_rows(plan, 6, 2).clean_rows == (True,) * 4 + (False,) * 4
    assert given_rows(plan, 6, 2).action_start == plan.action_start
    for count in (-1, 6, 7):
        with pytest.raises(InputError, match="given commands"):
            given_rows(plan, 6, count)


@pytest.fixture(scope="module")
def checkpoint_policy(folder):
    return load_policy(folder)


def test_the_rows_left_depend_on_the_rows_given(checkpoint_policy):
    seen = conformance.some_observation(checkpoint_policy.contract)
    low, high = np.full((2, 4), -1.0), np.full((2, 4), 1.0)
    one, other, free = (checkpoint_policy.act([seen], [1], given)[0].values for given in ([low], [high], None))
    np.testing.assert_array_equal(one[:2], low)
    np.testing.assert_array_equal(other[:2], high)
    assert not np.array_equal(one[2:], other[2:]) and not np.array_equal(one[2:], free[2:])


def test_the_model_is_shown_the_rows_through_the_codec(checkpoint_policy):
    model = checkpoint_policy.model
    seen = conformance.some_observation(checkpoint_policy.contract)
    rows = np.array([[0.25, -0.5, 0.75, 1.0]])
    (found,) = model.run("policy", [seen], model.first_latents([seen]), [1], committed=[rows])
    assert found.action.shape == (checkpoint_policy.contract.model.chunk, 4)
    np.testing.assert_allclose(model.codec.decode_actions(found.action.numpy())[:1], rows, atol=1e-6)


def test_no_rows_given_is_a_free_chunk(checkpoint_policy):
    seen = conformance.some_observation(checkpoint_policy.contract)
    free, none = checkpoint_policy.act([seen], [1])[0], checkpoint_policy.act([seen], [1], [np.zeros((0, 4))])[0]
    np.testing.assert_array_equal(free.values, none.values)


@pytest.mark.parametrize(
    "given, complaint",
    [
        ([], "committed rows for 0"),
        ([np.zeros((1, 3))], r"\(k, 4\)"),
        ([np.zeros(4)], r"\(k, 4\)"),
        ([np.zeros((6, 4))], "below the chunk of 6"),
        ([np.array([[0, 0, 0, 0], [0, np.inf, 0, 0]])], "row 1 is not finite"),
    ],
)
def test_rows_that_do_not_fit_are_refused(contract, given, complaint):
    with pytest.raises(InputError, match=complaint):
        ZeroPolicy(contract).act([conformance.some_observation(contract)], [1], given)


class Free(Policy):
    """Cannot be given rows."""

    def __init__(self, contract):
        self.contract = contract

    def _act(self, observations, seeds):
        return ZeroPolicy(self.contract)._act(observations, seeds)


def test_a_policy_that_cannot_be_given_rows_says_so(contract):
    conformance.check_goes_on_from_committed_rows(Free(contract))
    with pytest.raises(ContractError, match="any strategy but rtc"):
        Free(contract).act([conformance.some_observation(contract)], [1], [np.zeros((1, 4))])


class Forgets(ZeroPolicy):
    def _continue(self, observations, seeds, committed):
        return self._act(observations, seeds)


class Unchecked(ZeroPolicy):
    def act(self, observations, seeds, committed=None):
        return super().act(observations, seeds)


@pytest.mark.parametrize("broken", [Forgets, Unchecked])
def test_the_kit_notices_forgotten_rows(contract, broken):
    policy = broken(contract)
    real = ZeroPolicy(contract)
    policy._act = lambda observations, seeds: [  # not zeros at once, so that forgetting shows
        type(c)(c.values + 0.1 * (1 + s), c.rate_hz, c.start_time, c.source)
        for c, s in zip(real._act(observations, seeds), seeds, strict=True)
    ]
    with pytest.raises(AssertionError):
        conformance.check_goes_on_from_committed_rows(policy)
