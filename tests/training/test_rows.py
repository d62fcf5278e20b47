import numpy as np
import pytest
from dots import CHUNK, draw_episode

from cosmos_robot.errors import ContractError
from cosmos_robot.training.cache import EpisodeList, frame_cache
from cosmos_robot.training.config import Stage
from cosmos_robot.training.rows import fit_contract, join_caches


@pytest.fixture(scope="module")
def caches(contract, episodes, tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")
    dagger = EpisodeList([draw_episode(seed, rows=4, dagger=True) for seed in range(100, 103)])
    return [frame_cache(source, contract, root, progress=False) for source in (episodes, dagger)]


@pytest.fixture(scope="module")
def fitted(contract, caches):
    return fit_contract(contract, caches, "quantile", 0.01, 0.1)


@pytest.fixture(scope="module")
def rows(fitted, caches):
    latents = [
        np.arange(len(c), dtype=np.float16)[:, None, None, None] + np.full((len(c), 2, 4, 6), 1000 * i, np.float16)
        for i, c in enumerate(caches)
    ]
    return join_caches(fitted, caches, latents, "eef_position")


def test_statistics_come_from_valid_training_commands_only(contract, caches, fitted):
    expected = np.concatenate([c.actions[~c.validation][c.valid[~c.validation]] for c in caches])
    statistics = fitted.model.action_normalization.statistics
    assert statistics.count == len(expected) < sum(len(c) * CHUNK for c in caches)
    np.testing.assert_allclose(statistics.mean, expected.mean(0), rtol=1e-6)
    assert fitted.model.action_normalization.scale_floor == 0.1
    assert fitted.model.state_normalization.statistics.count == sum((~c.validation).sum() for c in caches)


def test_statistics_that_are_there_stay(caches, fitted):
    again = fit_contract(fitted, caches[1:], "meanstd", 1.0, 1.0)
    assert again == fitted


def test_rows_are_in_model_units(rows, fitted, caches):
    s = fitted.model.action_normalization.statistics
    middle = (np.array(s.q99) + s.q01) / 2
    half = np.maximum((np.array(s.q99) - s.q01) / 2, 0.1)
    np.testing.assert_allclose(rows.actions[5], (caches[0].actions[5] - middle) / half, atol=1e-5)
    np.testing.assert_allclose(rows.actions[-1], (caches[1].actions[-1] - middle) / half, atol=1e-5)


def test_instructions_and_episodes_are_told_apart(rows, caches):
    for row, (cache, index) in {3: (caches[0], 3), 144 + 7: (caches[1], 7)}.items():
        assert rows.instructions[rows.instruction[row]] == cache.instructions[cache.instruction[index]]
    assert len(set(rows.episode)) == 27 and rows.episode[144] == 24
    assert rows.dagger.sum() == 12


def test_latents_come_from_the_right_file_and_stop_at_the_episode(rows):
    got = rows.latents(np.array([145, 4, 5, 155]), frames=3)[:, 0, :, 0, 0]
    expected = [[1001, 1002, 1003], [4, 5, 5], [5, 5, 5], [1011, 1011, 1011]]
    np.testing.assert_array_equal(got, np.array(expected, np.float16))
    _, same = rows.following(np.array([145, 4, 5, 155]), 3)
    np.testing.assert_array_equal(same, [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0]])


def test_offsets_point_from_hand_to_objects(rows, caches):
    cache = caches[0]
    np.testing.assert_allclose(rows.offset[9, 0], cache.target_xyz[9] - cache.state[9], atol=1e-6)
    np.testing.assert_allclose(rows.offset[9, 1], cache.goal_xyz[9] - cache.state[9], atol=1e-6)
    slot = cache.target[9]
    np.testing.assert_array_equal(rows.cells[9, :, 0], cache.object_cells[9, :, slot])
    assert rows.seen[9, 0].all() and not rows.seen[9, 1].any()


def test_unknown_hand_field(fitted, caches):
    with pytest.raises(ContractError, match=r"no field 'wrist', only \['eef_position'\]"):
        join_caches(fitted, caches, [], "wrist")


def test_sampling_probabilities(rows):
    stage = Stage(name="s", steps=1, far_weight=3, approach_weight=2, dagger_weight=5)
    chances = rows.probabilities(stage, metres=0.1)
    assert chances.sum() == pytest.approx(1) and not chances[rows.validation].any()
    training = ~rows.validation
    plain = chances[training & (rows.phase == 2)] if (rows.phase == 2).any() else None
    assert plain is None
    far, approach = rows.far(0.1), rows.approach()
    assert far.any() and (approach & ~far).any() and (far <= approach).all()
    ordinary = chances[training & approach & ~far & ~rows.dagger][0]
    assert chances[training & far & ~rows.dagger][0] == pytest.approx(3 * ordinary)
    assert chances[training & approach & ~far & rows.dagger][0] == pytest.approx(5 * ordinary)
