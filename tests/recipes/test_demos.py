"""Demonstrations in the real simulator: they succeed, say what is where, and never touch the evaluation states."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.actions.rotations import convert
from cosmos_robot.data.workers import NotDemonstrated
from cosmos_robot.envs import libero
from cosmos_robot.envs.experts import Phase
from cosmos_robot.envs.libero import LIBERO_PANDA, Task, find_task
from cosmos_robot.envs.libero_demos import CHUNK, DemoJob, LiberoDemonstrator
from cosmos_robot.envs.libero_detours import Detours
from cosmos_robot.envs.libero_layouts import draw_layout
from cosmos_robot.envs.libero_scene import OBJECT_CLASSES
from cosmos_robot.envs.training_starts import make as make_start
from cosmos_robot.errors import InputError

TASK = "libero_object/7"


@pytest.fixture(scope="module")
def demonstrator():
    maker = LiberoDemonstrator()
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def episode(demonstrator):
    for seed in range(100, 104):
        try:
            return demonstrator.episode(DemoJob(id=f"test-{seed}", group=TASK, seed=seed, start="home"))
        except NotDemonstrated:
            continue
    pytest.fail("the expert did not succeed in four layouts")


def test_an_episode_is_a_success_with_clean_commands_in_range(episode):
    assert episode.info.success and episode.info.source == "expert"
    assert episode.actions.shape[1:] == (CHUNK, LIBERO_PANDA.action_width)
    assert np.abs(episode.actions).max() <= 1
    assert episode.valid[:, 0].all() and not episode.valid[-1].all()
    assert set(episode.extras["phase"].astype(int)) >= {Phase.APPROACH, Phase.TRANSPORT}
    sent = episode.extras["executed"]  # disturbed, the gripper never
    assert sent.shape == episode.actions.shape and np.abs(sent).max() <= 1
    np.testing.assert_array_equal(sent[..., -1], episode.actions[..., -1])


def test_an_episode_tells_the_target_by_class_and_place(episode):
    slot = int(episode.extras["target"][0])
    assert OBJECT_CLASSES[int(episode.extras["object_class"][0, slot])] == "milk"
    u, v, inside = episode.extras["object_uv_agentview"][0, slot]
    assert inside == 1
    picture = episode.images["agentview"][0].astype(int)
    row, column = int(v * 256), int(u * 256)
    patch = picture[row - 6 : row + 6, column - 6 : column + 6].reshape(-1, 3).mean(0)
    assert patch[0] > patch[1] + 20  # the milk carton is the red one


@pytest.fixture
def no_official_states(monkeypatch):
    def refuse(self: Task):
        raise AssertionError(f"read the evaluation states of {self.name}")

    monkeypatch.setattr(libero.Task, "init_states", refuse)


def test_demonstrations_never_read_the_official_initial_states(demonstrator, no_official_states):
    demonstrator.start(TASK, np.random.default_rng(5))


def test_rollouts_begin_where_their_seed_has_it_and_never_read_the_official_states(no_official_states):
    """Twice the same beginning, bit by bit, whatever the environment did before; another for another seed."""
    env = make_start(TASK)
    try:
        assert env.init_state_count == 0
        env.reset(seed=1003)
        first = np.array(env.sim.data.qpos)
        for action in np.random.default_rng(12).uniform(-1, 1, (12, 7)):
            env.step(action)
        env.reset(seed=1004)
        other = np.array(env.sim.data.qpos)
        observation, _ = env.reset(seed=1003)
        assert np.array_equal(env.sim.data.qpos, first) and np.abs(other - first).max() > 0.01
        assert observation.time == 0 and env.control_steps == 0 and env.score() == 0
        recorded = env.published_state()
        assert np.array_equal(recorded[:2], observation.state["gripper_qpos"])
        assert np.array_equal(recorded[2:5], env.sim.data.site_xpos[env.arm.eef_site_id])
        upright = convert(recorded[5:], "quat_xyzw", "rot6d")
        assert np.allclose(upright, observation.state["eef_rot6d"], atol=1e-9)
        with pytest.raises(InputError, match="init_state"):
            env.reset(seed=1003, options={"init_state": 0})
    finally:
        env.close()


def test_a_suite_without_layouts_begins_as_its_scene_places_things(no_official_states):
    env = make_start("libero_goal/0")
    try:
        places = []
        for seed in (1000, 1001, 1000):
            env.reset(seed=seed)
            places.append(np.array(env.sim.data.qpos))
        assert np.allclose(places[0], places[2], atol=1e-9) and np.abs(places[1] - places[0]).max() > 0.001
        with pytest.raises(InputError, match="no initial states"):
            env.reset(seed=1003, options={"init_state": 0})
    finally:
        env.close()


@pytest.mark.parametrize("suite", ["libero_object", "libero_object_swap", "libero_object_object", "libero_object_task"])
def test_layouts_differ_from_every_official_state(demonstrator, suite):
    """In each of 40 layouts some object stands more than 5 mm from where any official state has it."""
    scene, _ = demonstrator.start(TASK, np.random.default_rng(6))
    address = [o.qpos_address for o in scene.objects if o.qpos_address is not None]
    columns = np.array([[1 + a, 2 + a] for a in address]).ravel()  # a state begins with its time
    official = find_task(f"{suite}/7").init_states()[:, columns]
    rng = np.random.default_rng(7)
    layouts = np.stack([draw_layout(scene, rng) for _ in range(40)])[:, columns - 1]
    distance = np.abs(layouts[:, None] - official[None]).max(-1).min(-1)
    assert distance.min() > 0.005


def test_layouts_move_the_target_widely(demonstrator):
    scene, _ = demonstrator.start(TASK, np.random.default_rng(8))
    rng = np.random.default_rng(9)
    at = scene.objects[scene.target].qpos_address
    places = np.array([draw_layout(scene, rng)[at : at + 2] for _ in range(60)])
    assert (places.std(0) > 0.06).all()


def test_a_snapshot_goes_back_exactly(demonstrator):
    scene, _ = demonstrator.start(TASK, np.random.default_rng(10))
    env = scene.env
    actions = np.random.default_rng(11).uniform(-1, 1, (8, 7))
    here = env.snapshot()

    def run() -> np.ndarray:
        for action in actions:
            env.step(action)
        return np.array(env.sim.data.qpos)

    first = run()
    env.restore(here)
    assert np.array_equal(run(), first)


def test_a_demonstrator_led_astray_keeps_what_was_sent_and_the_episode_however_it_ends():
    maker = LiberoDemonstrator(detours=True)
    try:
        episodes = [maker.episode(DemoJob(id=f"astray-{s}", group=TASK, seed=s, start="home")) for s in (300, 301)]
    finally:
        maker.close()
    wanted = np.concatenate([episode.actions[:, 0] for episode in episodes])
    sent = np.concatenate([episode.extras["executed"][:, 0] for episode in episodes])
    apart = np.abs(sent - wanted)[:, :3].max(1)
    assert 0.2 < (apart > 0.3).mean() < 0.8  # rather often on a detour, and rather often not
    assert len(episodes[0]) > 20 and episodes[0].info.source == "expert"


def test_every_kind_of_detour_stays_in_range_and_ends():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        disturbed, clean = Detours(rng), rng.uniform(-1, 1, (300, 7))
        clean[:, 6] = -1.0
        sent = np.array([disturbed(row) for row in clean])
        assert np.abs(sent).max() <= 1 and disturbed.count >= 5
        told = np.flatnonzero(np.abs(sent - clean).max(1) == 0)
        assert len(told) or "0.0" not in str(disturbed)  # without noise, the expert is obeyed in between


def test_the_same_seed_goes_the_same_detours():
    clean = np.random.default_rng(3).uniform(-1, 1, (100, 7))
    first, second = (Detours(np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal([first(row) for row in clean], [second(row) for row in clean])
