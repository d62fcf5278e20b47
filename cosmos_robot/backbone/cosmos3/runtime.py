"""The Cosmos 3 forward over the modules of diffusers' ``Cosmos3OmniTransformer``, batched, text half cached.

diffusers runs one packed sequence per call. Here a batch of samples shares a token plan, texts may differ in length,
and the text half (which never sees generation tokens nor time) runs once per distinct prompt. The result equals the
diffusers forward; gradients flow, so this is the training forward too. Modules are called, their weights never read, so
adapters around them (LoRA) count.

Axis legend: B samples, G branches of guidance, U distinct prompts, n text tokens, N generation tokens, R action rows,
T noisy rows among them, W width of a row, C channels, L h w latent frames, rows and columns, Hk key-value heads, d head
width, E hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from diffusers import Cosmos3OmniTransformer
from torch import Tensor, nn

from cosmos_robot.backbone.cosmos3.acceleration import generation_step, text_step
from cosmos_robot.backbone.cosmos3.kernels import can_share_text, rms_norm
from cosmos_robot.backbone.cosmos3.layers import Padded, Read, Wanted
from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.rotary import rotary, text_rotary
from cosmos_robot.backbone.cosmos3.text_cache import TextBlock, TextCache, join_texts
from cosmos_robot.errors import InputError

__all__ = ["TextCache", "Velocity", "Want", "encode_text", "join_rows", "join_texts", "velocity"]

Want = Literal["action", "video"]


@dataclass(frozen=True)
class Velocity:
    """float32 predictions at the noisy tokens. action (B, T, W); video (B, C, L, h, w), zero at clean frames; hidden
    (B, N, E), the residual stream that was asked for."""

    action: Tensor | None = None
    video: Tensor | None = None
    hidden: Tensor | None = None


def encode_text(transformer: Cosmos3OmniTransformer, token_ids: Sequence[Sequence[int]]) -> TextCache:
    """Run the text half over U prompts (lists of token ids, lengths may differ)."""
    if not token_ids or not all(len(ids) for ids in token_ids):
        raise InputError("encode_text: expected at least one prompt, none of them empty")
    device = transformer.embed_tokens.weight.device
    rows = [torch.as_tensor(ids, dtype=torch.long) for ids in token_ids]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    if int(padded.max()) >= transformer.vocab_size or int(padded.min()) < 0:
        raise InputError(
            f"encode_text: token id {int(padded.max())} outside the vocabulary of {transformer.vocab_size}"
        )
    x = transformer.embed_tokens(padded)
    turn = text_rotary(transformer, padded.shape[1])
    step, keys, values = text_step(transformer), [], []
    for layer in transformer.layers:
        # Right padding needs no mask here: under a causal mask no real token looks to its right.
        x, key, value = step(layer, x, turn, layer is transformer.layers[-1])
        keys.append(key)
        values.append(value)
    return TextCache((TextBlock(tuple(keys), tuple(values), tuple(len(ids) for ids in token_ids)),))


def velocity(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    text_index: Tensor | Sequence[int],
    latents: Tensor,
    action_rows: Tensor | None,
    timestep: Tensor,
    domain_id: Tensor | Sequence[int],
    want: Sequence[Want] = ("action",),
    hidden_at: int | None = None,
    action_width: int | None = None,
) -> Velocity:
    """Velocity of the noisy tokens of B samples.

    text_index (B,): prompt of each sample in ``text``; or (G, B) for G branches of guidance over the same samples. The
    results are then those of G * B samples, branch after branch, and what does not depend on the text runs once.
    latents (B, C, L, h, w) and action_rows (B, R, W) hold clean and noisy entries together, in model units; rows
    narrower than the model are zero-padded, and only the first ``action_width`` (default W) predicted columns are
    returned. timestep (B,): 0..1000, one per sample. domain_id (B,). hidden_at: also return the residual stream
    entering that layer. Raises InputError on any shape that does not fit the plan. The last layer computes only the
    tokens named by ``want``.
    """
    index = torch.as_tensor(text_index, dtype=torch.long)
    _check_inputs(transformer, plan, text, index, latents, action_rows, timestep, want, hidden_at)
    branches = 1 if index.ndim == 1 else len(index)
    prompts, domains = index.flatten().tolist(), torch.as_tensor(domain_id).tolist()
    x = _embed(transformer, plan, latents, action_rows, timestep, domains)
    turn = rotary(transformer, plan, [text.lengths[i] for i in prompts], x.device)
    read = _reader(text, prompts, x)
    wanted = _wanted_tokens(plan, transformer.config.latent_patch_size, tuple(want))
    step, hidden = generation_step(transformer), None
    for number, layer in enumerate(transformer.layers):
        if number == hidden_at:
            hidden = x if number else x.repeat(branches, 1, 1)
        last = number == len(transformer.layers) - 1
        x = step(layer, x, read(number), turn, wanted if last else None, 1 if number else branches)
    x = rms_norm(transformer.norm_moe_gen, x)
    split = len(wanted) - (len(plan.noisy_rows) if "action" in want else 0)
    action = video = None
    if "action" in want:
        width = action_width or action_rows.shape[2]
        action = domain_linear(transformer.action_proj_out, x[:, split:], domains * branches)[..., :width].float()
    if "video" in want:
        shape = (len(x), *latents.shape[1:])
        video = _unpatch(transformer.proj_out(x[:, :split]).float(), plan, transformer.config.latent_patch_size, shape)
    return Velocity(action, video, hidden)


def join_rows(state: Tensor | None, actions: Tensor) -> Tensor:
    """Action rows (B, R, W) of a plan with a state row: ``state`` (B, S) first, then ``actions`` (B, T, D), both
    zero-padded to the wider; without a state, the actions."""
    if state is None:
        return actions
    width = max(state.shape[-1], actions.shape[-1])
    rows = [F.pad(part, (0, width - part.shape[-1])) for part in (state.unsqueeze(1), actions)]
    return torch.cat(rows, dim=1)


def _check_inputs(transformer, plan, text, index, latents, action_rows, timestep, want, hidden_at) -> None:
    config, batch = transformer.config, len(latents)
    if transformer._cp_shard_fn is not None or transformer._cp_gather_fn is not None:
        raise InputError(
            "velocity: this transformer has context-parallel hooks (_cp_shard_fn, _cp_gather_fn), which only diffusers "
            "itself calls; unset them, or split branches and candidates over processes (docs/speed.md)"
        )
    expected = (batch, config.latent_channel, *plan.latent_grid)
    if tuple(latents.shape) != expected:
        raise InputError(f"velocity: expected latents {expected}, got {tuple(latents.shape)}")
    if (0 if action_rows is None else action_rows.shape[1]) != plan.rows:
        raise InputError(f"velocity: the plan has {plan.rows} action rows, got {getattr(action_rows, 'shape', None)}")
    if plan.rows and (len(action_rows) != batch or action_rows.shape[2] > config.action_dim):
        raise InputError(
            f"velocity: expected action rows ({batch}, {plan.rows}, at most {config.action_dim}), got "
            f"{tuple(action_rows.shape)}"
        )
    if index.ndim not in (1, 2) or index.shape[-1:] != (batch,) or not index.numel() or timestep.shape != (batch,):
        raise InputError(
            f"velocity: expected one text index (in each branch) and one timestep for each of {batch} samples, got "
            f"{tuple(index.shape)} and {tuple(timestep.shape)}"
        )
    if int(index.min()) < 0 or int(index.max()) >= len(text):
        raise InputError(f"velocity: text index {index.tolist()} outside the {len(text)} cached prompts")
    noisy = {"action": plan.noisy_rows, "video": plan.noisy_frames}
    if not want or not all(noisy.get(part) for part in want):
        raise InputError(f"velocity: want={tuple(want)}, but the plan denoises {[k for k, v in noisy.items() if v]}")
    if hidden_at is not None and not 0 <= hidden_at < len(transformer.layers):
        raise InputError(f"velocity: hidden_at={hidden_at}, expected 0..{len(transformer.layers) - 1}")


def _embed(transformer, plan: TokenPlan, latents, action_rows, timestep, domain_id) -> Tensor:
    """(B, N, E) tokens: patches and rows projected, noisy ones with their time embedding."""
    dtype = transformer.embed_tokens.weight.dtype
    patches = _patch(latents.to(dtype), transformer.config.latent_patch_size)
    time = time_embedding(transformer, timestep.to(latents.device), dtype).unsqueeze(1)
    per_frame = plan.patches(transformer.config.latent_patch_size)
    vision = transformer.proj_in(patches) + _noisy_flags(plan.clean_frames, per_frame, time) * time
    if action_rows is None:
        return vision
    rows = F.pad(action_rows.to(dtype), (0, transformer.config.action_dim - action_rows.shape[2]))
    rows = domain_linear(transformer.action_proj_in, rows, domain_id) + transformer.action_modality_embed
    return torch.cat([vision, rows + _noisy_flags(plan.clean_rows, 1, time) * time], dim=1)


def _noisy_flags(clean: tuple[bool, ...], repeat: int, like: Tensor) -> Tensor:
    flags = torch.tensor([not c for c in clean], dtype=like.dtype, device=like.device)
    return flags.repeat_interleave(repeat).unsqueeze(-1)


def time_embedding(transformer: Cosmos3OmniTransformer, timestep: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, E) of timesteps (B,) in 0..1000. Kept out of autocast: the embedder runs in its own (float32) precision."""
    embedder = transformer.time_embedder
    with torch.autocast(timestep.device.type, enabled=False):
        waves = transformer.time_proj(timestep.float() * transformer.config.timestep_scale)
        return embedder(waves.to(next(embedder.parameters()).dtype)).to(dtype)


