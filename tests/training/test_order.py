import json
from collections import Counter

import numpy as np
import pytest

from cosmos_robot.errors import InputError
from cosmos_robot.training.order import EpisodeOrder, Packing, StepOrder, StreamOrder

LENGTHS = [5, 0, 7, 3, 4, 6]
EPISODES = [0, 2, 3, 4, 5]
MODES = {"policy": 1.0, "wam": 3.0}


def episode_order(seed: int = 1, open_episodes: int = 2) -> EpisodeOrder:
    return EpisodeOrder(EPISODES, LENGTHS, open_episodes, (seed,))


def step_order(packing: Packing, processes: int = 1, tokens=lambda draw: 1, weights=(1.0, 2.0)) -> StepOrder:
    streams = [StreamOrder(i, episode_order(i), MODES, 0.25, 7) for i in range(len(weights))]
    return StepOrder(streams, weights, packing, 7, processes, tokens)


def test_an_epoch_has_every_sample_once_and_few_episodes_open():
    order = episode_order()
    assert order.epoch_samples == 25
    for epoch in range(2):
        places = [order.at(n) for n in range(25 * epoch, 25 * (epoch + 1))]
        assert sorted(places) == [(e, row) for e in EPISODES for row in range(LENGTHS[e])]
        seen = [e for e, _ in places]
        spans = {e: (seen.index(e), len(seen) - seen[::-1].index(e)) for e in EPISODES}
        open_at_once = max(sum(first <= n < last for first, last in spans.values()) for n in range(25))
        assert open_at_once == 2
        assert any(a != b for a, b in zip(seen, sorted(seen), strict=True))
    assert [order.at(n) for n in range(25)] != [order.at(n) for n in range(25, 50)]


def test_any_number_can_be_asked_for_first():
    """A resumed run begins in the middle of an epoch."""
    whole = [episode_order().at(n) for n in range(60)]
    order = episode_order()
    for number in (41, 3, 59, 30, 12):
        assert order.at(number) == whole[number]
    assert [episode_order(seed=2).at(n) for n in range(60)] != whole


def test_draws_follow_from_their_number():
    one, two = (StreamOrder(0, episode_order(), MODES, 0.25, 7) for _ in range(2))
    assert one.draw(33) == two.draw(33)
    draws = [one.draw(n) for n in range(4000)]
    shares = Counter(draw.mode for draw in draws)
    assert shares["wam"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert np.mean([draw.dropped for draw in draws]) == pytest.approx(0.25, abs=0.03)
    assert np.mean([draw.history == 1.0 for draw in draws]) == pytest.approx(0.5, abs=0.03)
    assert len({draw.seed for draw in draws}) == 4000


def test_noise_levels_are_spread_over_successive_samples():
    draws = [StreamOrder(0, episode_order(), MODES, 0.0, 7).draw(n) for n in range(500)]
    levels = np.array([draw.level for draw in draws])
    assert levels.min() >= 0 and levels.max() < 1
    for first in range(0, 490, 50):
        assert np.histogram(levels[first : first + 50], bins=5, range=(0, 1))[0].min() >= 8


def test_processes_share_a_batch_of_one_stream():
    one, two = step_order(Packing(6)), step_order(Packing(6), processes=2)
    streams = set()
    for step in range(20):
        (all_,), (first, second) = one.step(step), two.step(step)
        assert all_[::2] == first and all_[1::2] == second
        assert len({draw.stream for draw in all_}) == 1
        streams.add(all_[0].stream)
    assert streams == {0, 1}
    with pytest.raises(InputError, match="batch 5 cannot be shared"):
        step_order(Packing(5), processes=2)


def test_streams_come_by_their_weights():
    order = step_order(Packing(1), weights=(1.0, 3.0))
    counts = Counter(order.step(n)[0][0].stream for n in range(2000))
    assert counts[1] / 2000 == pytest.approx(0.75, abs=0.03)


def cost(draw) -> int:
    return 30 if draw.mode == "wam" else 7


def test_packs_keep_the_budget_look_ahead_and_lose_nothing():
    order = step_order(Packing(0, 100, 8), processes=2, tokens=cost, weights=(1.0,))
    taken, fill = [], []
    for step in range(100):
        packs = order.step(step)
        for pack in packs:
            fill.append(sum(map(cost, pack)))
            taken += [draw.number for draw in pack]
    assert max(fill) <= 100 and np.mean(fill) > 92
    assert len(taken) == len(set(taken))
    waiting = order.state()["waiting"][0]
    assert sorted(taken + waiting) == list(range(order.state()["next"][0])) and len(waiting) <= 9
    assert order.step(100)[0][0].number == waiting[0], "who was passed over comes first"


def test_without_looking_ahead_packs_are_emptier():
    fill = []
    for ahead in (0, 8):
        order = step_order(Packing(0, 100, ahead), tokens=cost, weights=(1.0,))
        fill.append(np.mean([sum(map(cost, order.step(n)[0])) for n in range(100)]))
    assert fill[0] < fill[1] - 1


def test_a_sample_above_the_budget_is_named():
    with pytest.raises(InputError, match=r"token_budget 20: a sample of this stream \(wam\) has 30 tokens"):
        order = step_order(Packing(0, 20), tokens=cost, weights=(1.0,))
        for step in range(9):
            order.step(step)


def test_the_position_is_plain_and_goes_on():
    whole = step_order(Packing(0, 100, 8), tokens=cost)
    steps = [whole.step(n) for n in range(12)]
    cut = step_order(Packing(0, 100, 8), tokens=cost)
    for n in range(7):
        cut.step(n)
    resumed = step_order(Packing(0, 100, 8), tokens=cost)
    resumed.load(json.loads(json.dumps(cut.state())))
    assert [resumed.step(n) for n in range(7, 12)] == steps[7:]
