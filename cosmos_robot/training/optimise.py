"""Optimiser, learning-rate cycle, weight average, and forward passes in bfloat16 under float32 weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from cosmos_robot.errors import TrainingError


class WorkingCopy:
    """A copy of ``module`` in another precision that forward and backward run on; the original keeps the weights.

    Faster than autocast on a CPU: trained weights are cast once per step and nothing is cast in between; those that
    require no gradients are cast once, or shared where they are of ``dtype`` already. Submodules named in ``keep`` stay
    in float32. With ``dtype`` float32 the module itself is used.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype, keep: tuple[str, ...] = ()):
        self.original = module
        self.module = module
        if dtype != torch.float32:
            shared = {id(p): p for p in module.parameters() if not p.requires_grad and p.dtype == dtype}
            # diffusers overrides ``to`` with a warning about modules to keep, which ``keep`` already answers
            self.module = nn.Module.to(copy.deepcopy(module, shared), dtype)
            for name in keep:
                self.module.get_submodule(name).float().load_state_dict(module.get_submodule(name).state_dict())
        pairs = zip(module.parameters(), self.module.parameters(), strict=True)
        self._pairs = [(own, copy_) for own, copy_ in pairs if own.requires_grad]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the copy up to date with the weights and forget its gradients."""
        if self.module is not self.original:
            torch._foreach_copy_([copy_ for _, copy_ in self._pairs], [own for own, _ in self._pairs])
        for _, parameter in self._pairs:
            parameter.grad = None

    @torch.no_grad()
    def hand_over(self) -> None:
        """Give the copy's gradients to the original's parameters, in float32; those without one get None."""
        if self.module is self.original:
            return
        for own, copy_ in self._pairs:
            own.grad = None if copy_.grad is None else copy_.grad.to(own.dtype)


class Average:
    """Moving average of a module's weights. ``decay`` is what the average keeps of itself: a number d stands for
    min(d, (1 + n) / (10 + n)) at update n, counted from 0; a function is asked with n (``objective.power_decay``)."""

    def __init__(self, module: nn.Module, decay: float | Callable[[int], float]):
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0
        self._own, self._source = list(self.module.parameters()), list(module.parameters())

    @torch.no_grad()
    def update(self) -> None:
        n = self.updates
        decay = self.decay(n) if callable(self.decay) else min(self.decay, (1 + n) / (10 + n))
        self.updates += 1
        torch._foreach_lerp_(self._own, self._source, 1 - decay)


class TrainedAverage:
    """``Average`` of those parameters alone that are trained, sharded ones by their shards. decay as there; None keeps
    no average: the weights themselves stand for it."""

    def __init__(self, module: nn.Module, decay: Callable[[int], float] | None):
        self.decay, self.updates = decay, 0
        self._source = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.weights = {} if decay is None else {name: p.detach().clone() for name, p in self._source.items()}

    @torch.no_grad()
    def update(self) -> None:
        if self.decay is None:
            return
        kept = self.decay(self.updates)
        self.updates += 1
        pairs = [(_shard(own), _shard(self._source[name])) for name, own in self.weights.items()]
        torch._foreach_lerp_([own for own, _ in pairs], [source for _, source in pairs], 1 - kept)

    @torch.no_grad()
    def exchange(self) -> None:
        """Put the average into the module and keep its weights meanwhile; once more undoes it."""
        for name, own in self.weights.items():
            mine, theirs = _shard(own), _shard(self._source[name])
            held = theirs.clone()
            theirs.copy_(mine)
            mine.copy_(held)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module holds the average inside the block."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()


def _shard(parameter: Tensor) -> Tensor:
    return getattr(parameter, "_local_tensor", parameter)


def adamw(parameters: Iterable[nn.Parameter], weight_decay: float) -> torch.optim.AdamW:
    """AdamW with betas (0.9, 0.99), fused; vectors and scalars are not decayed. The rate is set every step."""
    parameters = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=(0.9, 0.99), fused=True)


def learning_rate(
    peak: float, final: float, warmup: int, step: int, progress: float, schedule: Literal["cosine", "linear"] = "cosine"
) -> float:
    """Rate at ``step`` (counted from 0) of a cycle that is ``progress`` (0..1) done: linear warm-up over ``warmup``
    steps, times a cosine or a line from ``peak`` to ``final * peak``."""
    done = min(progress, 1.0)
    left = (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1 - done
    return peak * (final + (1 - final) * left) * min(1.0, (step + 1) / max(warmup, 1))


def step(
    optimizer: torch.optim.Optimizer,
    rate: float,
    clip: float,
    number: int,
    losses: Mapping[str, float],
    where: str = "",
) -> float:
    """Clip to the global norm, update, forget the gradients; returns the norm before clipping. A group learns at
    ``rate`` times its ``factor``, if it has one.

    number, losses, where: of this step, for the message; ``where`` says in words which samples were wrong. Raises
    TrainingError, with nothing updated, where a loss or the norm is not finite; the norm of sharded weights is that of
    all processes, so all of them raise.
    """
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)
        parameters += [p for p in group["params"] if p.grad is not None]
    clipped = torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=True)
    norm = float(clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped)
    _require_finite(number, losses, norm, where)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def _require_finite(number: int, losses: Mapping[str, float], norm: float, where: str) -> None:
    bad = [name for name, value in losses.items() if not math.isfinite(value)]
    if not bad and math.isfinite(norm):
        return
    what = f"loss {', '.join(bad)}" if bad else "gradient (its losses are finite here)"
    raise TrainingError(
        f"training step {number}: the {what} is not finite, the gradient's norm is {norm}"
        f"{f'; {where}' if where else ''}. Nothing was updated and the last saved state is whole; check those "
        "recordings (cosmos-robot data lint), or train with a lower lr or in float32"
    )


def training_state(model: nn.Module, average: Average, optimizer: torch.optim.Optimizer) -> dict:
    """What ``load_training_state`` goes on from: weights, their average and the optimiser."""
    return {
        "model": model.state_dict(),
        "average": average.module.state_dict(),
        "average_updates": average.updates,
        "optimizer": optimizer.state_dict(),
    }


def load_training_state(state: dict, model: nn.Module, average: Average, optimizer: torch.optim.Optimizer) -> None:
    """Go on from ``training_state``."""
    model.load_state_dict(state["model"])
    average.module.load_state_dict(state["average"])
    average.updates = state["average_updates"]
    optimizer.load_state_dict(state["optimizer"])