def domain_linear(projection: nn.Module, x: Tensor, domain_id: Tensor | Sequence[int]) -> Tensor:
    """(B, rows, in) to (B, rows, out) with each sample's own domain weights; one product per distinct domain. The
    embeddings are called, not read, so that adapters around them count."""
    ids = torch.as_tensor(domain_id).tolist()
    if len(ids) != len(x):
        raise InputError(f"velocity: expected {len(x)} domain ids, got {len(ids)}")
    if not all(0 <= i < projection.num_domains for i in ids):
        raise InputError(f"velocity: domain ids {sorted(set(ids))}, expected 0..{projection.num_domains - 1}")
    shape = (projection.input_size, projection.output_size)
    if not ids:
        return x.new_zeros(*x.shape[:-1], projection.output_size)
    groups = {d: [b for b, i in enumerate(ids) if i == d] for d in dict.fromkeys(ids)}
    parts = []
    for domain, members in groups.items():
        row = torch.tensor([domain], device=x.device)
        weight, bias = projection.fc(row).view(shape), projection.bias(row)
        parts.append((x if len(groups) == 1 else x[members]) @ weight + bias)
    if len(parts) == 1:
        return parts[0]
    order = torch.tensor([b for members in groups.values() for b in members], device=x.device)
    return torch.cat(parts)[order.argsort()]


