import dataclasses

import numpy as np
import pytest
import torch
from dots import draw_episode
from recipe import ALL_MODES, dot_contract, dots, small_checkpoint

from cosmos_robot.actions.codec import Codec
from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.contract import Contract, GripperSpec, ModelSpace
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import compose_canvas
from cosmos_robot.policies.cosmos3_model import Cosmos3Model
from cosmos_robot.training.cache import EpisodeList
from cosmos_robot.training.clips import Clips, clip_store, fitted_contract
from cosmos_robot.training.model_batches import StreamSamples
from cosmos_robot.training.model_config import PostTraining, Stream
from cosmos_robot.training.order import Draw
from cosmos_robot.types import Observation

FLOORS = {"state": 0.01, "action": 0.1}


@pytest.fixture(scope="module")
def model(contract) -> Contract:
    return dot_contract(contract)


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    return load_checkpoint(small_checkpoint(tmp_path_factory.mktemp("clips"), model))


def moving(seed: int, rows: int = 9):
    """An episode whose pictures change from row to row."""
    episode = draw_episode(seed, rows)
    shifted = [np.roll(frame, 5 * row, axis=1) for row, frame in enumerate(episode.images["top"])]
    return dataclasses.replace(episode, images={**episode.images, "top": np.stack(shifted)})


def store(source, contract, checkpoint, folder, modes=ALL_MODES, **options):
    stream = Stream(name="dots", contract=contract, modes=modes, **options)
    return clip_store(source, stream, checkpoint.vae, folder, progress=False)


def observation(episode, row: int, history=None) -> Observation:
    images = {name: frames[row] for name, frames in episode.images.items()}
    return Observation(images, {"eef_position": episode.state[row].astype(float)}, episode.instruction, 0.0, history)


def samples_of(clips: Clips, checkpoint, recipe: PostTraining) -> StreamSamples:
    return StreamSamples(0, clips, clips.contract, checkpoint.tokenizer, recipe, 16, 1)


def test_training_sees_the_latents_that_the_model_sees_when_it_runs(model, checkpoint, tmp_path):
    """The first picture of a policy, the whole clip of an inverse model."""
    episode = moving(1)
    latents = store(EpisodeList([episode]), model, checkpoint, tmp_path)[0].latents
    running = Cosmos3Model(checkpoint)
    assert latents.shape == (9, 48, 2, 4, 6)
    for row in (0, 3, 4):
        first = running.first_latents([observation(episode, row)])[0]
        shown = [{n: f[row + k] for n, f in episode.images.items()} for k in range(5)]
        clip = np.stack([compose_canvas(model, pictures) for pictures in shown])
        whole = running.clip_latents([clip])[0]
        torch.testing.assert_close(torch.from_numpy(latents[row, :, :1]).float(), first, atol=4e-3, rtol=2e-3)
        torch.testing.assert_close(torch.from_numpy(latents[row]).float(), whole, atol=4e-3, rtol=2e-3)
        assert (whole[:, 1] - whole[:, 0]).abs().max() > 0.05


def test_training_rows_are_those_of_the_policy(contract, checkpoint, tmp_path):
    """State, history and text too, before noise."""
    past = dot_contract(contract, history_rows=3, modes=("policy",))
    source = EpisodeList([moving(seed) for seed in range(3)])
    stores = [store(source, past, checkpoint, tmp_path, modes={"policy": 1.0}, stride=2)]
    fitted = fitted_contract(past, stores, 2, "quantile", FLOORS)
    clips = Clips(stores, fitted, 2)
    samples = samples_of(clips, checkpoint, PostTraining())
    episode = source[1]
    commands = episode.actions[:, :2].reshape(-1, 4)  # rows are two control steps apart
    draw = Draw(0, 0, 1, 2, "policy", 0.5, 1.0, False, (0,))
    batch = samples.batch([draw], [samples.prompt(draw)])
    running = Cosmos3Model(dataclasses.replace(checkpoint, contract=fitted))
    seen = observation(episode, 2, commands[1:4].astype(float))
    rows = running._rows([seen], None)[0]
    assert batch.plan.rows == len(rows) == 8 and batch.plan.action_start == -3
    torch.testing.assert_close(batch.flow.history[0], rows[:3])
    torch.testing.assert_close(batch.flow.state[0], rows[3, :3])
    codec = Codec(fitted)
    np.testing.assert_allclose(batch.flow.actions[0], codec.encode_actions(episode.actions[2]), atol=1e-6)
    text, index, _ = running._read([episode.instruction], "policy")
    assert text.lengths[index[0]] == len(batch.prompts[0])


