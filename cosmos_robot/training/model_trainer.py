"""``train_model``: episodes of any robot and a start checkpoint in, a checkpoint in the released layout out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3.load import Checkpoint, check_contract, load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.tiny import initialise
from cosmos_robot.contract import CONTRACT_FILE, Contract, read_contract
from cosmos_robot.errors import InputError, Interrupted
from cosmos_robot.ownership import owned
from cosmos_robot.training.cache import EpisodeSource, StoredEpisodes
from cosmos_robot.training.clips import Clips, ClipStore, clip_store, fitted_contract
from cosmos_robot.training.config import plain
from cosmos_robot.training.crew import Crew, ShardedCrew, ShardedFolder
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.ingredients import ingredients, start_weights
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.model_batches import StreamSamples
from cosmos_robot.training.model_config import ModelTraining, Stream
from cosmos_robot.training.model_learner import ModelLearner
from cosmos_robot.training.model_validation import ModelValidation
from cosmos_robot.training.order import EpisodeOrder, Packing, StepOrder, StreamOrder
from cosmos_robot.training.parameters import cast_frozen, choose_trained, reinitialise_heads
from cosmos_robot.training.session import CONFIG_FILE, Budget, RunFolder, require_same_run
from cosmos_robot.training.trackers import trackers

if TYPE_CHECKING:
    from peft import PeftModel

EXPORT, ADAPTER, CONTRACTS = "export", "adapter", "contracts"
_MAY_DIFFER = (
    "progress", "save_seconds", "validate_seconds", "validate_steps", "threads", "cache", "device", "loggers",
    "checkpoint_layers",
)  # fmt: skip

ClosedLoop = Callable[[Checkpoint], Mapping[str, float]]
"""Measures a model while it is trained, for instance by driving a simulator; given the averaged weights."""


def train_model(
    config: ModelTraining,
    sources: Mapping[str, Sequence[EpisodeSource]] | None = None,
    closed_loop: ClosedLoop | None = None,
) -> Path:
    """Train, or resume, and return the exported checkpoint folder ``config.out/export``.

    sources: for each stream by name, its episodes, if they are not to be read from its ``datasets``.
    closed_loop: measures to log at each validation besides the held-out losses and errors.
    Raises Interrupted on Ctrl-C (run again to go on), CheckpointError while another process trains there or where a run
    of other settings, data or start lies there, TrainingError where losses or gradients are not finite.
    """
    torch.set_num_threads(config.threads)
    crew = Crew(config.device) if config.sharding is None else ShardedCrew(config.sharding, config.device)
    try:
        with nullcontext() if crew.rank else owned(config.out, f"training into {config.out}"):
            return _train(config, sources, closed_loop, crew)
    finally:
        crew.close()


def _train(config: ModelTraining, sources, closed_loop: ClosedLoop | None, crew: Crew) -> Path:
    start = load_checkpoint(config.start, dtype=torch.float32, contract=config.streams[0].contract)
    given = [_given(stream, sources) for stream in config.streams]
    settings = plain(config)
    if not crew.rank:
        settings |= _ingredients(config, given, start)
        require_same_run(config.out, settings, _MAY_DIFFER)
    start.vae.to(crew.device)
    with _first_alone(crew):
        stores = [_stores(*pair, start.vae, config) for pair in zip(config.streams, given, strict=True)]
    contracts = _contracts(config, stores, crew)
    transformer = _transformer(config, start, contracts)
    adapted = _adapted(transformer, config)
    if not crew.sharded:
        cast_frozen(transformer, getattr(torch, config.compute))
    streams = [
        StreamSamples(i, Clips(stores[i], contract, config.validation_every, 2 * config.shuffle_episodes), contract,
                      start.tokenizer, config.recipe, start.vae.config.scale_factor_spatial,
                      transformer.config.latent_patch_size)
        for i, contract in enumerate(contracts)
    ]  # fmt: skip
    learner = _Learner(transformer, streams, _order(config, streams, crew), config, crew)
    parts = _Parts(start, contracts[0], learner, crew, adapted, config)
    learner.measure = _measure(config, streams, parts, closed_loop)
    folder = _folder(config, settings, learner, crew)
    _run(config, learner, folder, crew)
    return _export(config, parts, folder)


def _run(config: ModelTraining, learner: ModelLearner, folder: RunFolder, crew: Crew) -> None:
    cycle = Cycle(
        "training", Budget(config.minutes, config.steps), config.recipe.lr, config.recipe.warmup,
        config.recipe.final_lr, config.recipe.schedule,
    )  # fmt: skip
    pace = Pace(config.save_seconds, config.validate_seconds, config.validate_steps,
                config.progress and not crew.rank, crew.agree)  # fmt: skip
    try:
        run(learner, folder, [cycle], pace)
    except Interrupted:  # in all processes; after another error the others would not come to finish with this one
        folder.finish()
        raise
    folder.finish()


class _Learner(ModelLearner):
    """With what is measured at validation, which needs the learner itself."""

    measure: Callable[[], Mapping[str, float]]

    def validate(self) -> Mapping[str, float]:
        return self.measure()


@dataclass(frozen=True)
class _Parts:
    """What an exported checkpoint is made of."""

    start: Checkpoint
    contract: Contract
    learner: ModelLearner
    crew: Crew

    adapted: PeftModel | None
    config: ModelTraining

    def whole(self) -> tuple[Cosmos3OmniTransformer, PeftModel | None] | None:
        """The transformer as it is now, and peft's handle on its adapters; of a sharded one a whole copy in the first
        process, None in the others."""
        if not self.crew.sharded:
            return self.learner.transformer, self.adapted
        state = self.crew.whole_state(self.learner.root)
        if self.crew.rank:
            return None
        copy = Cosmos3OmniTransformer.from_config(self.learner.transformer.config)
        adapted = _adapted(copy, self.config)
        copy.load_state_dict(state)
        return copy, adapted


def _measure(config: ModelTraining, streams: Sequence[StreamSamples], parts: _Parts, closed_loop: ClosedLoop | None):
    validation = ModelValidation(
        streams, [s.name for s in config.streams], [tuple(s.modes) for s in config.streams], config.validation_samples,
        config.recipe.by_active, parts.crew.device,
    )  # fmt: skip

    def measure() -> Mapping[str, float]:
        learner, start = parts.learner, parts.start
        with learner.averaged() as root:
            measures = validation(root, learner.texts)
            whole = parts.whole() if parts.crew.sharded else (root.transformer, None)
            if closed_loop is not None and whole is not None:
                driven = whole[0].to(parts.crew.device).eval()
                now = Checkpoint(config.out.name, config.out, driven, start.vae, start.tokenizer,
                                 start.scheduler_config, parts.contract)  # fmt: skip
                measures |= {f"closed_loop_{name}": float(value) for name, value in closed_loop(now).items()}
            parts.crew.meet()
        return measures

    return measure


def _given(stream: Stream, sources) -> Sequence[EpisodeSource]:
    given = (sources or {}).get(stream.name)
    if given is None:
        given = [StoredEpisodes(path, stream.contract) for path in stream.datasets]
    if not given:
        raise InputError(f"stream {stream.name!r}: neither datasets nor episodes")
    return given


def _ingredients(config: ModelTraining, given: Sequence[Sequence[EpisodeSource]], start: Checkpoint) -> dict:
    data = {
        f"stream {stream.name!r}": [source.fingerprint for source in sources]
        for stream, sources in zip(config.streams, given, strict=True)
    }
    return ingredients(data, start_weights(start.transformer, start.vae))


def _stores(
    stream: Stream, given: Sequence[EpisodeSource], vae: AutoencoderKLWan, config: ModelTraining
) -> list[ClipStore]:
    return [clip_store(source, stream, vae, config.cache, config.progress) for source in given]


@contextmanager
def _first_alone(crew: Crew) -> Iterator[None]:
    """The first process builds what the others then find."""
    if crew.rank:
        crew.meet()
    yield
    if not crew.rank:
        crew.meet()


def _contracts(config: ModelTraining, stores: Sequence[list[ClipStore]], crew: Crew) -> list[Contract]:
    """Those that the run keeps if it has been here before, else made from the data; the exported one written last."""
    files = [config.out / CONTRACTS / f"{stream.name}.json" for stream in config.streams]
    # Without a config the run never began, so contracts may be of an earlier try with other data.
    if not (config.out / CONTRACT_FILE).exists() or not (config.out / CONFIG_FILE).exists():
        made = [_fitted(stream, of, config) for stream, of in zip(config.streams, stores, strict=True)]
        if not crew.rank:
            (config.out / CONTRACTS).mkdir(parents=True, exist_ok=True)
            for file, contract in zip(files, made, strict=True):
                file.write_text(contract.model_dump_json(indent=2))
            made[0].save(config.out)
    crew.meet()
    return [read_contract(file) for file in files]


def _fitted(stream: Stream, stores: list[ClipStore], config: ModelTraining) -> Contract:
    contract = stream.contract
    model = contract.model.model_copy(update={"modes": tuple(stream.modes)})
    contract = Contract(robot=contract.robot, model=model)
    if config.normalization is None:
        return contract
    floors = {"state": config.state_scale_floor, "action": config.action_scale_floor}
    return fitted_contract(contract, stores, config.validation_every, config.normalization, floors)


def _transformer(config: ModelTraining, start: Checkpoint, contracts: Sequence[Contract]) -> Cosmos3OmniTransformer:
    transformer = start.transformer
    for contract in contracts:
        check_contract(contract, transformer, start.vae, start.tokenizer)
    if config.fresh:
        initialise(transformer, config.seed)
    elif config.recipe.heads == "reinitialise":
        reinitialise_heads(transformer, [contract.model.domain_id for contract in contracts], config.seed)
    return transformer


def _adapted(transformer: Cosmos3OmniTransformer, config: ModelTraining) -> PeftModel | None:
    """peft's handle on the adapters, None without; either way only what is trained requires gradients."""
    if config.lora is None:
        choose_trained(transformer, config.recipe)
        return None
    from cosmos_robot.backbone.cosmos3.lora import add_lora

    return add_lora(transformer, config.lora, seed=config.seed)


