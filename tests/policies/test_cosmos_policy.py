"""Cosmos Policy's verbs over one tiny checkpoint: the kits, what is given and what is not, chunks that go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.load import load_checkpoint as load_cosmos3
from cosmos_robot.backbone.cosmos3.untrained import save_untrained
from cosmos_robot.backbone.predict2.load import load_checkpoint, save_checkpoint
from cosmos_robot.backbone.predict2.text import TextEmbeddings
from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae
from cosmos_robot.contract import Contract, RobotSpec, Size
from cosmos_robot.contract.model import CanvasSpec, ModelSpec, PromptSpec, SamplerSpec
from cosmos_robot.contract.numbers import Normalization
from cosmos_robot.errors import CheckpointError, ContractError, InputError
from cosmos_robot.images import side_by_side
from cosmos_robot.latent_frames.fill import action_rows, future_state, injected
from cosmos_robot.latent_frames.volumes import averaged
from cosmos_robot.policies import conformance, conformance_video, load_policy, load_value_model, load_world_model
from cosmos_robot.policies.conformance import INSTRUCTIONS, some_observation
from cosmos_robot.policies.conformance_value import VALUE_CHECKS, run_value
from cosmos_robot.policies.conformance_video import some_chunk
from cosmos_robot.policies.cosmos3_frames import cosmos3_frame_model
from cosmos_robot.policies.cosmos_policy import cosmos_policy_model
from cosmos_robot.policies.latent_frames import (
    LatentFrameModel,
    LatentFramePolicy,
    LatentFrameValueModel,
    LatentFrameWorldModel,
)

FRAMES = ("blank", "state", "wrist", "front", "action", "future state", "future wrist", "future front", "value")


@pytest.fixture(scope="session")
def frame_contract(robot: RobotSpec) -> Contract:
    sizes = {c.name: Size(height=c.height, width=c.width) for c in robot.cameras if c.name != "ceiling"}
    placed = side_by_side({name: sizes[name] for name in ("wrist", "front")}, 16, 16)
    model = ModelSpec(
        name="small-frames",
        backbone="predict2",
        modes=("policy", "world_model", "value"),
        domain_id=None,
        chunk=4,
        execute=2,
        actions_per_frame=4,
        state_row=True,
        frames=FRAMES,
        canvas=CanvasSpec(height=16, width=32, placements=placed, arrangement="frames"),
        state_normalization=Normalization(method="identity"),
        action_normalization=Normalization(method="identity"),
        prompt=PromptSpec(template="instruction"),
        sampler=SamplerSpec(solver="edm_2ab", steps=3, noise="joint", sigma_min=4, sigma_max=80),
    )
    return Contract(robot=robot, model=model)


@pytest.fixture(scope="session")
def frame_folder(tmp_path_factory: pytest.TempPathFactory, frame_contract: Contract) -> Path:
    small = {"num_attention_heads": 2, "text_embed_dim": 8}
    texts = TextEmbeddings(tiny_texts(list(INSTRUCTIONS), 8), 6)
    return save_checkpoint(
        tmp_path_factory.mktemp("checkpoints") / "frames",
        transformer=tiny_transformer(0, **small),
        vae=tiny_vae(0, 4),
        texts=texts,
        contract=frame_contract,
        dtype=torch.float32,
    )


@pytest.fixture(scope="session")
def model(frame_folder: Path) -> LatentFrameModel:
    return cosmos_policy_model(load_checkpoint(frame_folder))


def test_policy_kit(model: LatentFrameModel) -> None:
    conformance.run(lambda: LatentFramePolicy(model))


def test_world_kit(model: LatentFrameModel) -> None:
    conformance_video.run_world(lambda: LatentFrameWorldModel(model))


@pytest.mark.parametrize("reads", ["value", "value_of_future", "q_value"])
def test_value_kit(model: LatentFrameModel, reads) -> None:
    run_value(lambda: (LatentFrameWorldModel(model), LatentFrameValueModel(model, reads)))


@pytest.fixture(scope="session")
def flow_folder(tmp_path_factory: pytest.TempPathFactory, frame_contract: Contract) -> Path:
    """The same layout over Cosmos 3's backbone."""
    canvas = frame_contract.model.canvas.model_dump() | {"height": 32, "width": 64}
    for i, place in enumerate(canvas["placements"]):
        place["to"] = {"top": 0, "left": 32 * i, "height": 32, "width": 32}
    changes = {
        "backbone": "cosmos3",
        "domain_id": 0,
        "canvas": canvas,
        "sampler": SamplerSpec(solver="unipc", steps=2).model_dump(),
    }
    model = ModelSpec.model_validate(frame_contract.model.model_dump() | changes)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    contract = Contract(robot=frame_contract.robot, model=model)
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "flow", contract, INSTRUCTIONS, **sizes)


