"""A world model as an environment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.latents import decode
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import Contract, ModelSpec, require_fit
from cosmos_robot.envs import conformance
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.fakes import TASKS, FakeEnv
from cosmos_robot.envs.world_model import WorldModelEnv, camera_picture
from cosmos_robot.errors import CheckpointError, ContractError, InputError
from cosmos_robot.eval.world_model_case import Models, roll
from cosmos_robot.eval.world_model_measure import MeasureSettings, measure
from cosmos_robot.eval.world_model_windows import Window, windows_of
from cosmos_robot.images import compose_canvas, side_by_side
from cosmos_robot.policies import load_world_model
from cosmos_robot.policies.fakes import RandomPolicy, StillWorld
from cosmos_robot.policies.rollout import rollout
from cosmos_robot.types import ActionChunk

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}


@pytest.fixture
def starts(dots):
    """Two moments of the dot's environment."""
    run = dots.DotSource(1).run(0, dots.dot_contract())
    return [window.observation(dots.dot_contract()) for window in windows_of(run, dots.dot_contract(), 1, 2)]


def test_kit_from_recorded_starts(dots, starts) -> None:
    conformance.run(lambda: WorldModelEnv(dots.Oracle(), starts, step_budget=30))


def test_kit_from_a_simulator(dots) -> None:
    conformance.run(lambda: WorldModelEnv(dots.Oracle(), FakeEnv(0), step_budget=30))


def frame_contract() -> Contract:
    """The fake robot under Cosmos 3 with latent frames, every verb."""
    robot = FakeEnv.robot
    made = untrained_contract(robot, "frames", chunk=4, execute=2)
    canvas = made.model.canvas.model_dump()
    placed = side_by_side({c.name: c for c in robot.cameras}, 32, 32)
    canvas |= {"height": 32, "width": 64, "arrangement": "frames", "placements": [p.model_dump() for p in placed]}
    changes = {
        "modes": ("policy", "world_model", "value"),
        "actions_per_frame": 4,
        "frames": (
            "blank",
            "state",
            "table",
            "hand",
            "action",
            "future state",
            "future table",
            "future hand",
            "value",
        ),
        "canvas": canvas,
        "sampler": made.model.sampler.model_copy(update={"steps": 2}).model_dump(),
    }
    return Contract(robot=robot, model=ModelSpec.model_validate(made.model.model_dump() | changes))


def test_kit_over_an_untrained_checkpoint_with_latent_frames(tmp_path) -> None:
    """Its states are wild, its success is none; all promises hold."""
    folder = save_untrained(tmp_path / "frames", frame_contract(), TASKS, **SMALL)
    world = load_world_model(folder)
    conformance.run(lambda: WorldModelEnv(world, FakeEnv(1), step_budget=8))


@pytest.fixture(scope="module")
def frame_world(tmp_path_factory):
    return load_world_model(save_untrained(tmp_path_factory.mktemp("frames") / "own", frame_contract(), TASKS, **SMALL))


def test_repeating_the_last_latents_is_no_motion(frame_world, dots, monkeypatch) -> None:
    """What the autoencoder alone changes does not count: only a prediction that is not the last latents moves."""
    contract, model = frame_world.contract, frame_world.model
    run = dots.DotSource(1, steps=12).run(0, contract)
    imagined = model.sample

    def repeat(mode, latents, *rest):
        found = imagined(mode, latents, *rest).clone()
        for camera in ("table", "hand"):
            found[:, :, model.layout.index(f"future {camera}")] = found[:, :, model.layout.index(camera)]
        return found

    def ratio() -> float:
        (window,) = windows_of(run, contract, 1, 1)
        return measure(Models(frame_world), window, MeasureSettings(), probe=False)[0]["motion_ratio"]

    assert ratio() > 0, "an untrained one draws something else"
    monkeypatch.setattr(model, "sample", repeat)
    assert ratio() == 0
    video = frame_world.imagine([windows_of(run, contract, 1, 1)[0].observation(contract)], *_chunk(contract))[0]
    assert np.array_equal(frame_world.unmoved([video])[0], video.frames[1])
    apart = np.abs(video.frames[1].astype(int) - video.frames[0]).mean()
    assert apart > 5, "beside the picture that was shown it would have moved"


def _chunk(contract):
    values = np.zeros((contract.model.chunk, contract.robot.action_width))
    return [ActionChunk(values, contract.robot.rate_hz)], [0]


def test_latents_that_are_not_finite_are_no_black_picture(frame_world, starts) -> None:
    contract, vae = frame_world.contract, frame_world.model.backbone.checkpoint.vae
    (video,) = frame_world.imagine(starts[:1], *_chunk(contract))
    video.latents[0, -2] = float("nan")
    with pytest.raises(CheckpointError, match=r"generator \(transformer/\).*not finite.*dtype"):
        decode(vae, video.latents[None])
    bias = vae.decoder.conv_out.bias
    kept = bias.detach().clone()
    bias.data.fill_(float("nan"))  # infinite ones are clamped by the decoder
    try:
        with pytest.raises(CheckpointError, match=r"autoencoder \(vae/\) .*float32 from finite latents"):
            decode(vae, torch.zeros_like(video.latents)[None])
    finally:
        bias.data.copy_(kept)


