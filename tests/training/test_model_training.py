import dataclasses
import json
import random
import signal
from pathlib import Path

import pytest
import torch
from processes import start_processes
from recipe import ALL_MODES, dot_contract, dots, interrupted_at, small_checkpoint, small_run
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.backbone.cosmos3.lora import LoraSpec, load_adapter
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError, DependencyError, InputError, Interrupted, TrainingError
from cosmos_robot.policies.cosmos3 import Cosmos3Policy
from cosmos_robot.training import model_trainer
from cosmos_robot.training.model_config import PostTraining, Stream
from cosmos_robot.training.model_learner import ModelLearner
from cosmos_robot.training.model_trainer import train_model
from cosmos_robot.training.parameters import is_generator, is_head, parameter_groups
from cosmos_robot.types import Observation


@pytest.fixture(scope="module")
def model(contract) -> Contract:
    return dot_contract(contract)


@pytest.fixture(scope="module")
def root(tmp_path_factory, model) -> Path:
    folder = tmp_path_factory.mktemp("model-training")
    small_checkpoint(folder, model)
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def whole(root, model) -> Path:
    """A run of all modes that was never stopped."""
    train_model(small_run(root, model, out=root / "whole"), {"dots": [dots()]})
    return root / "whole"


def state(folder: Path) -> dict:
    return torch.load(folder / "state.pt", weights_only=True)["learner"]


def records(folder: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in lines if record["kind"] == kind]