def test_the_same_verbs_over_cosmos3(flow_folder: Path) -> None:
    world = load_world_model(flow_folder)
    policy, value = LatentFramePolicy(world.model), LatentFrameValueModel(world.model)
    for name in ("chunks_match_contract", "same_seed_same_chunk", "batch_equals_alone"):
        conformance.CHECKS[name](policy)
    conformance_video.check_videos_match_contract(world)
    assert VALUE_CHECKS["values_are_shares"](world, value) is None
    assert isinstance(load_policy(flow_folder), LatentFramePolicy)
    assert isinstance(load_value_model(flow_folder), LatentFrameValueModel)


WHOLE = ("state", "pictures", "action", "future state", "future pictures", "value")


@pytest.fixture(scope="session")
def whole_folder(tmp_path_factory: pytest.TempPathFactory, flow_folder: Path) -> Path:
    """All cameras in one latent frame, each frame encoded by itself, two cells to a token's side."""
    contract = Contract.load(flow_folder)
    canvas = contract.model.canvas.model_dump() | {"arrangement": "one_picture", "height": 32, "width": 64}
    changes = {"canvas": canvas, "frames": WHOLE, "frame_encoding": "stills"}
    whole = Contract(robot=contract.robot, model=ModelSpec.model_validate(contract.model.model_dump() | changes))
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    patches = {"latent_patch_size": 2, "patch_latent_dim": 4 * 48}
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "whole", whole, INSTRUCTIONS, **sizes, **patches)


def test_a_whole_canvas_in_one_frame(whole_folder: Path) -> None:
    world = load_world_model(whole_folder)
    conformance.run(lambda: LatentFramePolicy(world.model))
    conformance_video.run_world(lambda: world)
    run_value(lambda: (world, LatentFrameValueModel(world.model)))


def test_stills_know_nothing_of_each_other(whole_folder: Path) -> None:
    encoder = cosmos3_frame_model(load_cosmos3(whole_folder, dtype=torch.float32)).backbone.frames
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 1, 32, 64, 3), np.uint8)
    latents = encoder.encode([first, None, second])
    assert torch.equal(latents[:, :, 2:], encoder.encode([second]))
    assert torch.equal(latents[:, :, 1:2], encoder.encode([np.zeros_like(first)]))
    np.testing.assert_array_equal(encoder.decode(latents, [2])[:, 0], encoder.decode(latents[:, :, 2:], [0])[:, 0])


def test_frames_and_canvas_must_agree(whole_folder: Path) -> None:
    model = Contract.load(whole_folder).model.model_dump()
    with pytest.raises(ValueError, match="pictures"):
        ModelSpec.model_validate(model | {"frames": FRAMES})
    with pytest.raises(ValueError, match="empty"):
        ModelSpec.model_validate(model | {"frames": (), "canvas": model["canvas"] | {"arrangement": "frames"}})


def test_loaded_by_name(frame_folder: Path) -> None:
    assert isinstance(load_policy(frame_folder), LatentFramePolicy)
    assert isinstance(load_world_model(frame_folder), LatentFrameWorldModel)
    assert isinstance(load_value_model(frame_folder), LatentFrameValueModel)