def _patch(latents: Tensor, patch: int) -> Tensor:
    """(B, C, L, h, w) to (B, L * patches, patch * patch * C); odd sides are zero-padded at the end."""
    _, channels, frames, height, width = latents.shape
    latents = F.pad(latents, (0, -width % patch, 0, -height % patch))
    grid = latents.unflatten(4, (-1, patch)).unflatten(3, (-1, patch))
    return grid.permute(0, 2, 3, 5, 4, 6, 1).reshape(len(latents), -1, patch * patch * channels)


def _unpatch(tokens: Tensor, plan: TokenPlan, patch: int, shape: tuple[int, ...]) -> Tensor:
    """Tokens of the noisy frames to ``shape`` (B, C, L, h, w), zero at clean frames."""
    _, height, width = plan.latent_grid
    grid = (len(plan.noisy_frames), -(-height // patch), -(-width // patch), patch, patch, shape[1])
    pixels = tokens.unflatten(2, grid[3:]).unflatten(1, grid[:3]).permute(0, 6, 1, 2, 4, 3, 5)
    pixels = pixels.flatten(5, 6).flatten(3, 4)[..., :height, :width]
    video = pixels.new_zeros(shape)
    video[:, :, list(plan.noisy_frames)] = pixels
    return video


@lru_cache(maxsize=256)
def _wanted_tokens(plan: TokenPlan, patch: int, want: tuple[Want, ...]) -> Wanted:
    """Generation tokens to read out, vision before action; a range where they are contiguous."""
    per_frame = plan.patches(patch)
    tokens = []
    if "video" in want:
        tokens += [f * per_frame + i for f in plan.noisy_frames for i in range(per_frame)]
    if "action" in want:
        tokens += [plan.latent_grid[0] * per_frame + r for r in plan.noisy_rows]
    span = range(tokens[0], tokens[-1] + 1)
    return span if len(span) == len(tokens) else tokens


def _reader(text: TextCache, prompts: list[int], x: Tensor) -> Callable[[int], Read]:
    """What the attention of a layer reads of the text. Where it can be shared, each prompt comes once, with the samples
    that read it; elsewhere one padded row for each sample, and a mask where lengths differ."""
    if can_share_text(x):
        readers = {prompt: [b for b, p in enumerate(prompts) if p == prompt] for prompt in dict.fromkeys(prompts)}
        places = {prompt: _place(samples, x.device) for prompt, samples in readers.items()}
        return lambda layer: [(place, *text.one(layer, prompt)) for prompt, place in places.items()]
    lengths = [text.lengths[prompt] for prompt in prompts]
    mask = _padding_mask(lengths, text.rows(0, prompts)[0].shape[2], x)
    return lambda layer: Padded(*text.rows(layer, prompts), mask)


def _place(samples: list[int], device: torch.device) -> slice | Tensor:
    """Those samples of a batch, as a view where they stand together."""
    span = slice(samples[0], samples[-1] + 1)
    return span if span.stop - span.start == len(samples) else torch.tensor(samples, device=device)


def _padding_mask(lengths: list[int], padded: int, x: Tensor) -> Tensor | None:
    """(G * B, 1, 1, padded + N) True where a key may be read; None where no text is padded."""
    if min(lengths) == padded:
        return None
    text = torch.arange(padded, device=x.device) < torch.tensor(lengths, device=x.device).unsqueeze(1)
    return F.pad(text, (0, x.shape[1]), value=True)[:, None, None]
