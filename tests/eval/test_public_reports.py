"""Failures that people have reported, on the evaluator. Each name carries the report's id."""

from __future__ import annotations

import pytest

from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.eval.libero import EvalConfig, step_budget
from cosmos_robot.eval.runner import Listener, Runner, RunSettings
from cosmos_robot.policies.fakes import ZeroPolicy


class Starts(Listener):
    """What the policy first sees of each episode."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[float, ...]]] = []

    def on_decision(self, job, step, observation, chunk, seed) -> None:
        if step == 0:
            self.seen.append((job.init, tuple(observation.state["position"])))


@pytest.mark.parametrize("workers", [1, 3])
def test_pc_67_episode_k_begins_in_state_k_once(fake, workers: int) -> None:
    protocol, starts = fake.fake_protocol(tasks=(0,), episodes=5, max_steps=8, settle_steps=0), Starts()
    Runner(ZeroPolicy(fake.CONTRACT), protocol, RunSettings(workers), [starts]).run(protocol.jobs())
    file = {index: tuple(FakeEnv(0).init_places(index)[0]) for index in range(5)}
    assert sorted(starts.seen) == sorted(file.items())


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object"])
def test_pc_68_the_policy_gets_the_steps_of_the_protocol(fake, suite: str, counts: bool) -> None:
    budget = step_budget(EvalConfig(suite=suite))
    protocol = fake.fake_protocol(tasks=(1,), episodes=1, max_steps=budget, settle_steps=10, settle_counts=counts)
    records: list = []

    class Keep(Listener):
        def on_episode(self, job, record) -> None:
            records.append(record)

    Runner(ZeroPolicy(fake.CONTRACT), protocol, RunSettings(1), [Keep()]).run(protocol.jobs())
    assert [r.steps for r in records] == [budget - 10 if counts else budget]