def test_kit_over_an_untrained_forward_model(tmp_path) -> None:
    """It predicts no state: refused, unless that of the start is to be held."""
    made = untrained_contract(FakeEnv.robot, "forward", chunk=4, execute=2)
    changes = {"modes": ("forward_dynamics",), "state_row": False}
    contract = Contract(robot=made.robot, model=ModelSpec.model_validate(made.model.model_dump() | changes))
    world = load_world_model(save_untrained(tmp_path / "forward", contract, TASKS, **SMALL))
    with pytest.raises(ContractError, match="unpredicted_state='hold'"):
        WorldModelEnv(world, FakeEnv(0), step_budget=8)
    conformance.run(lambda: WorldModelEnv(world, FakeEnv(0), step_budget=8, unpredicted_state="hold"))


def test_rows_one_by_one_or_at_once_end_alike(dots, starts) -> None:
    """And as the true physics: across the ends of chunks, inside them, and over a seam of two calls."""
    rows = conformance.some_actions(FakeEnv(0), 21, seed=3)
    truth = dots.DotEnv(0, step_budget=10**6)
    truth.reset(seed=0)
    truth._hand = np.array(starts[0].state["position"])
    expected = execute(truth, rows).observation.state["position"]
    ends = []
    for sizes in ([21], [1] * 21, [5, 16], [8, 8, 5]):
        env = WorldModelEnv(dots.Oracle(), starts, step_budget=100)
        env.reset(seed=0, options={"init_state": 0})
        taken = 0
        for size in sizes:
            result = execute(env, rows[taken : taken + size])
            taken += size
            assert result.steps == size and env.control_steps == taken
        ends.append(result.observation)
        assert [len(p) for p in env.imagined] == [3, 3, 3]
    for end in ends:
        assert np.allclose(end.state["position"], expected)
        assert end.time == 21 / FakeEnv.robot.rate_hz
        assert np.array_equal(end.images["table"], ends[0].images["table"])
    assert np.array_equal(ends[0].images["table"], truth.render_camera("table"))


def test_success_is_judged_alike_however_rows_are_given(dots, starts) -> None:
    """Where a chunk ends, or the budget: not where the hand only passes the goal."""

    def ends(size: int, east: float, budget: int):
        first = replace(starts[0], state={"position": dots.GOAL - [0.24, 0.0], "grip": np.array([-1.0])})
        given = {"step_budget": budget, "value": dots.Nearness(), "success_at": 0.95}
        env = WorldModelEnv(dots.Oracle(), [first], **given)
        env.reset(seed=0, options={"init_state": 0})
        rows = np.tile([east, 0.0, -1.0], (20, 1))
        while env.running and env.control_steps < len(rows):
            result = execute(env, rows[env.control_steps :][:size])
        return result.success, result.terminated, env.control_steps, round(env.score(), 9)

    cases = {(1.0, 16): (False, False, 16), (0.5, 16): (True, True, 8), (1.0, 4): (True, True, 4)}
    for (east, budget), expected in cases.items():
        whole, *others = (ends(size, east, budget) for size in (20, 1, 3, 8))
        assert whole[:3] == expected and others == [whole] * 3, (east, budget)


def test_it_looks_at_the_present_moment(dots, starts) -> None:
    """Inside a chunk a model with a frame every four steps shows the next frame, the robot having stopped."""
    env = WorldModelEnv(dots.Oracle(), starts, step_budget=100)
    first, _ = env.reset(seed=0, options={"init_state": 1})
    assert np.array_equal(first.images["table"], starts[1].images["table"])
    move = np.array([1.0, 0.5, -1.0])
    for step in range(1, 9):
        seen = env.step(move)[0]
        truth = np.array(starts[1].state["position"]) + step * 0.06 * move[:2]
        assert np.allclose(seen.state["position"], np.clip(truth, -1, 1))
        expected = dots.DotEnv(0)
        expected.reset(seed=0)
        expected._hand = np.clip(truth, -1, 1)
        assert np.array_equal(seen.images["table"], expected.render_camera("table")), step


class Told(StillWorld):
    """Keeps the states that it is given where one chunk joins the next."""

    def _extend(self, predictions, actions, seeds, states, carry):
        self.given = states
        return super()._extend(predictions, actions, seeds, states, carry)


