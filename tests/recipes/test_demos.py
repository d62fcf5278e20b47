"""Demonstrations in the real simulator: they succeed, say what is where, and never touch the evaluation states."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.data.workers import NotDemonstrated
from cosmos_robot.envs import libero
from cosmos_robot.envs.experts import Phase
from cosmos_robot.envs.libero import LIBERO_PANDA, Task, find_task
from cosmos_robot.envs.libero_demos import CHUNK, DemoJob, LiberoDemonstrator
from cosmos_robot.envs.libero_layouts import draw_layout
from cosmos_robot.envs.libero_scene import OBJECT_CLASSES

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


def test_an_episode_tells_the_target_by_class_and_place(episode):
    slot = int(episode.extras["target"][0])
    assert OBJECT_CLASSES[int(episode.extras["object_class"][0, slot])] == "milk"
    u, v, inside = episode.extras["object_uv_agentview"][0, slot]
    assert inside == 1
    picture = episode.images["agentview"][0].astype(int)
    row, column = int(v * 256), int(u * 256)
    patch = picture[row - 6 : row + 6, column - 6 : column + 6].reshape(-1, 3).mean(0)
    assert patch[0] > patch[1] + 20  # the milk carton is the red one


def test_demonstrations_never_read_the_official_initial_states(demonstrator, monkeypatch):
    def refuse(self: Task):
        raise AssertionError(f"read the evaluation states of {self.name}")

    monkeypatch.setattr(libero.Task, "init_states", refuse)
    demonstrator.start(TASK, np.random.default_rng(5))


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
