"""One policy chunk, and several candidates, against diffusers' pipeline: same weights, picture, text and noise."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import contract_plan
from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.backbone.cosmos3.sampler import draw_noise
from cosmos_robot.bench.harness import Pair, Progress, interleave, machine, quiet, transient_bytes
from cosmos_robot.bench.subjects import (
    WIDTH,
    Peer,
    held_bytes,
    observation,
    parameters,
    tiny_checkpoint,
)
from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError

MakePolicy = Callable[[Checkpoint], Any]
"""A checkpoint to a ``JointPolicy`` whose ``model.texts`` is its text store; policies lie above this package."""


def policy_report(
    make_policy: MakePolicy, contract: Contract, repeats: int = 5, progress: Progress = quiet
) -> dict[str, Any]:
    """One chunk of actions from a 256-pixel picture, as ``contract`` says. Ours runs as in a control loop, where the
    instruction has been read before; ``cold_ratio`` is with the text read anew each time."""
    checkpoint = tiny_checkpoint(contract)
    policy, peer, seen = make_policy(checkpoint), Peer(checkpoint), observation()
    start = starts(peer, [0])[0]

    def ours() -> Any:
        return policy.act([seen], [0])[0].values

    def cold() -> Any:
        policy.model.texts.clear()
        return ours()

    def theirs() -> Tensor:
        return peer.act(seen, *start)

    pair = interleave(ours, theirs, repeats, progress=progress)
    cold_pair = interleave(cold, lambda: None, repeats, progress=progress)
    encode = interleave(lambda: policy.model.first_latents([seen]), lambda: peer.encode(seen), repeats)
    return {
        "bench": "policy",
        "shape": "tiny",
        "against": "diffusers Cosmos3OmniPipeline, output_type='latent'",
        "parameters": parameters(checkpoint.transformer, checkpoint.vae),
        **pair.as_json(),
        "cold_ratio": Pair(cold_pair.ours, pair.peer).ratio,
        "encode": encode.as_json(),
        "ratio_without_encoding": _rest(pair.peer, encode.peer) / _rest(pair.ours, encode.ours),
        "max_abs_diff": float(np.abs(ours() - theirs().numpy()).max()),
        "text_tokens": list(policy.model.texts.get(list(policy.model.texts.prompts)).lengths),
        "pictures_encoded": {"ours": 1, "peer": checkpoint.contract.model.chunk + 1},
        **machine(torch.float32),
    }


def candidates_report(
    make_policy: MakePolicy, contract: Contract, count: int = 8, repeats: int = 3, progress: Progress = quiet
) -> dict[str, Any]:
    """``count`` candidate chunks of one observation against as many pipeline calls, and what they take of memory.

    ``own_bytes`` are a candidate's own activations: what one call alone takes beyond weights and text. The peak of all
    together is held against 1.5 times the peak of one plus the own activations of the others.
    """
    if count < 2:
        raise InputError(f"bench candidates: expected n of at least 2, got {count}")
    checkpoint = tiny_checkpoint(contract)
    policy, peer, seen = make_policy(checkpoint), Peer(checkpoint), observation()
    begun = starts(peer, range(count))

    def ours() -> Any:
        return np.stack([chunk.values for chunk in policy.act([seen] * count, range(count))])

    def theirs() -> Any:
        return np.stack([peer.act(seen, *start).numpy() for start in begun])

    pair = interleave(ours, theirs, repeats, progress=progress)
    progress("memory")
    held = held_bytes(checkpoint.transformer, checkpoint.vae) + policy.model.texts.nbytes
    own, together = transient_bytes(lambda: policy.act([seen], [0])), transient_bytes(ours)
    return {
        "bench": "candidates",
        "n": count,
        "against": "as many calls of diffusers Cosmos3OmniPipeline, output_type='latent'",
        **pair.as_json(),
        "max_abs_diff": float(np.abs(ours() - theirs()).max()),
        "memory": {
            "held_bytes": held,
            "own_bytes": own,
            "peak_of_one_bytes": held + own,
            "peak_of_all_bytes": held + together,
            "ratio": (held + together) / (held + own + (count - 1) * own),
            "limit": 1.5,
            "text_bytes": policy.model.texts.nbytes,
            "peer_transient_bytes": transient_bytes(lambda: peer.act(seen, *begun[0])),
        },
        **machine(torch.float32),
    }


def encode_report(
    contract: Contract, repeats: int = 5, vae_width: int = 16, progress: Progress = quiet
) -> dict[str, Any]:
    """The clean first frame, alone, against the whole repeated clip that the pipeline encodes."""
    from cosmos_robot.backbone.cosmos3.latents import encode_first_frame

    checkpoint = tiny_checkpoint(contract, vae_width=vae_width)
    peer, seen = Peer(checkpoint), observation()
    picture = seen.images["camera"][None]

    def ours() -> Tensor:
        return encode_first_frame(checkpoint.vae, picture)

    pair = interleave(ours, lambda: peer.encode(seen), repeats, progress=progress)
    return {
        "bench": "encode",
        "against": "diffusers Cosmos3OmniPipeline._encode_video of the repeated picture",
        "vae_parameters": parameters(checkpoint.vae),
        "pictures_encoded": {"ours": 1, "peer": checkpoint.contract.model.chunk + 1},
        **pair.as_json(),
        "max_abs_diff": float((ours() - peer.encode(seen)[:, :, :1]).abs().max()),
        **machine(torch.float32),
    }


def _rest(whole: tuple[float, ...], part: tuple[float, ...]) -> float:
    return median(whole) - median(part)


def starts(peer: Peer, seeds: range | list[int]) -> list[tuple[Tensor, Tensor]]:
    """What the pipeline is to start from so that it begins with the noise of our seeds: its own encoding of the clean
    frame with our noise behind it, and our action noise on rows of the model's width."""
    contract, transformer = peer.contract, peer.pipeline.transformer
    clean = peer.encode(observation())
    plan = contract_plan(contract, "wam", (clean.shape[3], clean.shape[4]))
    config = transformer.config
    found = []
    for seed in seeds:
        noise = draw_noise(plan, config.latent_channel, config.action_dim, WIDTH, [seed])
        if noise.video is None or noise.action is None:
            raise InputError("bench: the pipeline denoises video and actions; the contract's plan lacks one of them")
        latents = torch.cat([clean[:, :, :1], noise.video], dim=2)
        found.append((latents, F.pad(noise.action[0], (0, config.action_dim - WIDTH))))
    return found