def require_equal(first: Path, second: Path) -> None:
    """Weights, average, optimiser and data position, bit for bit."""
    one, other = state(first), state(second)
    for part in ("model", "average"):
        assert one[part].keys() == other[part].keys()
        for name, value in one[part].items():
            assert torch.equal(value, other[part][name]), name
    for number, values in one["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(value, other["optimizer"]["state"][number][name]), (number, name)
    assert one["order"] == other["order"] and one["average_updates"] == other["average_updates"]
    assert Contract.load(first) == Contract.load(second)


def test_every_mode_learns_and_is_validated(whole):
    (train,) = records(whole, "train")
    (measures,) = records(whole, "validation")
    for mode in ALL_MODES:
        if mode != "forward_dynamics":
            assert train[f"{mode}_action"] > 0 and measures[f"{mode}_position_mae"] > 0
            assert 0 <= measures[f"{mode}_gripper_mae"] <= 2
    for mode in ("wam", "forward_dynamics"):
        assert train[f"{mode}_video"] > 0 and measures[f"{mode}_latent_mse"] > 0
    assert "forward_dynamics_action" not in train and "inverse_dynamics_video" not in train
    assert "policy_video" not in train


def test_export_has_the_average_the_modes_and_the_statistics(whole, root):
    exported = load_checkpoint(whole / "export")
    assert exported.contract == Contract.load(whole)
    assert set(exported.contract.model.modes) == set(ALL_MODES)
    assert exported.contract.model.action_normalization.method == "quantile"
    average, trained = state(whole)["average"], state(whole)["model"]
    name = "transformer.layers.0.self_attn.add_q_proj.weight"
    stored = exported.transformer.get_parameter(name.removeprefix("transformer."))
    assert torch.equal(stored, average[name].bfloat16().float()) and not torch.equal(average[name], trained[name])


def test_the_text_half_is_frozen_and_the_generator_is_not(whole, root):
    before = load_checkpoint(root / "start").transformer
    after = load_checkpoint(whole / "export").transformer
    frozen = [n for n, _ in before.named_parameters() if not is_generator(n)]
    assert any("embed_tokens" in n for n in frozen) and any(".mlp." in n for n in frozen)
    for name, value in before.named_parameters():
        equal = torch.equal(value, after.get_parameter(name))
        if name in frozen:
            assert equal, name
        elif value.ndim == 2 and not is_head(name):
            assert not equal, name


def test_another_domain_keeps_its_heads(whole, root, model):
    before, after = (
        load_checkpoint(f).transformer.action_proj_in.fc.weight for f in (root / "start", whole / "export")
    )
    changed = (before != after).any(1)
    assert changed.nonzero().flatten().tolist() == [model.model.domain_id]


@pytest.mark.parametrize("at", [1, 4])
def test_interrupted_and_resumed_equals_uninterrupted(whole, root, model, at):
    cut = small_run(root, model, out=root / f"cut{at}")
    interrupted_at(at, signal.SIGINT)
    with pytest.raises(Interrupted, match=f"step {at + 1}"):
        train_model(cut, {"dots": [dots()]})
    train_model(cut, {"dots": [dots()]})
    require_equal(whole, cut.out)


def test_killed_in_the_middle_and_resumed_equals_uninterrupted(whole, root, model):
    at = random.Random().randrange(1, 6)
    (process,) = start_processes(root, "kill", at, 1)
    assert process.wait(timeout=500) == -signal.SIGKILL
    killed = torch.load(root / "kill" / "state.pt", weights_only=True)
    assert killed["position"]["step"] == at
    train_model(small_run(root, model, out=root / "kill"), {"dots": [dots()]})
    require_equal(whole, root / "kill")


def test_two_processes_equal_one(whole, root, model):
    """Sharded over two processes, Ctrl-C to one of them, resumed from their checkpoint: losses and weights of one."""
    for process in start_processes(root, "shard", 3, 2):
        assert process.wait(timeout=500) == 0
    assert {p.name for p in root.glob("shard-interrupted-*")} == {"shard-interrupted-0", "shard-interrupted-1"}
    (shards,) = (root / "shard" / "sharded").iterdir()
    dcp_to_torch_save(shards, root / "shard.pt")
    one, two = state(whole), torch.load(root / "shard.pt", weights_only=False)
    for part in ("model", "average"):
        for name, value in one[part].items():
            torch.testing.assert_close(two[part][name], value, atol=1e-5, rtol=0)
    first, second = records(whole, "validation")[-1], records(root / "shard", "validation")[-1]
    for name in (n for n in first if n.endswith(("_action", "_video"))):
        assert second[name] == pytest.approx(first[name], abs=1e-5), name
    assert load_checkpoint(root / "shard" / "export").contract == load_checkpoint(whole / "export").contract


def test_gradients_with_recomputed_layers_are_the_same(whole, root, model):
    again = small_run(root, model, out=root / "recomputed", checkpoint_layers=True)
    train_model(again, {"dots": [dots()]})
    for name, value in state(whole)["model"].items():
        torch.testing.assert_close(state(again.out)["model"][name], value, atol=1e-6, rtol=1e-4)


def test_bfloat16_with_float32_weights(whole, root, model):
    acted = []

    def closed_loop(checkpoint):
        assert checkpoint.transformer.embed_tokens.weight.dtype == torch.bfloat16
        episode = dots(1)[0]
        images = {name: frames[0] for name, frames in episode.images.items()}
        seen = Observation(images, {"eef_position": episode.state[0].astype(float)}, episode.instruction)
        acted.append(Cosmos3Policy(checkpoint).act([seen], [0])[0].values)
        return {}

    run = small_run(root, model, out=root / "half", compute="bfloat16")
    train_model(run, {"dots": [dots()]}, closed_loop)
    assert len(acted) == 1 and acted[0].shape == (4, 4)
    assert torch.equal(
        *(load_checkpoint(f).transformer.embed_tokens.weight for f in (run.out / "export", root / "start"))
    )
    assert {value.dtype for value in state(run.out)["model"].values()} == {torch.float32}
    loss, other = records(whole, "train")[0]["loss"], records(run.out, "train")[0]["loss"]
    assert other == pytest.approx(loss, rel=0.02) and other != loss


def test_lora_trains_adapters_and_heads_alone_and_is_exported_merged(root, model):
    run = small_run(
        root, model, out=root / "lora", lora=LoraSpec(rank=2), modes={"policy": 1.0}, steps=3, compute="bfloat16"
    )
    train_model(run, {"dots": [dots()]})
    trained = state(run.out)["model"]
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    merged, start = load_checkpoint(run.out / "export").transformer, load_checkpoint(root / "start").transformer
    name = "layers.0.self_attn.to_add_out.weight"
    assert not torch.equal(merged.get_parameter(name), start.get_parameter(name))
    assert torch.equal(merged.layers[0].mlp_moe_gen.up_proj.weight, start.layers[0].mlp_moe_gen.up_proj.weight)
    load_adapter(start, run.out / "adapter")
    adapted = start.layers[0].self_attn.to_add_out
    x = torch.randn(3, adapted.in_features)
    torch.testing.assert_close(adapted(x), merged.layers[0].self_attn.to_add_out(x), atol=1e-3, rtol=1e-2)


def test_validation_leaves_the_model_training_on_its_own_weights(root, model, monkeypatch):
    seen = []

    def closed_loop(checkpoint):
        assert not checkpoint.transformer.training and checkpoint.contract.model.name == "dot"
        seen.append(checkpoint.transformer.proj_in.weight.clone())
        return {"coverage": 0.5}

    whole = ModelLearner.train_step

    def train_step(self, cycle, step, rate):
        assert all(module.training for module in self.root.modules()) and torch.is_grad_enabled()
        before = self.transformer.proj_in.weight.clone()
        if step == 2:  # the validation before it left the weights themselves
            assert not torch.equal(before, seen[-1])
        return whole(self, cycle, step, rate)

    monkeypatch.setattr(ModelLearner, "train_step", train_step)
    run = small_run(root, model, out=root / "loop", modes={"policy": 1.0}, steps=4, validate_steps=2)
    train_model(run, {"dots": [dots()]}, closed_loop)
    assert len(seen) == 2
    assert [r["closed_loop_coverage"] for r in records(run.out, "validation")] == [0.5, 0.5]


def test_history_and_a_second_stream_in_packs_of_tokens(root, contract, model):
    """Two robots' streams; one is shown commands of its past."""
    past = dot_contract(contract, history_rows=2, domain_id=9, modes=("policy",))
    run = small_run(root, model, out=root / "mixed", token_budget=150, steps=8)
    streams = (run.streams[0], Stream(name="past", contract=past, modes={"policy": 1.0}))
    run = dataclasses.replace(run, streams=streams)
    train_model(run, {"dots": [dots()], "past": [dots(4)]})
    (measures,) = records(run.out, "validation")
    assert {"dots/wam_action", "past/policy_action"} <= measures.keys()
    taken = state(run.out)["order"]["next"]
    assert all(taken) and (run.out / "contracts" / "past.json").is_file()


def test_parameter_groups_by_name(root):
    transformer = load_checkpoint(root / "start").transformer
    recipe = PostTraining()
    groups = {g["name"]: g for g in parameter_groups(transformer, recipe)}
    names = {id(p): n for n, p in transformer.named_parameters()}
    assert {names[id(p)] for p in groups["heads"]["params"]} == {
        "action_proj_in.fc.weight", "action_proj_in.bias.weight", "action_proj_out.fc.weight",
        "action_proj_out.bias.weight", "action_modality_embed",
    }  # fmt: skip
    assert {name: g["factor"] for name, g in groups.items()} == {"matrices": 1.0, "vectors": 1.0, "heads": 5.0}
    assert {name: g["weight_decay"] for name, g in groups.items()} == {"matrices": 0.05, "vectors": 0.0, "heads": 0.0}
    assert all(p.ndim < 2 for p in groups["vectors"]["params"])


def test_the_published_recipe():
    """cosmos-framework: action_policy_libero_nano.py, nano_model_config.py, omni_mot_model.py."""
    r = PostTraining()
    assert (r.lr, r.head_factor, r.betas, r.eps, r.weight_decay, r.clip) == (5e-5, 5, (0.9, 0.99), 1e-8, 0.05, 1.0)
    assert (r.schedule, r.warmup, r.caption_dropout, r.ema_rate) == ("linear", 500, 0.1, 0.1)
    assert (r.video_weight, r.action_weight, r.noise, r.trainable, r.heads) == (
        10,
        10,
        "waver",
        "generator",
        "reinitialise",
    )


def test_shift_follows_the_canvas_tier(model):
    assert PostTraining().time_shift(model) == 3
    for tier, shift in (("480", 5), ("720", 10)):
        canvas = model.model.canvas.model_copy(update={"tier": tier})
        other = Contract(robot=model.robot, model=model.model.model_copy(update={"canvas": canvas}))
        assert PostTraining().time_shift(other) == shift
    canvas = model.model.canvas.model_copy(update={"tier": "768"})
    other = Contract(robot=model.robot, model=model.model.model_copy(update={"canvas": canvas}))
    with pytest.raises(InputError, match="'768' has no published"):
        PostTraining().time_shift(other)
    assert PostTraining(shift=2.0).time_shift(other) == 2


def test_fresh_weights_and_everything_trained(root, model):
    recipe = {"trainable": "all", "ema_rate": None, "noise": "logitnormal", "latent_noise": 0.1, "state_noise": 0.1}
    run = small_run(root, model, out=root / "fresh", fresh=True, recipe=recipe, steps=2)
    train_model(run, {"dots": [dots()]})
    start, after = (load_checkpoint(f).transformer for f in (root / "start", run.out / "export"))
    assert not torch.equal(start.embed_tokens.weight, after.embed_tokens.weight)
    assert "transformer.embed_tokens.weight" in state(run.out)["model"] and not state(run.out)["average"]


def test_bad_settings(root, model):
    with pytest.raises(InputError, match="expected positive shares"):
        Stream(name="x", contract=model, modes={"polcy": 1.0})
    with pytest.raises(InputError, match="expected a multiple"):
        Stream(name="x", contract=model, modes={"wam": 1.0}, stride=2)
    with pytest.raises(InputError, match="either minutes or steps"):
        small_run(root, model, minutes=1.0)
    with pytest.raises(InputError, match="neither datasets nor episodes"):
        train_model(small_run(root, model, out=root / "none"))
    with pytest.raises(InputError, match="token_budget 10"):
        train_model(small_run(root, model, out=root / "budget", token_budget=10), {"dots": [dots()]})
    with pytest.raises(InputError, match="torchrun"):
        from cosmos_robot.training.model_config import Sharding

        train_model(small_run(root, model, out=root / "alone", sharding=Sharding()), {"dots": [dots()]})


def test_another_recipe_is_no_continuation(whole, root, model):
    other = small_run(root, model, out=whole, recipe={"clip": 2.0})
    with pytest.raises(CheckpointError, match="recipe differ"):
        train_model(other, {"dots": [dots()]})


def test_other_data_or_another_start_is_no_continuation(whole, root, model, monkeypatch):
    """Refused before anything is encoded."""
    again, cached = small_run(root, model, out=whole), set((root / "cache").iterdir())
    with pytest.raises(CheckpointError, match="whose data of stream 'dots' differ"):
        train_model(again, {"dots": [dots(7)]})
    with pytest.raises(CheckpointError, match="whose data of stream 'dots' differ"):
        train_model(again, {"dots": [dots(), dots(7)]})

    def other(part):
        def load(*args, **options):
            start = load_checkpoint(*args, **options)
            next(getattr(start, part).parameters()).data.flatten()[0] += 1
            return start

        return load

    for part, said in (("transformer", "start weights"), ("vae", "autoencoder")):
        monkeypatch.setattr(model_trainer, "load_checkpoint", other(part))
        with pytest.raises(CheckpointError, match=f"whose {said} differ"):
            train_model(again, {"dots": [dots()]})
    assert set((root / "cache").iterdir()) == cached


def test_contracts_of_a_try_that_never_began_are_not_kept(whole, root, model):
    run = small_run(root, model, out=root / "tried", modes={"policy": 1.0}, steps=1)
    run.out.mkdir()
    Contract(robot=model.robot, model=model.model.model_copy(update={"name": "stale"})).save(run.out)
    exported = train_model(run, {"dots": [dots()]})
    assert load_checkpoint(exported).contract.model.name == "dot"


def test_dropout_resumes_bit_for_bit(root, model):
    settings = {"lora": LoraSpec(rank=2, dropout=0.5), "modes": {"policy": 1.0}, "steps": 4}
    whole, cut = (small_run(root, model, out=root / f"dropout-{n}", **settings) for n in ("whole", "cut"))
    torch.manual_seed(1)
    train_model(whole, {"dots": [dots()]})
    interrupted_at(1, signal.SIGINT)
    torch.manual_seed(2)
    with pytest.raises(Interrupted):
        train_model(cut, {"dots": [dots()]})
    train_model(cut, {"dots": [dots()]})
    require_equal(whole.out, cut.out)


def test_losses_that_are_not_finite_stop_the_run_and_spoil_nothing(root, model, monkeypatch):
    losses, passes = ModelLearner._losses, []

    def poisoned(self, batch):
        found = losses(self, batch)
        passes.append(batch)
        if len(passes) == 3:  # one sample of step 2, with one pass a step
            found["action"] = found["action"] * torch.tensor([1.0, float("nan"), 1.0, 1.0])
        return found

    monkeypatch.setattr(ModelLearner, "_losses", poisoned)
    run = small_run(root, model, out=root / "poisoned", modes={"policy": 1.0}, save_seconds=0.0)
    said = r"step 2: the loss policy_action .* mode policy, action, stream 'dots': episode \d sample \d\."
    with pytest.raises(TrainingError, match=said):
        train_model(run, {"dots": [dots()]})
    kept = torch.load(run.out / "state.pt", weights_only=True)
    assert kept["position"]["step"] == 2
    assert all(value.isfinite().all() for part in ("model", "average") for value in kept["learner"][part].values())


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_logger_without_its_package_says_so(root, model, name):
    try:
        __import__(name)
    except ImportError:
        run = small_run(root, model, out=root / name, loggers=(name,), modes={"policy": 1.0}, steps=1)
        with pytest.raises(DependencyError, match=f"pip install {name}"):
            train_model(run, {"dots": [dots()]})
    else:
        pytest.skip(f"{name} is installed")