def test_relative_commands_need_the_state_at_each_joint(dots, starts) -> None:
    """Commands that are rows relative to where the robot is cannot be made without it, though no row shows it."""
    space = {"reference": "framewise_relative", "fields": [f.model_dump() for f in FakeEnv.robot.action]}
    made = dots.dot_contract(action_space=space)
    assert made.reads_state and not made.model.state_row and not dots.dot_contract().reads_state
    world, start, rows = Told(made), starts[0], np.zeros((16, 3))
    both, once = dots.chunk_of(rows), dots.chunk_of(rows[:8])
    with pytest.raises(InputError, match="pass one state"):
        world.extend(world.imagine([start], [once], [0]), [once], [0])
    with pytest.raises(InputError, match="expected 1 states"):
        rollout(world, [start], [both], [0])
    rollout(world, [start], [both], [0], [[starts[1].state]])
    assert world.given[0] is starts[1].state
    window = Window(dots.DotSource(1).run(0, made), 0, 2)
    roll(world, window, 0, "pixels")
    assert np.array_equal(world.given[0]["position"], window.states(made)[1]["position"]), "the true one"
    env = WorldModelEnv(world, starts, step_budget=16, unpredicted_state="hold")
    env.reset(seed=0, options={"init_state": 0})
    world.given = None
    env.run(rows)
    assert np.array_equal(world.given[0]["position"], start.state["position"])


def test_pictures_of_a_canvas_that_is_cut(dots) -> None:
    """A video lacks the rows and columns of half cells; what is there stands where it was."""
    made = dots.dot_contract()
    canvas = made.model.canvas.model_dump() | {"width": 88}
    contract = Contract(robot=made.robot, model=ModelSpec.model_validate(made.model.model_dump() | {"canvas": canvas}))
    frame = np.random.default_rng(0).integers(1, 256, (48, 80, 3), dtype=np.uint8)
    hand = camera_picture(contract, "hand", frame)
    assert np.array_equal(hand[:, :16], frame[:24, 64:80]) and not hand[:, 16:].any()


def test_success_is_what_the_value_says(dots, starts) -> None:
    def run(**more):
        env = WorldModelEnv(dots.Oracle(), starts, step_budget=60, **more)
        seen, _ = env.reset(seed=0, options={"init_state": 0})
        while env.running:
            direction = np.clip((dots.GOAL - seen.state["position"]) / 0.06, -1, 1)
            seen, reward, terminated, truncated, info = env.step([*direction, -1.0])
        return reward, terminated, truncated, info

    reward, terminated, truncated, info = run(value=dots.Nearness(), success_at=0.97)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True) and info["value"] >= 0.97
    reward, terminated, truncated, info = run()
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False) and info["value"] is None


def test_a_policy_drives_in_it(dots) -> None:
    policy = RandomPolicy(dots.dot_contract())
    with WorldModelEnv(dots.Oracle(), FakeEnv(0), step_budget=20, value=dots.Nearness(), success_at=1.5) as env:
        require_fit(policy.contract, env.robot)
        seen, _ = env.reset(seed=5, options={"init_state": 3})
        while env.running:
            result = execute(env, policy.act([env.observe()], [env.control_steps])[0].values)
        assert result.truncated and env.control_steps == 20
    assert env._source._closed, "it closes the environment of its starts"


def test_pictures_go_back_into_their_cameras(dots) -> None:
    """Composing what was laid back gives the canvas again, for crops, turned cameras and letterboxes."""
    made = dots.dot_contract()
    places = [dict(place) for place in made.model.canvas.model_dump()["placements"]]
    places[0] |= {"crop": {"top": 4, "left": 8, "height": 40, "width": 48}}
    places[0] |= {"to": {"top": 0, "left": 0, "height": 20, "width": 24}}
    places[1] |= {"to": {"top": 0, "left": 24, "height": 12, "width": 24}}
    for changes in ({}, {"orientation": "rot180"}, {"fit": "letterbox"}):
        canvas = made.model.canvas.model_dump() | {"height": 20, "width": 48, "placements": places} | changes
        model = ModelSpec.model_validate(made.model.model_dump() | {"canvas": canvas})
        contract = Contract(robot=made.robot, model=model)
        noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        frame = compose_canvas(contract, {"table": noise, "hand": noise[:24, :24]})
        back = {camera: camera_picture(contract, camera, frame) for camera in ("table", "hand")}
        assert np.abs(compose_canvas(contract, back).astype(int) - frame.astype(int)).max() <= 2, changes
    assert not back["table"][:4].any(), "what no crop shows is black"


def test_refusals(dots, starts) -> None:
    with pytest.raises(InputError, match="got no start"):
        WorldModelEnv(dots.Oracle(), [], step_budget=5)
    with pytest.raises(InputError, match="step_budget"):
        WorldModelEnv(dots.Oracle(), starts, step_budget=0)
    with pytest.raises(ContractError, match="predicts pictures but no state"):
        WorldModelEnv(StillWorld(dots.dot_contract()), starts, step_budget=5)
    made = dots.dot_contract()
    canvas = made.model.canvas.model_dump() | {"placements": made.model.canvas.model_dump()["placements"][:1]}
    one = Contract(robot=made.robot, model=ModelSpec.model_validate(made.model.model_dump() | {"canvas": canvas}))
    env = WorldModelEnv(StillWorld(one), starts, step_budget=5, unpredicted_state="hold")
    env.reset(seed=0)
    env.step(np.zeros(3))
    with pytest.raises(ContractError, match="predicts no picture of camera 'hand'"):
        env.render_camera("hand")
    with pytest.raises(InputError, match="before reset"):
        execute(WorldModelEnv(dots.Oracle(), starts, step_budget=5), np.zeros((2, 3)))
