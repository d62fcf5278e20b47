"""World models, inverse models and joint policies: the kits over all of them, every mode over one set of weights, and
rollouts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.load import Checkpoint, load_checkpoint
from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.policies import (
    FAKE_INVERSES,
    FAKE_WORLDS,
    conformance,
    conformance_video,
    load_inverse_model,
    load_policy,
    load_world_model,
)
from cosmos_robot.policies.conformance import some_observation
from cosmos_robot.policies.conformance_video import some_chunk
from cosmos_robot.policies.cosmos3 import (
    Cosmos3InverseModel,
    Cosmos3JointPolicy,
    Cosmos3Model,
    Cosmos3Policy,
    Cosmos3WorldModel,
)
from cosmos_robot.policies.fakes import StillInverse, StillWorld
from cosmos_robot.policies.rollout import chunk_seed, rollout
from cosmos_robot.types import ActionChunk, Clip, LazyFrames, VideoPrediction

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
MODES = ("wam", "policy", "forward_dynamics", "inverse_dynamics")


def changed(contract: Contract, **update) -> Contract:
    return Contract(robot=contract.robot, model=contract.model.model_copy(update=update))


@pytest.fixture(scope="session")
def every_mode(contract: Contract) -> Contract:
    sampler = contract.model.sampler.model_copy(update={"steps": 2})
    return changed(contract, modes=MODES, chunk=4, execute=2, state_row=False, history_rows=2, sampler=sampler)


@pytest.fixture(scope="session")
def video_folder(tmp_path_factory: pytest.TempPathFactory, every_mode: Contract) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "video"
    return save_untrained(folder, every_mode, ["pick up the red block"], **SIZES)


@pytest.fixture(scope="session")
def checkpoint(video_folder: Path) -> Checkpoint:
    loaded = load_checkpoint(video_folder)
    with torch.no_grad():  # what is untrained says almost nothing: speak up
        loaded.transformer.action_proj_out.fc.weight.mul_(20)
        loaded.transformer.proj_out.weight.mul_(20)
    return loaded


@pytest.fixture(scope="session")
def model(checkpoint: Checkpoint) -> Cosmos3Model:
    return Cosmos3Model(checkpoint)


def with_contract(checkpoint: Checkpoint, **update) -> Cosmos3Model:
    return Cosmos3Model(dataclasses.replace(checkpoint, contract=changed(checkpoint.contract, **update)))


@pytest.mark.parametrize("name", list(FAKE_WORLDS))
def test_fake_worlds(name: str, every_mode: Contract) -> None:
    conformance_video.run_world(lambda: load_world_model(name, contract=every_mode))


@pytest.mark.parametrize("name", list(FAKE_INVERSES))
def test_fake_inverses(name: str, every_mode: Contract) -> None:
    conformance_video.run_inverse(lambda: load_inverse_model(name, contract=every_mode))


def test_checkpoint_as_a_world(video_folder: Path) -> None:
    conformance_video.run_world(lambda: load_world_model(video_folder))


def test_checkpoint_as_an_inverse(video_folder: Path) -> None:
    conformance_video.run_inverse(lambda: load_inverse_model(video_folder))


@pytest.mark.parametrize("kind", [Cosmos3Policy, Cosmos3JointPolicy])
def test_both_kinds_of_policy(model: Cosmos3Model, kind: type[Cosmos3Policy]) -> None:
    conformance.run(lambda: kind(model))


def test_a_state_row_in_every_mode(checkpoint: Checkpoint) -> None:
    model = with_contract(checkpoint, state_row=True)
    conformance_video.run_world(lambda: Cosmos3WorldModel(model))
    conformance_video.run_inverse(lambda: Cosmos3InverseModel(model))
    conformance.run(lambda: Cosmos3JointPolicy(model))


class Late(StillWorld):
    def _still(self, canvas, actions, instruction, time):
        return super()._still(canvas, actions, instruction, time + 1)


class Shorter(StillWorld):
    def _still(self, canvas, actions, instruction, time):
        cut = ActionChunk(actions.values[:-1], actions.rate_hz)
        return super()._still(canvas, cut, instruction, time)


class Restless(StillWorld):
    calls = 0

    def _still(self, canvas, actions, instruction, time):
        self.calls += 1
        return super()._still(canvas + np.uint8(5 * self.calls), actions, instruction, time)


class Peeks(StillWorld):
    def _imagine(self, observations, actions, seeds):
        observations[0].images["ceiling"]
        return super()._imagine(observations, actions, seeds)


class Stuck(StillWorld):
    def _extend(self, predictions, actions, seeds, states, carry):
        return list(predictions)


class Lax(StillWorld):
    def imagine(self, observations, actions, seeds):
        return self._imagine(observations, [actions[0]] * len(observations), seeds)


@pytest.mark.parametrize(
    "broken, check",
    [
        (Late, "videos_match_contract"),
        (Shorter, "videos_match_contract"),
        (Restless, "same_seed_same_video"),
        (Restless, "video_alone_equals_batch"),
        (Peeks, "world_reads_only_its_cameras"),
        (Stuck, "a_video_goes_on"),
        (Lax, "world_refusals"),
    ],
)
def test_the_world_kit_notices(broken: type[StillWorld], check: str, every_mode: Contract) -> None:
    with pytest.raises(AssertionError):
        conformance_video.WORLD_CHECKS[check](broken(every_mode))


class WrongLength(StillInverse):
    def _label(self, clips, seeds):
        return [ActionChunk(c.values[1:], c.rate_hz, c.start_time, c.source) for c in super()._label(clips, seeds)]


class Counts(StillInverse):
    calls = 0

    def _label(self, clips, seeds):
        self.calls += 1
        chunks = super()._label(clips, seeds)
        return [ActionChunk(c.values + self.calls, c.rate_hz, c.start_time, c.source) for c in chunks]


class AnyClip(StillInverse):
    def label(self, clips, seeds):
        return self._label(clips, seeds)


@pytest.mark.parametrize(
    "broken, check",
    [
        (WrongLength, "labels_match_contract"),
        (Counts, "same_seed_same_labels"),
        (Counts, "labels_alone_equal_batch"),
        (AnyClip, "inverse_refusals"),
    ],
)
def test_the_inverse_kit_notices(broken: type[StillInverse], check: str, every_mode: Contract) -> None:
    with pytest.raises(AssertionError):
        conformance_video.INVERSE_CHECKS[check](broken(every_mode))


def test_modes_that_a_contract_lacks_are_refused(folder: Path, model: Cosmos3Model, every_mode: Contract) -> None:
    with pytest.raises(ContractError, match="forward_dynamics"):
        load_world_model(folder)
    with pytest.raises(ContractError, match="inverse_dynamics"):
        load_inverse_model(folder)
    only_video = changed(every_mode, modes=("forward_dynamics",))
    with pytest.raises(ContractError, match="wam"):
        Cosmos3JointPolicy(dataclasses.replace(model.checkpoint, contract=only_video))
    with pytest.raises(UnknownNameError, match="still"):
        load_world_model("stil")
    with pytest.raises(InputError, match="needs a contract"):
        load_inverse_model("still")


def test_one_copy_of_the_weights(model: Cosmos3Model) -> None:
    users = Cosmos3Policy(model), Cosmos3JointPolicy(model), Cosmos3WorldModel(model), Cosmos3InverseModel(model)
    assert {id(user.model.checkpoint.transformer) for user in users} == {id(model.checkpoint.transformer)}
    observation = some_observation(model.contract)
    Cosmos3Policy(model).act([observation], [0])
    encoded = model.texts.encoded
    Cosmos3WorldModel(model).imagine([observation], [some_chunk(model.contract)], [0])
    assert model.texts.encoded == encoded  # text is shared too


def test_a_checkpoint_acts_in_its_first_mode(video_folder: Path) -> None:
    assert type(load_policy(video_folder)) is Cosmos3Policy


def test_nothing_is_decoded_before_somebody_looks(model: Cosmos3Model) -> None:
    observation, chunk = some_observation(model.contract), some_chunk(model.contract)
    (video,) = Cosmos3WorldModel(model).imagine([observation], [chunk], [0])
    ((acted, foreseen),) = Cosmos3JointPolicy(model).foresee([observation], [0])
    (longer,) = Cosmos3WorldModel(model).extend([video], [chunk], [0], carry="latent")
    assert not (video.video.decoded or foreseen.video.decoded or longer.video.decoded)
    assert video.frames is video.frames and not video.frames.flags.writeable
    assert np.array_equal(acted.values, Cosmos3JointPolicy(model).act([observation], [0])[0].values)


def test_the_same_observation_for_many_candidates_is_encoded_once(model: Cosmos3Model, monkeypatch) -> None:
    encoded = []
    real = model._encode_first
    monkeypatch.setattr(model, "_encode_first", lambda canvases: encoded.append(len(canvases)) or real(canvases))
    observation, other = some_observation(model.contract, 1), some_observation(model.contract, 2)
    chunks = Cosmos3Policy(model).act([observation, other, observation], [0, 0, 1])
    assert encoded == [2]
    alone = Cosmos3Policy(model).act([observation], [1])[0]
    np.testing.assert_allclose(chunks[2].values, alone.values, atol=1e-4)


def test_actions_and_pictures_decide_what_is_imagined(model: Cosmos3Model) -> None:
    world, observation = Cosmos3WorldModel(model), some_observation(model.contract, 1)
    base = world.imagine([observation], [some_chunk(model.contract, 1)], [0])[0].latents
    for other in (
        world.imagine([observation], [some_chunk(model.contract, 2)], [0]),
        world.imagine([some_observation(model.contract, 2)], [some_chunk(model.contract, 1)], [0]),
        world.imagine([observation], [some_chunk(model.contract, 1)], [1]),
    ):
        assert (other[0].latents - base).abs().max() > 1e-5


def test_labels_read_every_frame(model: Cosmos3Model) -> None:
    inverse = Cosmos3InverseModel(model)
    moments = [some_observation(model.contract, i) for i in range(inverse.frames)]
    clip = inverse.clip(moments)
    base = inverse.label([clip], [0])[0].values[:, :3]
    late = clip.frames.copy()
    late[-1] = 255 - late[-1]
    other = inverse.label([dataclasses.replace(clip, frames=late)], [0])[0].values[:, :3]
    assert np.abs(other - base).max() > 1e-6


def test_an_imagined_video_can_be_labelled(model: Cosmos3Model) -> None:
    """Decoded frames are what the inverse model reads, though they may be smaller than a padded canvas."""
    (video,) = Cosmos3WorldModel(model).imagine([some_observation(model.contract)], [some_chunk(model.contract)], [0])
    inverse = Cosmos3InverseModel(model)
    assert inverse.label([Clip(video.frames, video.instruction)], [0])[0].values.shape == (4, 4)
    with pytest.raises(InputError, match="the model's canvas"):
        inverse.label([Clip(video.frames[:, :-16], video.instruction)], [0])


def test_history_is_read_and_may_be_short(model: Cosmos3Model) -> None:
    policy, observation = Cosmos3Policy(model), some_observation(model.contract)
    past = np.linspace(-1, 1, 8).reshape(2, 4)
    short, long = (dataclasses.replace(observation, history=past[-n:]) for n in (1, 2))
    none, one, two = (c.values[:, :3] for c in policy.act([observation, short, long], [0, 0, 0]))
    assert np.abs(one - none).max() > 1e-6 and np.abs(two - one).max() > 1e-6
    alone = policy.act([short], [0])[0].values[:, :3]
    np.testing.assert_allclose(alone, one, atol=1e-5)
    with pytest.raises(InputError, match="takes 0 to 2"):
        policy.act([dataclasses.replace(observation, history=np.zeros((3, 4)))], [0])
    with pytest.raises(InputError, match="rows of 4"):
        policy.act([dataclasses.replace(observation, history=np.zeros((1, 3)))], [0])


def many(contract: Contract, seed: int, chunks: int = 3) -> ActionChunk:
    return some_chunk(contract, seed, chunks)


@pytest.mark.parametrize("carry", ["pixels", "latent"])
def test_nothing_later_changes_an_earlier_chunk(model: Cosmos3Model, carry: str) -> None:
    world, observation = Cosmos3WorldModel(model), some_observation(model.contract)
    actions = many(model.contract, 1)
    values = actions.values.copy()
    values[8:] = -values[8:]  # the third chunk
    later = ActionChunk(values, actions.rate_hz)
    a, b = (rollout(world, [observation], [acts], [3], carry=carry)[0] for acts in (actions, later))
    for k in (0, 1):
        assert torch.equal(a.chunks[k].latents, b.chunks[k].latents), f"chunk {k} knew of chunk 2"
    assert not torch.equal(a.chunks[2].latents, b.chunks[2].latents)
    assert np.array_equal(a.frames[:9], b.frames[:9]) and a.frames.shape[0] == 13
    shorter = rollout(world, [observation], [ActionChunk(values[:8], actions.rate_hz)], [3], carry=carry)[0]
    assert torch.equal(shorter.chunks[1].latents, a.chunks[1].latents)


def test_a_chunk_begins_with_the_end_of_the_last(model: Cosmos3Model) -> None:
    world, chunk = Cosmos3WorldModel(model), some_chunk(model.contract)
    videos = world.imagine([some_observation(model.contract)], [chunk], [0])
    (pixels,) = world.extend(videos, [chunk], [1])
    torch.testing.assert_close(pixels.latents[:, :1], model.encode_frame(videos[0].frames[-1]))
    (latent,) = world.extend(videos, [chunk], [1], carry="latent")
    assert torch.equal(latent.latents[:, 0], videos[0].latents[:, -1])
    assert pixels.start_time == videos[0].end_time == pytest.approx(4 / 20)


def test_the_next_chunk_reads_the_last_commands(model: Cosmos3Model) -> None:
    """With history rows; a contract without them forgets the commands and keeps the picture only."""
    observation, chunk = some_observation(model.contract), some_chunk(model.contract, 1)
    for length, reads in ((2, True), (0, False)):
        contract = changed(model.contract, history_rows=length)
        world = Cosmos3WorldModel(dataclasses.replace(model.checkpoint, contract=contract))
        (video,) = world.imagine([observation], [chunk], [0])
        other = dataclasses.replace(video, actions=some_chunk(model.contract, 2))
        a, b = world.extend([video, other], [chunk, chunk], [1, 1], carry="latent")
        assert bool((a.latents - b.latents).abs().max() > 1e-6) == reads


def test_rollouts_side_by_side_equal_rollouts_alone(model: Cosmos3Model) -> None:
    world = Cosmos3WorldModel(model)
    starts, actions = [some_observation(model.contract, i) for i in (1, 2)], [many(model.contract, i) for i in (1, 2)]
    together = rollout(world, starts, actions, [3, 4], carry="latent")
    alone = rollout(world, starts[1:], actions[1:], [4], carry="latent")[0]
    for a, b in zip(together[1].chunks, alone.chunks, strict=True):
        torch.testing.assert_close(a.latents, b.latents, atol=1e-4, rtol=0)
    assert chunk_seed(3, 0) == 3 and len({chunk_seed(s, k) for s in (3, 4) for k in range(3)}) == 6


def test_rollouts_that_do_not_fit_are_refused_at_once(checkpoint: Checkpoint, model: Cosmos3Model) -> None:
    world, start, contract = StillWorld(model.contract), some_observation(model.contract), model.contract
    assert rollout(world, [], [], []) == []
    with pytest.raises(InputError, match="whole number of chunks"):
        rollout(world, [start], [ActionChunk(np.zeros((5, 4)), 20)], [0])
    with pytest.raises(InputError, match="equally long"):
        rollout(world, [start, start], [many(contract, 0, 1), many(contract, 0, 2)], [0, 1])
    with pytest.raises(InputError, match="as many of each"):
        rollout(world, [start], [many(contract, 0)], [0, 1])
    stateful = StillWorld(changed(contract, state_row=True))
    with pytest.raises(InputError, match="2 states"):
        rollout(stateful, [start], [many(contract, 0)], [0])
    assert rollout(stateful, [start], [many(contract, 0)], [0], [[start.state] * 2])[0].frames.shape[0] == 13


def test_only_own_predictions_are_extended(model: Cosmos3Model) -> None:
    world, chunk = Cosmos3WorldModel(model), some_chunk(model.contract)
    foreign = StillWorld(model.contract).imagine([some_observation(model.contract)], [chunk], [0])
    with pytest.raises(InputError, match="one of 'still'"):
        world.extend(foreign, [chunk], [0])


def test_what_a_video_announces_must_come() -> None:
    chunk = ActionChunk(np.zeros((4, 1)), 20)
    wrong = VideoPrediction(LazyFrames(lambda: np.zeros((4, 8, 8, 3), np.uint8), (5, 8, 8, 3)), chunk, "a", 20)
    with pytest.raises(InputError, match="announced"):
        wrong.frames  # noqa: B018
    with pytest.raises(InputError, match="expected shape"):
        LazyFrames(lambda: None, (0, 8, 8, 3))
