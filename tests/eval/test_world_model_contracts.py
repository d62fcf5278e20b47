"""World-model evaluation under every shipped contract that predicts, and under layouts that predict only a part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import Contract, ModelSpec, Normalization, contract_names, load_contract
from cosmos_robot.envs.fakes import TASKS, FakeEnv
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.eval.world_model import WorldModelConfig, absences, require_possible, states_at_joints
from cosmos_robot.eval.world_model_case import Models, parts, places, roll
from cosmos_robot.eval.world_model_measure import MeasureSettings, measure
from cosmos_robot.eval.world_model_models import ModelsSpec
from cosmos_robot.eval.world_model_windows import Run, Seen, Window, frame_steps, predicted_part
from cosmos_robot.images import side_by_side, video_size
from cosmos_robot.policies import load_world_model
from cosmos_robot.policies.conformance import INSTRUCTIONS, some_observation
from cosmos_robot.policies.cosmos3 import Cosmos3InverseModel
from cosmos_robot.policies.fakes import StillWorld

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
PREDICTING = [
    name for name in contract_names() if {"forward_dynamics", "world_model"} & set(load_contract(name).model.modes)
]


def quick(name: str) -> Contract:
    """A shipped contract without statistics, sampled in one step."""
    made, plain = load_contract(name), Normalization(method="identity")
    sampler = made.model.sampler.model_copy(update={"steps": 1, "guidance": 1.0})
    changes = {"state_normalization": plain, "action_normalization": plain, "sampler": sampler}
    return Contract(robot=made.robot, model=made.model.model_copy(update=changes))


def untrained(contract: Contract, folder):
    """Its world model with random weights."""
    if contract.model.backbone == "cosmos3":
        return load_world_model(save_untrained(folder, contract, TASKS, **SMALL))
    from cosmos_robot.backbone.predict2.load import save_checkpoint
    from cosmos_robot.backbone.predict2.text import TextEmbeddings
    from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae

    save_checkpoint(
        folder,
        transformer=tiny_transformer(0, num_attention_heads=2, text_embed_dim=8),
        vae=tiny_vae(0, 4),
        texts=TextEmbeddings(tiny_texts(list(INSTRUCTIONS), 8), 6),
        contract=contract,
    )
    return load_world_model(folder)


def run_of(contract: Contract, chunks: int) -> Run:
    """An episode of random pictures, states and commands, seen wherever a frame is."""
    rng, length = np.random.default_rng(0), chunks * contract.model.chunk
    seen = {step: some_observation(contract, step) for step in frame_steps(contract, chunks)}
    pictures = {step: dict(o.images) for step, o in seen.items()}
    commands = rng.uniform(-1, 1, (length, contract.robot.action_width))
    return Run("made up", INSTRUCTIONS[0], commands, Seen(pictures, {step: o.state for step, o in seen.items()}))


@pytest.mark.parametrize("name", PREDICTING)
def test_predictions_and_truth_are_of_one_size(name: str, tmp_path) -> None:
    """Over rollouts of two chunks, so that relative commands are given the state at the joint."""
    contract = quick(name)
    window = Window(run_of(contract, 2), 0, 2)
    truth = window.truth(contract)
    world = untrained(contract, tmp_path / "made")
    for model in (world, StillWorld(contract)):
        chain = roll(model, window, 0, "latent")
        assert [p.video.shape[1:] for p in chain] == [truth.shape[1:]] * 2
        assert 1 + sum(p.video.shape[0] - 1 for p in chain) == len(truth)
    assert truth.shape[1:3] == video_size(contract.model)
    assert len(parts(contract, truth[0])) == len(places(contract)) > 0
    assert states_at_joints(2, contract) == ("predicted" if contract.model.frames else "recorded")
    assert states_at_joints(1, contract) is None


def test_a_padded_canvas_is_measured_whole(tmp_path) -> None:
    """cosmos3-base-umi shows 224 x 224 pixels on a canvas of 256 x 256: truth, controls and clips are cut alike."""
    contract = quick("cosmos3-base-umi")
    world = untrained(contract, tmp_path / "umi")
    models = Models(world, inverse=Cosmos3InverseModel(world.model))
    window = Window(run_of(contract, 1), 0, 1)
    record, pictured = measure(models, window, MeasureSettings(), probe=False)
    assert pictured.truth.shape == pictured.predicted.shape == pictured.last.shape == (17, 224, 224, 3)
    assert record["inverse"]["truth"]["rmse"] > 0 and set(record["frames"][0]) >= {"model", "last", "mean"}
    with pytest.raises(InputError, match="truth on the canvas"):
        measure(Models(Uncut(contract)), window, MeasureSettings(), probe=False)


class Uncut(StillWorld):
    """Predicts the padding, too."""

    def _still(self, canvas, actions, instruction, time):
        found = super()._still(canvas, actions, instruction, time)
        frames = np.pad(found.frames, ((0, 0), (0, 32), (0, 32), (0, 0)))
        return replace(found, video=type(found.video)(lambda: frames, frames.shape))


def partial_contract(*future: str, modes=("policy", "world_model")) -> Contract:
    """The fake robot under Cosmos 3 with latent frames, of which only ``future`` are predicted."""
    robot = FakeEnv.robot
    made = untrained_contract(robot, "partial", chunk=4, execute=2)
    placed = side_by_side({c.name: c for c in robot.cameras}, 32, 32)
    canvas = made.model.canvas.model_dump() | {"height": 32, "width": 64, "arrangement": "frames"}
    changes = {
        "modes": modes,
        "actions_per_frame": 4,
        "frames": ("blank", "state", "table", "hand", "action", *(f"future {name}" for name in future)),
        "canvas": canvas | {"placements": [p.model_dump() for p in placed]},
        "sampler": made.model.sampler.model_copy(update={"steps": 1}).model_dump(),
    }
    return Contract(robot=robot, model=ModelSpec.model_validate(made.model.model_dump() | changes))


def test_a_camera_of_which_nothing_is_predicted_is_left_out(tmp_path) -> None:
    contract = partial_contract("state", "table")
    folder = save_untrained(tmp_path / "partial", contract, TASKS, **SMALL)
    window = Window(run_of(contract, 1), 0, 1)
    record, pictured = measure(Models(load_world_model(folder)), window, MeasureSettings(), probe=True)
    assert places(contract) == ["table"] and {f["camera"] for f in record["frames"]} == {"table"}
    assert set(record["cameras"]["nearest"]) == {"table"} and record["cameras"]["first"] == 60
    assert not pictured.truth[:, :, 32:].any() and pictured.truth[:, :, :32].any()
    assert record["moved_pixels"] <= 32 * 32, "what moved before the other camera does not count"
    assert "state" in record
    config = WorldModelConfig(str(folder), data=tmp_path, chunks=2)
    assert "no future picture" in absences(config, ModelsSpec(str(folder)), contract)["pictures of hand"]
    with pytest.raises(InputError, match="a second chunk would see black"):
        require_possible(config, contract)
    whole = np.full((32, 64, 3), 9, np.uint8)
    assert (predicted_part(contract, whole)[:, :32] == 9).all() and (whole == 9).all()


def test_a_model_of_states_alone_is_refused(tmp_path) -> None:
    folder = save_untrained(tmp_path / "states", partial_contract("state"), TASKS, **SMALL)
    with pytest.raises(ContractError, match="predicts no picture"):
        ModelsSpec(str(folder)).contract_of()


def test_an_inverse_model_of_other_videos_is_refused(tmp_path) -> None:
    """Chunk, frames, canvas and robot are compared before anything is measured, each difference named."""
    made = untrained_contract(FakeEnv.robot, "forward", chunk=4, execute=2)
    changes = {"modes": ("forward_dynamics", "inverse_dynamics"), "state_row": False}
    world = Contract(robot=made.robot, model=ModelSpec.model_validate(made.model.model_dump() | changes))
    canvas = world.model.canvas.model_copy(update={"resize": "bilinear"})
    robot = world.robot.model_copy(update={"rate_hz": 10.0})
    others = {
        "rate_hz": Contract(robot=robot, model=world.model),
        "model.chunk: 8, the world model's is 4": Contract(
            robot=world.robot, model=world.model.model_copy(update={"chunk": 8})
        ),
        "model.canvas.resize: bilinear": Contract(
            robot=world.robot, model=world.model.model_copy(update={"canvas": canvas})
        ),
    }
    folder = save_untrained(tmp_path / "world", world, TASKS, **SMALL)
    assert ModelsSpec(str(folder), inverse_ckpt=str(folder)).contract_of() == world
    for number, (message, contract) in enumerate(others.items()):
        other = save_untrained(tmp_path / str(number), contract, TASKS, **SMALL)
        with pytest.raises(ContractError, match="(?s)does not read the videos.*" + message):
            ModelsSpec(str(folder), inverse_ckpt=str(other)).contract_of()
