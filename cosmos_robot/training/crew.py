"""Several processes as one training: FSDP2 over the transformer, agreed decisions, sharded checkpoints.

The processes are those of torchrun (or ``accelerate launch``, which sets the same variables). Each layer is a unit of
sharding, and all the rest is the root's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from diffusers import Cosmos3OmniTransformer
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from cosmos_robot.backbone.cosmos3.acceleration import run_by_methods
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.training.model_config import Sharding
from cosmos_robot.training.session import RunFolder, write_atomic

NEWEST, SHARDS = "newest.json", "sharded"
PATIENCE: Final = timedelta(days=30)
"""How long processes wait while one works alone; one that dies closes its connections, which ends the wait at once."""


class Root(nn.Module):
    """The module whose call gathers what is not part of a layer: everything that runs the transformer runs in it."""

    def __init__(self, transformer: Cosmos3OmniTransformer):
        super().__init__()
        self.transformer = transformer

    def forward(self, run: Callable, *args):
        return run(self.transformer, *args)


class Crew:
    """This process alone."""

    rank, processes, sharded = 0, 1, False

    def __init__(self, device: str = "cpu"):
        self.device = torch.device(device)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        return values

    def agree(self, *flags: float) -> tuple[float, ...]:
        """The largest of each flag among the processes, so that all decide alike."""
        return flags

    def meet(self) -> None:
        """Wait for all, however long one of them works by itself (encodes a dataset, drives a simulator)."""

    def root(self, transformer: Cosmos3OmniTransformer, dtype: torch.dtype) -> Root:
        """``transformer`` ready to be run by all."""
        return Root(transformer)

    def settle(self, root: Root) -> None:
        """Forget gathered weights: those of before a change would be used after it."""

    def close(self) -> None:
        """Leave."""


class ShardedCrew(Crew):
    """The processes of torchrun. Raises InputError where this process was not started by it."""

    sharded = True

    def __init__(self, sharding: Sharding, device: str = "cpu"):
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise InputError(
                "sharding: no RANK and WORLD_SIZE here; start with torchrun --nproc-per-node N, or without"
            )
        if device != "cpu":
            device = f"{device.split(':')[0]}:{os.environ.get('LOCAL_RANK', 0)}"
        super().__init__(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._joined = not dist.is_initialized()
        if self._joined:
            dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
        self._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        if self.processes % sharding.replicas:
            raise InputError(f"sharding: {self.processes} processes do not hold {sharding.replicas} replicas")
        shape, names = (self.processes,), ("shard",)
        if sharding.replicas > 1:
            shape, names = (sharding.replicas, self.processes // sharding.replicas), ("replicate", "shard")
        self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    def total(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def agree(self, *flags: float) -> tuple[float, ...]:
        shared = torch.tensor(flags, dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return tuple(shared.tolist())

    def meet(self) -> None:
        dist.all_reduce(torch.zeros(1), group=self._patient)

    def root(self, transformer: Cosmos3OmniTransformer, dtype: torch.dtype) -> Root:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        if dtype == torch.float32:
            policy = MixedPrecisionPolicy()
        methods, root = run_by_methods(transformer), Root(transformer)
        fully_shard(transformer.time_embedder, mesh=self._mesh)  # float32 always
        for layer in transformer.layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=policy)
            for method in methods:
                register_fsdp_forward_method(layer, method)
        fully_shard(root, mesh=self._mesh, mp_policy=policy)
        for module in root.modules():
            if isinstance(module, FSDPModule):  # sums, not means, which gloo does not have
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return root

    def settle(self, root: Root) -> None:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def whole_state(self, root: Root) -> dict[str, Tensor]:
        """The transformer's weights, whole, in the first process; nothing in the others."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole = get_model_state_dict(root, options=options)
        return {name.removeprefix("transformer."): value for name, value in whole.items()}

    def close(self) -> None:
        if self._joined:
            dist.destroy_process_group()


