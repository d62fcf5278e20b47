"""The queue in front of the model: fair, bounded, and never stuck."""

from __future__ import annotations

import time
from concurrent.futures import wait
from itertools import pairwise

import numpy as np
import pytest
from waiting import PATIENCE_S, until

from cosmos_robot.errors import InputError
from cosmos_robot.serve.messages import Failure, Imagine, Infer, Plan
from cosmos_robot.serve.service import Models, Service, ServiceSettings, empty_scene
from cosmos_robot.types import Observation


def hold(service, policy, observation):
    """Start one question and keep the model on it: what is asked now waits."""
    policy.gate.clear()
    first = service.submit(Infer(observation, 999, "holder"))
    until(lambda: policy.seeds == [999])
    return first


def codes(futures):
    replies = [f.result(PATIENCE_S) for f in futures]
    return [r.code if isinstance(r, Failure) else "ok" for r in replies]


def test_an_answer_belongs_to_its_question(service, observation):
    futures = [service.submit(Infer(observation, seed, f"s{seed % 3}")) for seed in range(12)]
    assert [f.result(PATIENCE_S).chunk.values[0, 0] for f in futures] == list(range(12))


def test_waiting_questions_of_all_sessions_share_batches_in_turn(service, policy, observation):
    first = hold(service, policy, observation)
    greedy = [service.submit(Infer(observation, seed, "greedy")) for seed in range(5)]
    late = [service.submit(Infer(observation, 100 + i, f"late{i}")) for i in range(2)]
    policy.gate.set()
    wait([first, *greedy, *late], PATIENCE_S)
    assert policy.batches == [1, 4, 3]
    assert set(policy.seeds[1:5]) == {0, 1, 100, 101}, "each session once before anyone twice"


def test_seconds_say_where_the_time_went(service, policy, observation):
    moments = [time.monotonic()]
    first = hold(service, policy, observation)
    moments.append(time.monotonic())
    second = service.submit(Infer(observation, 1))
    time.sleep(0.05)
    policy.gate.set()
    seconds, of_first = second.result(PATIENCE_S).seconds, first.result(PATIENCE_S).seconds
    moments.append(time.monotonic())
    began, ended = (b - a for a, b in pairwise(moments))
    assert seconds["queue"] >= 0.05 and 0 <= of_first["queue"] <= began, "the first waited for nobody"
    assert seconds["total"] == pytest.approx(seconds["queue"] + seconds["model"]) and seconds["total"] <= ended


def test_a_question_past_its_deadline_never_reaches_the_model(service, policy, observation):
    hold(service, policy, observation)
    late = service.submit(Infer(observation, 7, deadline_s=0.01))
    time.sleep(0.05)
    policy.gate.set()
    assert codes([late]) == ["deadline"] and 7 not in policy.seeds


def test_cancel_reset_and_supersede_drop_what_waits(service, policy, observation):
    hold(service, policy, observation)
    cancelled = service.submit(Infer(observation, 1, "a"), id="x")
    service.cancel("x")
    reset = [service.submit(Infer(observation, 2, "b")), service.submit(Infer(observation, 3, "other"))]
    service.reset("b")
    older = service.submit(Infer(observation, 4, "c"))
    newer = service.submit(Infer(observation, 5, "c", supersede=True))
    policy.gate.set()
    assert codes([cancelled, *reset, older, newer]) == ["cancelled", "cancelled", "ok", "cancelled", "ok"]
    assert not {1, 2, 4} & set(policy.seeds)


def test_a_reset_forgets_the_answer_that_is_being_made(service, policy, observation):
    first = hold(service, policy, observation)
    service.reset("holder")
    assert codes([first]) == ["cancelled"]
    policy.gate.set()
    assert codes([service.submit(Infer(observation, 1, "holder"))]) == ["ok"]


def test_a_full_queue_refuses_at_once(service, policy, observation):
    hold(service, policy, observation)
    one = [service.submit(Infer(observation, i, "one")) for i in range(9)]
    assert codes(one[8:]) == ["busy"]
    many = [service.submit(Infer(observation, i, f"m{i}")) for i in range(25)]
    assert codes(many[24:]) == ["busy"]
    policy.gate.set()
    assert codes(one[:8] + many[:24]) == ["ok"] * 32


