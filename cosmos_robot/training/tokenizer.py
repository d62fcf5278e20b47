"""``train_tokenizer``: an AutoencoderKLWan that compresses canvases and says, cell by cell, what lies where.

Reconstruction alone spends the latents on table and walls; objects are a few percent of the pixels. The object head
(``object_head``) makes their class and place linearly readable, which is what a small policy needs. The decoder learns
on a share of the steps only, since acting never decodes.

Axis legend: B pictures, H W pixels, C h w latents, P placements, S object slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cosmos_robot.backbone.cosmos3.image_codec import decode_images, encode_images
from cosmos_robot.backbone.cosmos3.latents import to_pixels
from cosmos_robot.backbone.cosmos3.tiny import tiny_vae
from cosmos_robot.errors import InputError
from cosmos_robot.ownership import owned
from cosmos_robot.training.cache import CELL, EpisodeSource, FrameCache, StoredEpisodes, frame_cache
from cosmos_robot.training.config import TokenizerTraining, plain
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.ingredients import autoencoder_fingerprint, ingredients
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.object_head import ObjectHead, cell_loss, object_losses, object_scores, object_targets
from cosmos_robot.training.optimise import WorkingCopy, adamw
from cosmos_robot.training.optimise import step as optimiser_step
from cosmos_robot.training.session import Budget, RunFolder

VAE_FOLDER = "vae"
PICTURE = "reconstructions.png"
VALIDATION_PICTURES = 128
STATISTICS_PICTURES = 1024
_MAY_DIFFER = ("progress", "save_seconds", "threads", "cache")


def train_tokenizer(config: TokenizerTraining, sources: Sequence[EpisodeSource] | None = None) -> Path:
    """Train, or resume, and return ``config.out``, in which ``vae/`` holds the autoencoder with its latent statistics,
    beside the log, curves and a picture of held-out canvases and their reconstructions.

    sources: the episodes, if they are not to be read from ``config.datasets``. Raises as ``model_trainer.train_model``
    does.
    """
    with owned(config.out, f"training into {config.out}"):
        return _train_tokenizer(config, sources)


def _train_tokenizer(config: TokenizerTraining, sources: Sequence[EpisodeSource] | None) -> Path:
    torch.set_num_threads(config.threads)
    if sources is None:
        sources = [StoredEpisodes(path, config.contract) for path in config.datasets]
    begun = None if config.start is None else AutoencoderKLWan.from_pretrained(config.start / VAE_FOLDER)
    weights = {} if begun is None else {"autoencoder": autoencoder_fingerprint(begun)}
    made_from = ingredients({"datasets": [source.fingerprint for source in sources]}, weights)
    folder = RunFolder(config.out, plain(config) | made_from, _MAY_DIFFER)
    frames = [frame_cache(source, config.contract, config.cache, config.progress) for source in sources]
    pictures = Pictures(frames)
    vae = tiny_vae(config.seed, config.base_dim, config.decoder_base_dim) if begun is None else begun
    learner = TokenizerLearner(vae, pictures, config)
    budget = Budget(config.minutes, config.steps)
    run(learner, folder, [Cycle("tokenizer", budget, config.lr, config.warmup, 0.02)],
        Pace(config.save_seconds, 60.0, None, config.progress))  # fmt: skip
    round_weights(vae)
    # Checkpoints are saved in bfloat16: what a policy is trained on must be what the saved autoencoder gives.
    vae.to(torch.bfloat16).float()
    set_latent_statistics(vae, pictures.canvases(_spread(pictures.training, STATISTICS_PICTURES)))
    vae.save_pretrained(folder.path / VAE_FOLDER)
    save_reconstructions(vae, pictures.canvases(_spread(pictures.validation, 6)), folder.path / PICTURE)
    draw_curves(folder)
    return folder.path


class Pictures:
    """Canvases of several frame caches with the objects on them. training, validation: indices."""

    def __init__(self, caches: Sequence[FrameCache]):
        self._caches = tuple(caches)
        self._starts = np.cumsum([0] + [len(c) for c in caches])
        columns = ("object_cells", "object_seen", "object_class")
        self.cells, self.seen, self.classes = (np.concatenate([getattr(c, name) for c in caches]) for name in columns)
        held_out = np.concatenate([c.validation for c in caches])
        self.training, self.validation = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        if not len(self.training):
            raise InputError("tokenizer training: every episode is held out; record more than one")
        self.class_count = max(int(self.classes.max(initial=0)) + 1, 1)
        _, self.height, self.width, _ = caches[0].canvases.shape

    def canvases(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(B, H, W, 3)."""
        part = np.searchsorted(self._starts, index, side="right") - 1
        return np.stack([self._caches[p].canvases[i - self._starts[p]] for p, i in zip(part, index, strict=True)])

    def objects(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """cells (B, P, S, 2), seen (B, P, S), classes (B, S)."""
        return tuple(torch.from_numpy(column[index]) for column in (self.cells, self.seen, self.classes))


class TokenizerLearner:
    """A ``loop.Learner`` for the autoencoder and its object head."""

    def __init__(self, vae: AutoencoderKLWan, pictures: Pictures, config: TokenizerTraining):
        self.vae, self.pictures, self.config = vae.float(), pictures, config
        self.head = ObjectHead(vae.config.z_dim, pictures.class_count, config.seed)
        self._work = WorkingCopy(self.vae, getattr(torch, config.compute))
        self._optimizer = adamw([*self.vae.parameters(), *self.head.parameters()], config.weight_decay)

    def train_step(self, cycle: int, step: int, rate: float) -> Mapping[str, float]:
        config, pictures = self.config, self.pictures
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        drawn = torch.randint(len(pictures.training), (config.batch,), generator=generator).numpy()
        pixels, cells, seen, classes = self._augmented(pictures.training[drawn], generator)
        self._work.refresh()
        vae = self._work.module
        latents = encode_images(vae, pixels.to(next(vae.parameters()).dtype))
        noise = config.noise * torch.randn(latents.shape, generator=generator)
        targets = object_targets(cells, seen, classes, self.head.classes, *latents.shape[-2:])
        logits, places, cell = self.head(latents, noise)
        present, place = object_losses(logits, places, targets)
        losses = {"object": present, "place": place, "cell": cell_loss(cell)}
        total = config.object_weight * present + config.offset_weight * place + config.cell_weight * losses["cell"]
        if step % config.decode_every == 0:
            few = slice(0, config.decode_batch)
            spread = latents[few].detach().float().std((0, 2, 3), keepdim=True)
            shaken = latents[few] + (noise[few] * spread).to(latents.dtype)
            losses["pixels"] = reconstruction_loss(decode_images(vae, shaken).float(), pixels[few])
            total = total + config.reconstruction_weight * config.decode_every * losses["pixels"]
        total.backward()
        self._work.hand_over()
        found = {name: float(value.detach()) for name, value in losses.items()}
        return found | {"norm": optimiser_step(self._optimizer, rate, config.clip, step, found)}

    def _augmented(self, index, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pixels (B, 3, H, W), shifted and with changed light, and the objects on them, shifted alike."""
        config = self.config
        pixels = to_pixels(self.pictures.canvases(index))
        cells, seen, classes = self.pictures.objects(index)
        if config.shift:
            by = torch.randint(-config.shift, config.shift + 1, (2,), generator=generator).tolist()
            pixels = shift_pictures(pixels, *by)
            cells = cells + torch.tensor(by) / CELL
        return change_light(pixels, config.jitter, generator), cells, seen, classes

    @torch.inference_mode()
    def validate(self) -> Mapping[str, float]:
        """psnr: dB. found: share of objects whose class is strongest around them. place_px: median error of their
        place, pixels."""
        index = _spread(self.pictures.validation, VALIDATION_PICTURES)
        self.head.eval()
        square, found, errors = [], [], []
        for part in np.array_split(index, -(-len(index) // 32)):
            pixels = to_pixels(self.pictures.canvases(part))
            latents = encode_images(self.vae, pixels)
            square.append((decode_images(self.vae, latents).clamp(-1, 1) - pixels).square().mean((1, 2, 3)))
            targets = object_targets(*self.pictures.objects(part), self.head.classes, *latents.shape[-2:])
            near, error = object_scores(*self.head(latents)[:2], targets)
            found.append(near.float())
            errors.append(error * CELL)
        self.head.train()
        measures = {"psnr": float((10 * torch.log10(4 / torch.cat(square))).mean())}
        if sum(map(len, found)):
            measures |= {"found": float(torch.cat(found).mean()), "place_px": float(torch.cat(errors).median())}
        return measures

    def state(self) -> dict:
        parts = {"vae": self.vae, "head": self.head, "optimizer": self._optimizer}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: dict) -> None:
        for name, part in (("vae", self.vae), ("head", self.head), ("optimizer", self._optimizer)):
            part.load_state_dict(state[name])


def reconstruction_loss(output: Tensor, pixels: Tensor) -> Tensor:
    """L1 of the pixels plus half the L1 of their differences to the right and downwards (edges)."""
    error = output - pixels
    edges = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    return error.abs().mean() + 0.5 * edges


def shift_pictures(pixels: Tensor, down: int, right: int) -> Tensor:
    """Move (B, 3, H, W) by whole pixels; the border repeats."""
    height, width = pixels.shape[-2:]
    reach = max(abs(down), abs(right))
    if not reach:
        return pixels
    padded = F.pad(pixels, (reach,) * 4, mode="replicate")
    moved = padded[..., reach - down : reach - down + height, reach - right : reach - right + width]
    return moved.contiguous(memory_format=torch.channels_last)


def change_light(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Per picture: contrast and the brightness of each colour changed by up to ``strength``; stays in [-1, 1]."""
    if not strength:
        return pixels
    count = len(pixels)

    def draw(*shape: int) -> Tensor:
        return (torch.rand(count, *shape, 1, 1, generator=generator) * 2 - 1) * strength

    gain = 1 + draw(1) + 0.5 * draw(3)
    return (pixels * gain + draw(1) + 0.5 * draw(3)).clamp_(-1, 1)


@torch.no_grad()
def round_weights(vae: AutoencoderKLWan) -> None:
    """Round to bfloat16, the precision of a stored checkpoint: a policy must learn on the latents it will act on."""
    for parameter in vae.parameters():
        parameter.copy_(parameter.bfloat16())


@torch.inference_mode()
def set_latent_statistics(vae: AutoencoderKLWan, canvases: NDArray[np.uint8]) -> None:
    """Write mean and standard deviation per channel of the raw latents of ``canvases`` into the VAE's config."""
    parts = [encode_images(vae, to_pixels(canvases[i : i + 32])) for i in range(0, len(canvases), 32)]
    latents = torch.cat(parts).transpose(0, 1).flatten(1).double()
    vae.register_to_config(latents_mean=latents.mean(1).tolist(), latents_std=latents.std(1).clamp_min(1e-4).tolist())


@torch.inference_mode()
def save_reconstructions(vae: AutoencoderKLWan, canvases: NDArray[np.uint8], path: Path) -> None:
    """A PNG with each canvas on the left and its reconstruction on the right."""
    output = decode_images(vae, encode_images(vae, to_pixels(canvases))).clamp(-1, 1)
    drawn = ((output + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    Image.fromarray(np.concatenate([*np.concatenate([canvases, drawn], axis=2)])).save(path)


def _spread(index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most ``count`` of ``index``, evenly spaced."""
    return index[np.unique(np.linspace(0, len(index) - 1, count).round().astype(int))]