def begin_optimizer(optimizer: torch.optim.AdamW) -> None:
    """Give every parameter the state that its first gradient would: parameters that no mode reads never get one, and
    the reader of sharded checkpoints asks for the state of all."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)
            optimizer.state[parameter] = {"step": step, **moments}


def sharded_state(root: Root, optimizer: torch.optim.Optimizer) -> dict:
    """Weights and optimiser as ``torch.distributed.checkpoint`` takes them, each process its shards."""
    return {"model": get_model_state_dict(root), "optimizer": get_optimizer_state_dict(root, optimizer)}


def load_sharded_state(root: Root, optimizer: torch.optim.Optimizer, state: dict) -> None:
    set_model_state_dict(root, state["model"])
    set_optimizer_state_dict(root, optimizer, state["optimizer"])


class ShardedFolder(RunFolder):
    """A run folder that all processes share: the first one logs, each saves its own shards, without waiting for the
    disk. A state counts once every process has written its part; the one before is kept until then. Where a process
    fails the last save is left pending: ``finish`` meets the others, who may wait elsewhere.

    state: makes the tensors to load into (``Learner.state``).
    """

    def __init__(self, path: Path, config: dict, may_differ: tuple[str, ...], crew: Crew, state: Callable[[], dict]):
        self._crew, self._state = crew, state
        self._pending: tuple[object, str, dict] | None = None
        if not crew.rank:
            super().__init__(path, config, may_differ)
        crew.meet()
        self.path = Path(path)
        self._writers = dist.new_group(backend="gloo")  # its own: saving must not cut into the training's exchanges

    def save_state(self, state: dict) -> None:
        """Begin to write; ``finish`` waits for the end, and so does the next call."""
        self.finish()
        name = f"step-{state['position']['step']:09d}"
        tensors, plain = split_state(state["learner"])
        place = self.path / SHARDS / name
        if not self._crew.rank:
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(exist_ok=True)
        self._crew.agree(0.0)
        future = dcp.async_save(tensors, checkpoint_id=str(place), process_group=self._writers)
        self._pending = future, name, {"folder": name, "position": state["position"], "plain": plain}

    def finish(self) -> None:
        """Wait until the last save is whole, in every process, and drop the ones before. Raises CheckpointError if it
        could not be written."""
        if self._pending is None:
            return
        (future, name, note), self._pending = self._pending, None
        try:
            future.result()
        except CheckpointException as error:  # derives from BaseException
            raise CheckpointError(f"{self.path / SHARDS / name} could not be written: {_told(error)}") from error
        self._crew.agree(0.0)
        if not self._crew.rank:
            write_atomic(self.path / NEWEST, lambda temporary: temporary.write_text(json.dumps(note)))
            for old in (self.path / SHARDS).iterdir():
                if old.name != name:
                    shutil.rmtree(old)
        self._crew.agree(0.0)

    def load_state(self) -> dict | None:
        file = self.path / NEWEST
        if not file.exists():
            return None
        note = json.loads(file.read_text())
        tensors, _ = split_state(self._state())
        try:
            dcp.load(tensors, checkpoint_id=str(self.path / SHARDS / note["folder"]))
        except (Exception, CheckpointException) as error:  # the latter derives from BaseException
            raise CheckpointError(
                f"{self.path / SHARDS / note['folder']} cannot be read: {_told(error)}; restore it, or delete {file} "
                "to begin this run anew"
            ) from error
        return {"learner": {**tensors, **note["plain"]}, "position": note["position"]}

    def log(self, record: dict) -> None:
        if not self._crew.rank:
            super().log(record)

    def drop_log_after(self, step: int) -> None:
        if not self._crew.rank:
            super().drop_log_after(step)
        self._crew.agree(0.0)


def _told(error: BaseException) -> str:
    """In a line: torch's own message has the traceback of every process."""
    failures = getattr(error, "failures", None)
    if not failures:
        return str(error)
    return "; ".join(f"process {rank}: {failure[0]}" for rank, failure in sorted(failures.items()))


TENSORS = ("model", "optimizer", "average")


def split_state(state: dict) -> tuple[dict, dict]:
    """A learner's state: what holds tensors, and what is plain JSON."""
    return {k: v for k, v in state.items() if k in TENSORS}, {k: v for k, v in state.items() if k not in TENSORS}