def _order(config: ModelTraining, streams: Sequence[StreamSamples], crew: Crew) -> StepOrder:
    orders = []
    for stream, spec in zip(streams, config.streams, strict=True):
        episodes = EpisodeOrder(
            stream.clips.training, stream.clips.lengths, config.shuffle_episodes, (config.seed, 0xE9, stream.index)
        )
        dropout = config.recipe.caption_dropout
        orders.append(StreamOrder(stream.index, episodes, spec.modes, dropout, config.seed))
    packing = Packing(config.batch, config.token_budget, config.look_ahead)
    return StepOrder(
        orders, [s.weight for s in config.streams], packing, config.seed, crew.processes,
        lambda draw: streams[draw.stream].tokens(draw),
    )  # fmt: skip


def _folder(config: ModelTraining, settings: dict, learner: ModelLearner, crew: Crew) -> RunFolder:
    if crew.sharded:
        folder: RunFolder = ShardedFolder(config.out, settings, _MAY_DIFFER, crew, learner.state)
    else:
        folder = RunFolder(config.out, settings, _MAY_DIFFER)
    if not crew.rank:
        folder.observers += trackers(config.loggers, config.out, settings)
    return folder


def _export(config: ModelTraining, parts: _Parts, folder: RunFolder) -> Path:
    target = config.out / EXPORT
    parts.learner.average.exchange()
    whole = parts.whole()
    if whole is not None:
        transformer, adapted = whole
        if adapted is not None:
            from cosmos_robot.backbone.cosmos3.lora import merge, save_adapter

            shutil.rmtree(config.out / ADAPTER, ignore_errors=True)
            save_adapter(adapted, config.out / ADAPTER)
            transformer = merge(adapted)
        save_checkpoint(
            target, transformer=transformer, vae=parts.start.vae, tokenizer=parts.start.tokenizer,
            contract=parts.contract, overwrite=True,
        )  # fmt: skip
        draw_curves(folder)
    parts.crew.meet()
    return target
