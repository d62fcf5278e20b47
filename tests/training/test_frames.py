"""Joint training over latent frames: what is drawn, what a frame holds and learns, where a run begins and ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dots import draw_episode

from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.backbone.cosmos3.patches import with_patch
from cosmos_robot.backbone.cosmos3.positions import rotary_angles
from cosmos_robot.backbone.cosmos3.runtime import encode_text, velocity
from cosmos_robot.backbone.cosmos3.sharpness import with_finer_places
from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.contract import Contract, ModelSpec
from cosmos_robot.data.rollouts import Rollout
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.latent_frames.fill import action_rows, future_state, values
from cosmos_robot.latent_frames.objective import Targets
from cosmos_robot.policies import load_policy, load_value_model, load_world_model
from cosmos_robot.training.cache import EpisodeList, frame_cache
from cosmos_robot.training.frame_augment import PictureChange, changed, changed_canvases, draw_change
from cosmos_robot.training.frame_config import FrameTraining
from cosmos_robot.training.frame_learner import FrameLearner
from cosmos_robot.training.frame_rows import DEMO, FAILURE, SUCCESS, FrameSource, join_frames
from cosmos_robot.training.frame_trainer import begun_contract, frame_batches, train_frames
from cosmos_robot.training.latents import latent_cache

STRIDE, CHUNK = 2, 4
FRAMES = ("state", "pictures", "action", "future state", "future pictures", "value")
SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def framed(contract: Contract) -> Contract:
    changes = {
        "modes": ("policy", "world_model", "value"),
        "chunk": CHUNK,
        "execute": CHUNK,
        "actions_per_frame": CHUNK,
        "frames": FRAMES,
        "frame_encoding": "stills",
    }
    return Contract(robot=contract.robot, model=ModelSpec.model_validate(contract.model.model_dump() | changes))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Path:
    folder = tmp_path_factory.mktemp("start") / "dots"
    return save_untrained(folder, contract, ["go to the red block", "go to the green block"], **SMALL)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def rollout(seed: int, success: bool) -> Rollout:
    """Four decisions, of which the last is cut short."""
    episode = draw_episode(seed, rows=5)
    valid = np.ones((4, CHUNK), bool)
    valid[-1, 1:] = False
    return Rollout(
        episode.instruction, episode.images, episode.state, episode.actions[:4], valid, success, float(success),
        "dots", 0, seed, "nobody",
    )  # fmt: skip


@pytest.fixture(scope="module")
def sources(framed: Contract, start: Path, cache: Path) -> list[FrameSource]:
    vae = load_checkpoint(start, dtype=torch.float32).vae
    demos = frame_cache(EpisodeList([draw_episode(seed) for seed in range(24)]), framed, cache, False)
    rolled = EpisodeList([rollout(100 + i, i % 2 == 0).episode() for i in range(6)])
    ended = frame_cache(rolled, framed, cache, False, ends=True)
    outcomes = tuple(float(i % 2 == 0) for i in range(6))
    return [
        FrameSource(demos, latent_cache(demos, vae, False), STRIDE),
        FrameSource(ended, latent_cache(ended, vae, False), CHUNK, outcomes),
    ]


def settings(framed: Contract, start: Path, cache: Path, out: Path, **changes) -> FrameTraining:
    given = {"steps": 3, "batch": 8, "compute": "float32", "patch": 2, "hidden_at": 1, "threads": 1, "progress": False}
    return FrameTraining(
        out=out, demos=(Path("unread"),), cache=cache, start=start, contract=framed, **(given | changes)
    )  # fmt: skip


@pytest.fixture(scope="module")
def config(framed: Contract, start: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> FrameTraining:
    return settings(framed, start, cache, tmp_path_factory.mktemp("runs") / "run")


def learner_of(config: FrameTraining, sources) -> FrameLearner:
    begun = load_checkpoint(config.start, dtype=torch.float32)
    batches = frame_batches(config, begun, begun_contract(config, begun), sources)
    return FrameLearner(with_patch(begun.transformer, config.patch, config.seed), batches, config)


def test_a_row_is_a_moment_commands_the_moment_after_and_its_value(framed: Contract, sources) -> None:
    rows = join_frames(framed, sources, 0.9, "eef_position")
    demo = np.flatnonzero(rows.source == DEMO)[:6]  # the first episode: 6 moments, 12 commands
    np.testing.assert_array_equal(rows.later[demo] - rows.now[demo], [2, 2, 2, 2, 1, 0])
    np.testing.assert_allclose((rows.value[demo] + 1) / 2, 0.9 ** np.array([8, 6, 4, 2, 0, 0.0]), rtol=1e-6)
    rolled = np.flatnonzero(rows.source != DEMO)
    assert [int((rows.source == s).sum()) for s in (SUCCESS, FAILURE)] == [12, 12]
    np.testing.assert_array_equal(rows.later[rolled] - rows.now[rolled], 1)
    assert set(rows.value[rows.source == FAILURE].tolist()) == {-1.0}
    won = np.flatnonzero(rows.source == SUCCESS)[:4]
    np.testing.assert_allclose((rows.value[won] + 1) / 2, 0.9 ** np.array([9, 5, 1, 0.0]), rtol=1e-6)


def test_the_moment_that_ends_a_rollout_is_seen(framed: Contract, sources) -> None:
    rows = join_frames(framed, sources, 0.9, "eef_position")
    last = np.flatnonzero(rows.source == SUCCESS)[3]
    assert rows.later[last] not in rows.now and rows.valid[last].tolist() == [True, False, False, False]


def test_a_chunk_must_end_at_a_recorded_moment(framed: Contract, sources) -> None:
    with pytest.raises(InputError, match="whole number"):
        join_frames(framed, [replace(sources[0], stride=3)], 0.9, "eef_position")
    with pytest.raises(InputError, match="executes its whole chunk"):
        join_frames(framed, [replace(sources[1], stride=2)], 0.9, "eef_position")


def test_every_frame_holds_what_the_layout_says(config: FrameTraining, sources) -> None:
    batches = learner_of(config, sources).batches
    rows, index = batches.rows, np.array([0, 7])
    truth = batches.batch("policy", index).clean_latents
    np.testing.assert_allclose(action_rows(truth, batches.layout, CHUNK, 4), rows.actions[index], atol=1e-6)
    np.testing.assert_allclose(future_state(truth, batches.layout, 3), rows.later_state[index], atol=1e-6)
    np.testing.assert_allclose(values(truth, batches.layout), (rows.value[index] + 1) / 2, atol=1e-6)
    np.testing.assert_array_equal(truth[:, :, 1].numpy(), rows.latents(rows.now[index]).astype(np.float32))
    np.testing.assert_array_equal(truth[:, :, 4].numpy(), rows.latents(rows.later[index]).astype(np.float32))


def test_what_is_given_and_what_learns(config: FrameTraining, sources) -> None:
    batches = learner_of(replace(config, future_weight=0.5, value_weight=2.0), sources).batches
    found = {kind: batches.batch(kind, np.array([0])) for kind in ("policy", "world_model", "value")}
    assert found["policy"].plan.clean_frames == (True, True, False, False, False, False)
    assert found["world_model"].plan.clean_frames == (True, True, True, False, False, False)
    assert found["value"].plan.clean_frames == (True, True, True, True, True, False)
    assert found["policy"].weights[0].tolist() == [0, 0, 1, 0.5, 0.5, 2]
    assert found["world_model"].weights[0].tolist() == [0, 0, 0, 0.5, 0.5, 2]
    assert found["value"].weights[0].tolist() == [0, 0, 0, 0, 0, 2]
    alone = learner_of(replace(config, targets=Targets.alone("value_of_future")), sources).batches
    assert alone.batch("policy", np.array([0])).weights[0].tolist() == [0, 0, 1, 0, 0, 0]
    assert alone.batch("value", np.array([0])).plan.clean_frames == (False, False, False, True, True, False)


def test_filled_in_commands_carry_no_loss(config: FrameTraining, sources) -> None:
    batches = learner_of(config, sources).batches
    short = np.flatnonzero(batches.rows.valid.sum(1) == 1)[:1]
    elements = batches.batch("policy", short).elements
    assert elements is not None and bool((elements[:, :, [0, 1, 3, 4, 5]] == 1).all())
    kept = action_rows(elements, batches.layout, CHUNK, 4)[0]
    assert kept[0].tolist() == [1] * 4 and not kept[1:].any()


def test_an_epoch_has_the_published_shares(config: FrameTraining, sources) -> None:
    learner, counts = learner_of(replace(config, batch=1), sources), {"policy": 0, "world_model": 0, "value": 0}
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for step in range(len(learner.mix)):
        ((kind, index),) = learner._draw(step, generator).items()
        counts[kind] += 1
        drawn.append(int(index[0]))
    assert counts["policy"] / len(learner.mix) == pytest.approx(0.5, abs=0.02)
    assert counts["world_model"] / len(learner.mix) == pytest.approx(0.25, abs=0.06)
    rows = learner.batches.rows
    assert set(drawn) == set(np.flatnonzero(~rows.validation).tolist())


def test_without_rollouts_demonstrations_stand_in(config: FrameTraining, sources) -> None:
    learner = learner_of(config, sources[:1])
    drawn = learner._draw(0, torch.Generator().manual_seed(0))
    assert set(drawn) == {"policy", "world_model", "value"}


def test_it_begins_with_the_pretrained_weights(config: FrameTraining, sources, tmp_path: Path) -> None:
    """The published code does not; here a run that learns nothing exports what it began with."""
    still = replace(config, out=tmp_path / "still", patch=1, lr=1e-30, steps=1)
    exported = load_checkpoint(train_frames(still, sources=sources), dtype=torch.float32).transformer.state_dict()
    begun = load_checkpoint(config.start, dtype=torch.float32).transformer.state_dict()
    assert set(begun) == set(exported)
    moved = {name: float((begun[name] - exported[name]).abs().max()) for name in begun}
    assert {name: by for name, by in moved.items() if by > 1e-20} == {}


def test_a_larger_patch_keeps_every_other_weight(config: FrameTraining) -> None:
    begun = load_checkpoint(config.start, dtype=torch.float32).transformer
    wider = with_patch(begun, 2)
    old, new = begun.state_dict(), wider.state_dict()
    changed_ones = {name for name in old if old[name].shape != new[name].shape}
    assert changed_ones == {"proj_in.weight", "proj_out.weight", "proj_out.bias"}
    assert all(torch.equal(old[name], new[name]) for name in set(old) - changed_ones)
    same = torch.randn(1, 48, 1, 1, 1).expand(1, 48, 1, 2, 2)  # four equal cells are read as one cell was
    token = same.permute(0, 2, 3, 4, 1).reshape(1, 1, -1)
    together = wider.proj_in(token) - wider.proj_in.bias
    assert torch.nn.functional.cosine_similarity(
        together, begun.proj_in(token[..., :48]) - begun.proj_in.bias, dim=-1
    ) > 0.99  # fmt: skip
    with pytest.raises(InputError, match="patch"):
        with_patch(wider, 4)


def test_futures_follow_from_what_was_sent(
    config: FrameTraining, framed: Contract, start: Path, tmp_path: Path
) -> None:
    shaken = [draw_episode(seed) for seed in range(24)]
    shaken = [replace(e, extras={**e.extras, "executed": e.actions + 0.25}) for e in shaken]
    demos = frame_cache(EpisodeList(shaken, stride=STRIDE), framed, tmp_path, False)
    vae = load_checkpoint(start, dtype=torch.float32).vae
    batches = learner_of(config, [FrameSource(demos, latent_cache(demos, vae, False), STRIDE)]).batches
    rows, index = batches.rows, np.array([0, 7])
    assert np.abs(rows.executed - rows.actions).max() > 0.05
    for kind, expected in (("policy", rows.actions), ("world_model", rows.executed), ("value", rows.executed)):
        truth = batches.batch(kind, index).clean_latents
        np.testing.assert_allclose(action_rows(truth, batches.layout, CHUNK, 4), expected[index], atol=1e-6)


def test_demonstrations_that_train_no_policy_join_the_rollouts(config: FrameTraining, sources) -> None:
    apart, together = (learner_of(replace(config, demo_share=share), sources) for share in (0.5, 0.0))
    assert together.mix.there[1] == sum(apart.mix.there[:2]) > apart.mix.there[1]
    assert together.mix.places[0] == 0


def test_finer_places_tell_cells_apart(config: FrameTraining) -> None:
    begun = load_checkpoint(config.start, dtype=torch.float32).transformer
    finer = with_finer_places(begun, 100.0, 3.0, fastest=1)
    assert finer.config.rope_theta == 100.0 != begun.config.rope_theta
    old, new, half = begun.state_dict(), finer.state_dict(), begun.config.head_dim // 2
    for name, weight in old.items():
        expected = weight.clone()
        if "norm_added_" in name:
            expected[[1, 2, 1 + half, 2 + half]] *= 3
        assert torch.equal(new[name], expected), name
    cells = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])  # t, h, w of two cells, one below the other
    apart = [
        float(1 - torch.cos(rotary_angles(cells, begun.config.head_dim, theta, begun.config.rope_axes_dim)[1]).mean())
        for theta in (begun.config.rope_theta, 100.0)
    ]
    assert apart[1] > 2 * apart[0]
    with pytest.raises(InputError, match="theta > 1"):
        with_finer_places(begun, theta=0.0)


def test_a_run_comes_out_as_policy_world_and_value(config: FrameTraining, sources) -> None:
    exported = train_frames(config, sources=sources)
    assert load_policy(exported).contract.model.chunk == CHUNK
    assert load_world_model(exported) is not None and load_value_model(exported) is not None
    log = (config.out / "log.jsonl").read_text()
    for name in (
        "policy action",
        "world_model future pictures",
        "value value",
        "action_mae",
        "world_latents",
        "value_mae",
    ):
        assert f'"{name}"' in log


def test_it_learns(config: FrameTraining, sources) -> None:
    learner = learner_of(replace(config, batch=16, vector_weight=4.0), sources)
    losses = [learner.train_step(0, step, 3e-3) for step in range(60)]
    for name, share in {"policy value": 0.8, "world_model value": 0.85, "vector": 0.9}.items():
        first, last = (np.mean([step[name] for step in part]) for part in (losses[:4], losses[-8:]))
        assert last < share * first, name


def test_a_run_goes_on_bit_for_bit(config: FrameTraining, sources) -> None:
    whole, half = learner_of(config, sources), learner_of(config, sources)
    for step in range(4):
        whole.train_step(0, step, 1e-3)
    for step in range(2):
        half.train_step(0, step, 1e-3)
    resumed = learner_of(config, sources)
    resumed.load(half.state())
    resumed.validate()
    for step in range(2, 4):
        resumed.train_step(0, step, 1e-3)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_what_cannot_be_trained_is_refused(framed: Contract, config: FrameTraining) -> None:
    for changes, why in (({"frame_encoding": "video"}, "stills"), ({"frames": ()}, "empty")):
        model = framed.model.model_copy(update=changes)
        with pytest.raises(ContractError, match=why):
            replace(config, contract=Contract(robot=framed.robot, model=model))
    with pytest.raises(InputError, match="steps"):
        replace(config, steps=0)


NOTHING = PictureChange(0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 0.0)


def test_pictures_of_an_episode_change_alike(framed: Contract) -> None:
    picture = draw_episode(3).images["top"][:1]
    twice = changed(np.concatenate([picture, picture]), draw_change(np.random.default_rng(0)))
    np.testing.assert_array_equal(twice[0], twice[1])
    assert not np.array_equal(twice[:1], picture)
    flat = np.full((1, 8, 8, 3), 90, np.uint8)
    np.testing.assert_array_equal(changed(flat, NOTHING), flat)
    brighter = changed(flat, replace(NOTHING, brightness=1.2))
    np.testing.assert_array_equal(brighter, 108)
    with pytest.raises(InputError, match="uint8"):
        changed(flat.astype(np.float32), NOTHING)


def test_a_camera_changes_by_itself(framed: Contract) -> None:
    canvas = framed.model.canvas
    canvases = np.zeros((1, canvas.height, canvas.width, 3), np.uint8)
    canvases[:, :64, :64] = 200
    out = changed_canvases(canvas, canvases, replace(NOTHING, degrees=5.0))
    assert out[0, :, 64:].max() == 0 and out[0, 32, 32].tolist() == [200] * 3


def test_a_variant_points_nowhere_and_holds_nothing_out(framed: Contract, sources) -> None:
    rows = join_frames(framed, [sources[0], replace(sources[0], variant=True)], 0.9, "eef_position")
    single = join_frames(framed, sources[:1], 0.9, "eef_position")
    assert len(rows) == 2 * len(single) - int(single.validation.sum())
    assert not rows.seen[len(single) :].any() and not rows.validation[len(single) :].any()


def test_patched_velocity_fits_its_plan(config: FrameTraining, sources) -> None:
    learner = learner_of(config, sources)
    batch = learner.batches.batch("policy", np.array([0, 1]))
    transformer = learner.model["transformer"]
    found = velocity(
        transformer, batch.plan, encode_text(transformer, batch.prompts), batch.text_index, batch.given, None,
        torch.full((2,), 500.0), [5, 5], ("video",),
    )  # fmt: skip
    assert found.video is not None and found.video.shape == batch.given.shape


def test_a_contracts_clamp_holds_and_the_statistics_are_the_starts(framed, start, cache, sources, tmp_path) -> None:
    """What a rollout does beyond the demonstrations' range does not outweigh everything else."""
    kept = framed.model.state_normalization.model_copy(update={"clamp": 0.2})
    clamped = Contract(robot=framed.robot, model=framed.model.model_copy(update={"state_normalization": kept}))
    begun = load_checkpoint(start, dtype=torch.float32)
    config = settings(clamped, start, cache, tmp_path / "run")
    rows = learner_of(config, sources).batches.rows
    assert max(np.abs(rows.state).max(), np.abs(rows.later_state).max()) == pytest.approx(0.2)
    made = load_policy(train_frames(config, sources=sources)).contract.model.state_normalization
    assert made == begun.contract.model.state_normalization.model_copy(update={"clamp": 0.2})


def test_a_world_model_alone(framed: Contract, start: Path, cache: Path, sources, tmp_path: Path) -> None:
    """No value frame, no policy: every sample trains the future, and only that is measured."""
    model = framed.model.model_dump() | {
        "modes": ("world_model",), "frames": tuple(slot for slot in FRAMES if slot != "value")
    }  # fmt: skip
    alone = Contract(robot=framed.robot, model=ModelSpec.model_validate(model))
    config = settings(alone, start, cache, tmp_path / "run", demo_share=0.0, world_share=1.0)
    learner = learner_of(config, sources)
    assert set(learner.train_step(0, 0, 1e-3)) == {
        "world_model future state", "world_model future pictures", "norm"
    }  # fmt: skip
    assert set(learner.validate()) == {"world_latents", "world_state", "state_kept"}
    assert load_world_model(train_frames(config, sources=sources)).contract.model.modes == ("world_model",)
    with pytest.raises(InputError, match="world_share"):
        settings(alone, start, cache, tmp_path / "other", demo_share=0.0)