def test_a_sample_carries_value_and_state(model: LatentFrameModel) -> None:
    observation = some_observation(model.contract)
    ((chunk, video),) = LatentFramePolicy(model).foresee([observation], [1])
    assert 0 <= chunk.info["value"] <= 1
    state = LatentFrameWorldModel(model).future_states([video])[0]
    assert {k: v.shape for k, v in state.items()} == {"position": (3,), "fingers": (2,)}
    np.testing.assert_allclose(chunk.info["future_state"]["position"], state["position"])
    assert len(video) == 2 and np.array_equal(video.frames[0], model.canvas(observation))


def test_a_world_is_given_the_commands_it_answers(model: LatentFrameModel) -> None:
    observation, chunk = some_observation(model.contract), some_chunk(model.contract, 3)
    latents = LatentFrameWorldModel(model).imagine([observation], [chunk], [1])[0].latents[None]
    rows = action_rows(latents, model.layout, 4, 4)
    np.testing.assert_allclose(rows[0], chunk.values, atol=1e-6)
    state = averaged(latents[:, :, model.layout.index("state")], (5,))[0]
    np.testing.assert_allclose(state, np.concatenate(list(observation.state.values())), atol=1e-6)


def test_values_read_what_they_say(model: LatentFrameModel) -> None:
    world, instruction = LatentFrameWorldModel(model), INSTRUCTIONS[0]
    one, other = (some_observation(model.contract, seed, instruction) for seed in (1, 2))
    chunk, another = some_chunk(model.contract, 1), some_chunk(model.contract, 2)
    future = world.imagine([one], [chunk], [1])
    whole, later, before = (LatentFrameValueModel(model, r) for r in ("value", "value_of_future", "q_value"))
    changed = injected(future[0].latents[None], model.layout, {"action": torch.ones(1, 4, 4)})[0]
    same_future = [type(future[0])(future[0].video, chunk, instruction, 5.0, 0.0, future[0].source, changed)]
    assert later.score([one], [chunk], future, [3]) == later.score([other], [another], same_future, [3])
    assert whole.score([one], [chunk], future, [3]) != whole.score([one], [chunk], same_future, [3])
    assert before.score([one], [chunk], None, [3]) != before.score([one], [another], None, [3])


def test_a_rollout_goes_on_from_the_expected_state(model: LatentFrameModel) -> None:
    """The published search puts the state of the beginning into every later chunk."""
    world, chunk = LatentFrameWorldModel(model), some_chunk(model.contract)
    first = world.imagine([some_observation(model.contract)], [chunk], [1])
    states = world.future_states(first)
    for carry in ("latent", "pixels"):
        second = world.extend(first, [chunk], [2], states, carry)[0]
        entered = averaged(second.latents[None, :, model.layout.index("state")], (5,))
        expected = future_state(first[0].latents[None], model.layout, 5)
        torch.testing.assert_close(entered, expected, atol=1e-5, rtol=0)
    assert np.array_equal(second.frames[0], first[0].frames[1])


def test_pictures_are_encoded_once(model: LatentFrameModel, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, observation = LatentFramePolicy(model), some_observation(model.contract, 77)
    policy.act([observation] * 3, [1, 2, 3])
    monkeypatch.setattr(model.backbone, "encode", lambda pictures: pytest.fail("encoded again"))
    policy.act([some_observation(model.contract, 77)], [4])


def test_refusals(model: LatentFrameModel, frame_folder: Path) -> None:
    policy, observation = LatentFramePolicy(model), some_observation(model.contract, 1, "open the drawers")
    with pytest.raises(InputError, match="did you mean 'open the drawer'"):
        policy.act([observation], [1])
    with pytest.raises(ContractError, match="one latent frame"):
        policy.act([some_observation(model.contract)], [1], [np.zeros((1, 4))])
    only = model.contract.model_copy(update={"model": model.contract.model.model_copy(update={"modes": ("policy",)})})
    with pytest.raises(ContractError, match="no mode 'value'"):
        LatentFrameValueModel(LatentFrameModel(model.backbone, only))
    (frame_folder / "vae" / "config.json").rename(frame_folder / "vae" / "gone.json")
    with pytest.raises(CheckpointError, match=r"vae/config\.json"):
        load_checkpoint(frame_folder)
    (frame_folder / "vae" / "gone.json").rename(frame_folder / "vae" / "config.json")