def test_a_model_that_fails_answers_and_goes_on(service, policy, observation):
    policy.fail = RuntimeError("out of memory at /srv/models/x.py")
    reply = service.submit(Infer(observation, 1)).result(PATIENCE_S)
    assert reply.code == "internal" and "/srv" not in reply.message and "RuntimeError" in reply.message
    policy.fail = None
    assert codes([service.submit(Infer(observation, 1))]) == ["ok"]


def test_one_bad_question_does_not_spoil_the_batch(service, policy, observation):
    class Picky(type(policy)):
        def act(self, observations, seeds, committed=None):
            if 13 in seeds:
                raise InputError("seed 13 brings bad luck")
            return super().act(observations, seeds)

    picky = Picky(policy.contract)
    with Service(Models(picky), ServiceSettings(batch=8)) as picky_service:
        picky.gate.clear()
        futures = [picky_service.submit(Infer(observation, seed)) for seed in (1, 2, 13, 4)]
        picky.gate.set()
        assert codes(futures) == ["ok", "ok", "bad_input", "ok"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda o: Observation({}, o.state, o.instruction), "agentview"),
        (lambda o: Observation({k: v[:100] for k, v in o.images.items()}, o.state, o.instruction), "256x256"),
        (lambda o: Observation(o.images, {}, o.instruction), "eef_position"),
        (lambda o: Observation(o.images, {**o.state, "eef_position": np.zeros(4)}, o.instruction), "eef_position"),
    ],
)
def test_pc_16_pc_25_what_does_not_fit_the_contract_is_refused_by_name(service, observation, change, named):
    reply = service.submit(Infer(change(observation), 1)).result(PATIENCE_S)
    assert reply.code == "bad_input" and named in reply.message


def test_rows_of_another_width_or_a_whole_chunk_are_refused(service, observation, contract):
    assert "width 3" in service.submit(Infer(observation, 1, committed=np.zeros((2, 3)))).result(PATIENCE_S).message
    full = np.zeros((contract.model.chunk, contract.robot.action_width))
    assert "leave nothing" in service.submit(Infer(observation, 1, committed=full)).result(PATIENCE_S).message


def test_what_is_not_served_is_said(service, observation):
    assert (
        codes([service.submit(Plan(observation, 1)), service.submit(Imagine(observation, np.zeros((2, 7)), 1))])
        == ["unsupported"] * 2
    )


def test_not_ready_before_the_start_and_closing_after_the_end(policy, observation):
    service = Service(Models(policy))
    assert codes([service.submit(Infer(observation, 1))]) == ["not_ready"]
    service.start()
    assert policy.seeds == [0], "warmed up once"
    policy.gate.clear()
    running, waiting = service.submit(Infer(observation, 1)), None
    until(lambda: policy.seeds == [0, 1])
    waiting = service.submit(Infer(observation, 2))
    policy.gate.set()
    service.close()
    service.close()
    assert codes([running])[0] == "ok" and codes([waiting])[0] in ("closing", "ok")
    assert codes([service.submit(Infer(observation, 3))]) == ["closing"]


def test_health_and_stats_count(service, observation):
    [service.submit(Infer(observation, s)).result(PATIENCE_S) for s in range(3)]
    service.submit(Infer(Observation({}, {}, "x"), 0)).result(PATIENCE_S)
    until(lambda: service.stats()["outcomes"] == {"ok": 3, "bad_input": 1})  # counted just after the answer
    facts = service.stats()
    assert facts["state"] == "ready"
    assert set(facts["ms"]) == {"queue", "model", "total"} and len(facts["recent_ms"]) == 3


def test_the_empty_scene_fits_the_shipped_policy(contract):
    from cosmos_robot.policies import load_policy

    (chunk,) = load_policy("tiny-libero").act([empty_scene(contract)], [0])
    assert len(chunk) == contract.model.chunk


@pytest.mark.parametrize("name", ["batch", "waiting", "waiting_per_session"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_bad_settings_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        ServiceSettings(**{name: value})