def test_each_mode_gives_and_hides_what_it_should(model, checkpoint, tmp_path):
    stores = [store(EpisodeList([moving(seed) for seed in range(3)]), model, checkpoint, tmp_path)]
    clips = Clips(stores, fitted_contract(model, stores, 2, "quantile", FLOORS), 2)
    samples = samples_of(clips, checkpoint, PostTraining())
    shapes = {}
    for mode in ALL_MODES:
        draw = Draw(0, 0, 1, 1, mode, 0.5, 1.0, False, (0,))
        batch = samples.batch([draw], [samples.prompt(draw)])
        assert (batch.noise.action is not None) == (mode != "forward_dynamics")
        assert (batch.noise.video is not None) == (mode in ("wam", "forward_dynamics"))
        shapes[mode] = batch.flow.latents.shape[2]
        again = samples.batch([draw], [samples.prompt(draw)])
        for name in ("action", "video"):
            one, two = getattr(batch.noise, name), getattr(again.noise, name)
            assert one is None or torch.equal(one, two)
        assert samples.tokens(draw) == len(samples.prompt(draw)) + 24 * shapes[mode] + 5
    assert shapes == {"policy": 1, "wam": 2, "forward_dynamics": 2, "inverse_dynamics": 2}


def test_noise_on_inputs_spares_what_is_to_be_learnt(model, checkpoint, tmp_path):
    stores = [store(EpisodeList([moving(seed) for seed in range(3)]), model, checkpoint, tmp_path)]
    clips = Clips(stores, fitted_contract(model, stores, 2, "quantile", FLOORS), 2)
    samples = samples_of(clips, checkpoint, PostTraining(latent_noise=0.5, state_noise=0.5))
    draw = Draw(0, 0, 1, 1, "wam", 0.5, 1.0, False, (0,))
    noisy, plain = (samples.batch([draw], [samples.prompt(draw)], noisy_inputs=n).flow for n in (True, False))
    assert not torch.equal(noisy.latents[:, :, 0], plain.latents[:, :, 0]) and not torch.equal(noisy.state, plain.state)
    assert torch.equal(noisy.latents[:, :, 1], plain.latents[:, :, 1]) and torch.equal(noisy.actions, plain.actions)


def test_what_lies_past_the_end_is_marked(model, checkpoint, tmp_path):
    raw = store(EpisodeList([moving(1)]), model, checkpoint, tmp_path)[0]
    assert raw.seen[:, 0].all() and raw.seen[:5, 1].all() and not raw.seen[5:, 1].any()
    assert not raw.valid[-1, 2:].any() and raw.valid[:-1].all()


def test_pictures_stand_apart_as_the_contract_says(contract, checkpoint, tmp_path):
    """Two commands a picture, rows two control steps apart: every row; then every second."""
    episode = moving(1, rows=20)
    long = dataclasses.replace(episode, actions=np.repeat(episode.actions, 4, 1), valid=np.ones((20, 16), bool))
    for gap, step in ((2, 1), (4, 2)):
        wide = dot_contract(contract, actions_per_frame=gap, chunk=4 * gap)
        raw = store(EpisodeList([long]), wide, checkpoint, tmp_path, stride=2, every=3)[0]
        shown = [{n: f[3 + step * k] for n, f in episode.images.items()} for k in range(5)]
        clip = np.stack([compose_canvas(wide, pictures) for pictures in shown])
        want = Cosmos3Model(dataclasses.replace(checkpoint, contract=wide)).clip_latents([clip])[0]
        torch.testing.assert_close(torch.from_numpy(raw.latents[1]).float(), want, atol=4e-3, rtol=2e-3)
        np.testing.assert_array_equal(raw.state[1], long.state[3])


def test_a_stopped_build_goes_on(model, checkpoint, tmp_path):
    whole = store(dots(3), model, checkpoint, tmp_path / "whole")

    class Breaking(EpisodeList):
        def __getitem__(self, index):
            if index == 2:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    source = dots(3)
    breaking = Breaking([source[i] for i in range(3)])
    with pytest.raises(KeyboardInterrupt):
        store(breaking, model, checkpoint, tmp_path / "cut")
    read = []

    class Counting(EpisodeList):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    again = store(Counting([source[i] for i in range(3)]), model, checkpoint, tmp_path / "cut")
    assert read == [2] and again.lengths == whole.lengths
    np.testing.assert_array_equal(again[2].latents, whole[2].latents)


def test_statistics_are_of_the_models_own_space(model, checkpoint, tmp_path):
    gripper = GripperSpec(field="gripper", open_value=0, closed_value=10, kind="binary")
    tens = dot_contract(model, action_space=ModelSpace(fields=model.robot.action, gripper=gripper))
    stores = [store(dots(4), model, checkpoint, tmp_path)]
    own, other = (
        fitted_contract(c, stores, 2, "minmax", FLOORS).model.action_normalization.statistics for c in (model, tens)
    )
    assert (own.min[3], own.max[3]) == (-1, 1) and (other.min[3], other.max[3]) == (0, 10)
    training = np.concatenate([dots(4)[i].actions[dots(4)[i].valid] for i in (1, 3)])
    np.testing.assert_allclose(own.max, training.max(0), rtol=1e-6)
    plain = fitted_contract(model, stores, 2, "minmax", FLOORS)
    assert fitted_contract(plain, stores, 2, "quantile", FLOORS) == plain


def test_refusals(contract, model, checkpoint, tmp_path):
    blind = dot_contract(contract, sees=False)
    with pytest.raises(ContractError, match="is blind"):
        store(dots(2), blind, checkpoint, tmp_path)
    with pytest.raises(InputError, match="4 commands per row, the model predicts 8"):
        store(dots(2), dot_contract(contract, chunk=8), checkpoint, tmp_path, modes={"policy": 1.0})
    with pytest.raises(InputError, match="record more than one"):
        Clips([store(dots(1), model, checkpoint, tmp_path)], model, 2)


def test_a_stride_other_than_the_datasets_is_refused(model, checkpoint, tmp_path):
    episodes = [draw_episode(seed, rows=9) for seed in range(2)]
    recorded = EpisodeList(episodes, stride=5)
    with pytest.raises(InputError, match=r"stride 1, but its episodes were recorded with 5 .*set stride=5"):
        store(recorded, model, checkpoint, tmp_path)
    policy = {"policy": 1.0}
    assert len(store(recorded, model, checkpoint, tmp_path, policy, stride=5)) == 2
    assert len(store(EpisodeList(episodes), model, checkpoint, tmp_path, policy, stride=3)) == 2, "not known"


@pytest.mark.parametrize("mode", ["wam", "forward_dynamics", "inverse_dynamics"])
def test_labels_that_were_never_sent_are_no_dynamics(model, checkpoint, tmp_path, mode):
    labelled = EpisodeList([draw_episode(0, rows=9), draw_episode(1, rows=9, dagger=True)])
    with pytest.raises(InputError, match="episode 1: its commands are labels that were never sent"):
        store(labelled, model, checkpoint, tmp_path, modes={"policy": 1.0, mode: 1.0})


def test_labels_that_were_never_sent_are_no_history(contract, model, checkpoint, tmp_path):
    labelled, policy = EpisodeList([draw_episode(1, rows=9, dagger=True)]), {"policy": 1.0}
    past = dot_contract(contract, history_rows=2, modes=("policy",))
    with pytest.raises(InputError, match="never sent"):
        store(labelled, past, checkpoint, tmp_path, modes=policy)
    assert len(store(labelled, model, checkpoint, tmp_path, modes=policy)) == 1


def disturbed(seed: int):
    """An episode with a command a row, and what was sent instead."""
    episode = moving(seed)
    sent = episode.actions[:, 0] + np.float32(0.125)
    return dataclasses.replace(episode, extras={**episode.extras, "executed": sent}), sent


def test_dynamics_learn_what_was_sent_and_policies_what_was_wanted(contract, checkpoint, tmp_path):
    past = dot_contract(contract, history_rows=2)
    made = [disturbed(seed) for seed in range(3)]
    stores = [store(EpisodeList([episode for episode, _ in made]), past, checkpoint, tmp_path)]
    clips = Clips(stores, fitted_contract(past, stores, 2, "quantile", FLOORS), 2)
    samples, codec = samples_of(clips, checkpoint, PostTraining()), Codec(clips.contract)
    episode, sent = made[1]
    for mode in ALL_MODES:
        draw = Draw(0, 0, 1, 3, mode, 0.5, 1.0, False, (0,))
        batch = samples.batch([draw], [samples.prompt(draw)])
        of_dynamics = mode in ("forward_dynamics", "inverse_dynamics")
        wanted = sent[3:7] if of_dynamics else episode.actions[3]
        np.testing.assert_allclose(batch.flow.actions[0], codec.encode_actions(wanted), atol=1e-5, err_msg=mode)
        np.testing.assert_allclose(batch.flow.history[0], codec.encode_actions(sent[1:3]), atol=1e-5)
    np.testing.assert_array_equal(stores[0][1].executed[-1], np.repeat(sent[-1:], 4, 0), "past the end, the last one")


def test_executed_commands_that_do_not_fit_are_refused(contract, model, checkpoint, tmp_path):
    episode, sent = disturbed(0)
    narrow = dataclasses.replace(episode, extras={"executed": sent[:, :2]})
    with pytest.raises(InputError, match=r"extra 'executed' is \(9, 2\) at stride 1; expected \(9, 4, 4\), or"):
        store(EpisodeList([narrow]), model, checkpoint, tmp_path)
    past, policy = dot_contract(contract, history_rows=2, modes=("policy",)), {"policy": 1.0}
    with pytest.raises(InputError, match=r"\(9, 4\) at stride 2"):
        store(EpisodeList([episode]), past, checkpoint, tmp_path, policy, stride=2)
    chunks = dataclasses.replace(episode, extras={"executed": episode.actions + np.float32(0.5)})
    kept = store(EpisodeList([chunks]), past, checkpoint, tmp_path, policy, stride=2)[0]
    np.testing.assert_array_equal(kept.executed, kept.actions + np.float32(0.5))


def test_a_blind_stream_reads_no_picture(contract, checkpoint, tmp_path):
    blind = dot_contract(contract, sees=False, modes=("policy",))
    raw = store(dots(1), blind, checkpoint, tmp_path, modes={"policy": 1.0})[0]
    dark = Cosmos3Model(dataclasses.replace(checkpoint, contract=blind)).first_latents([None])[0]
    torch.testing.assert_close(torch.from_numpy(raw.latents[4]).float(), dark, atol=4e-3, rtol=2e-3)
