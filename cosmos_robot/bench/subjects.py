"""Random models of known size, a scene for them, and the peer: diffusers' pipeline and packed forward over the same
modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import init_empty_weights
from diffusers import Cosmos3OmniPipeline, Cosmos3OmniTransformer
from PIL import Image as PILImage
from torch import Tensor, nn

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.backbone.cosmos3.positions import plan_positions, text_positions
from cosmos_robot.backbone.cosmos3.sampler import native_scheduler
from cosmos_robot.backbone.cosmos3.text import build_word_tokenizer
from cosmos_robot.backbone.cosmos3.tiny import initialise, tiny_transformer, tiny_vae
from cosmos_robot.contract import (
    Box,
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)
from cosmos_robot.types import Observation

SIDE = 256
"""Pixels of the square picture."""

WIDTH = 10
"""Numbers of a command: that of the domain below in the pipeline's own table."""

DOMAIN, DOMAIN_NAME = 7, "bridge_orig_lerobot"
INSTRUCTION = "put the small spoon from the basket onto the tray"


def bench_contract(steps: int = 4, guidance: float = 3.0, chunk: int = 16, fps: float = 5.0) -> Contract:
    """A robot with one camera whose commands are the model's own rows, for a model that denoises video and actions
    together, as the pipeline's ``policy`` mode does, or the actions alone."""
    square = Box(top=0, left=0, height=SIDE, width=SIDE)
    plain = Normalization(method="identity", scale_floor=1e-6)
    robot = RobotSpec(
        name="bench",
        cameras=(CameraSpec(name="camera", height=SIDE, width=SIDE),),
        state=(),
        action=(FieldSpec(name="row", width=WIDTH, unit="1"),),
        action_reference="absolute",
        rate_hz=fps,
    )
    model = ModelSpec(
        name="bench",
        backbone="cosmos3",
        modes=("wam", "policy"),
        domain_id=DOMAIN,
        domain_name=DOMAIN_NAME,
        chunk=chunk,
        execute=chunk,
        state_row=False,
        canvas=CanvasSpec(
            height=SIDE, width=SIDE, placements=(Placement(camera="camera", crop=square, to=square),), tier="256"
        ),
        state_normalization=plain,
        action_normalization=plain,
        prompt=PromptSpec(template="action_json", viewpoint="ego_view"),
        sampler=SamplerSpec(solver="unipc", steps=steps, shift=5.0, guidance=guidance),
    )
    return Contract(robot=robot, model=model)


def tiny_checkpoint(contract: Contract, seed: int = 0, vae_width: int = 16) -> Checkpoint:
    """About 10 million random parameters in float32: the sizes of the shipped checkpoint with the released models'
    patches of 2 x 2 and action rows of 64. Its autoencoder starts at ``vae_width`` channels (the released one: 160)."""
    tokenizer = build_word_tokenizer([INSTRUCTION])
    transformer = tiny_transformer(len(tokenizer), seed, latent_patch_size=2, patch_latent_dim=192, action_dim=64)
    modules = (transformer.eval(), tiny_vae(seed, vae_width, decoder_base_dim=8).eval())
    return Checkpoint("bench", Path(), *modules, tokenizer, {}, contract)


def observation(seed: int = 0) -> Observation:
    """A picture of noise and the instruction."""
    picture = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return Observation(images={"camera": picture}, state={}, instruction=INSTRUCTION)


def parameters(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def held_bytes(*modules: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(t.nbytes for module in modules for t in (*module.parameters(), *module.buffers()))


class Peer:
    """diffusers' ``Cosmos3OmniPipeline`` over the modules of a checkpoint, called as its documentation calls it."""

    def __init__(self, checkpoint: Checkpoint):
        self.contract = checkpoint.contract
        self.pipeline = Cosmos3OmniPipeline(
            checkpoint.transformer,
            checkpoint.tokenizer,
            checkpoint.vae,
            native_scheduler(self.contract.model.sampler.shift),
            enable_safety_checker=False,
            default_use_system_prompt=self.contract.model.prompt.system_prompt,
            use_native_flow_schedule=True,
        )
        self.pipeline.set_progress_bar_config(disable=True)

    def encode(self, seen: Observation) -> Tensor:
        """(1, C, L, h, w) of the whole clip that the pipeline encodes: the picture, repeated."""
        picture = torch.from_numpy(seen.images["camera"]).permute(2, 0, 1) / 127.5 - 1
        clip = picture[None, :, None].expand(-1, -1, self.contract.model.chunk + 1, -1, -1)
        with torch.no_grad():
            return self.pipeline._encode_video(clip)

    def act(self, seen: Observation, latents: Tensor, rows: Tensor) -> Tensor:
        """Actions (T, WIDTH). latents (1, C, L, h, w): the clean first frame, then noise. rows (T, width): noise."""
        from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition

        model = self.contract.model
        condition = CosmosActionCondition(
            mode="policy",
            chunk_size=model.chunk,
            domain_name=model.domain_name,
            resolution_tier=SIDE,
            image=PILImage.fromarray(seen.images["camera"]),
        )
        out = self.pipeline(
            seen.instruction,
            action=condition,
            fps=self.contract.fps,
            num_inference_steps=model.sampler.steps,
            guidance_scale=model.sampler.guidance,
            latents=latents,
            action_latents=rows,
            output_type="latent",
        )
        return out.action[0]


def packed(transformer: Cosmos3OmniTransformer, plan: TokenPlan, ids: Sequence[int], domain: int) -> dict[str, Any]:
    """The constant arguments of diffusers' packed forward for one sample and one prompt, prepared once as the pipeline
    prepares them."""
    config = transformer.config
    patch, margin = config.latent_patch_size, config.unified_3d_mrope_temporal_modality_margin
    frames, height, width = plan.latent_grid
    grid, count, per_frame = (frames, -(-height // patch), -(-width // patch)), len(ids), plan.patches(patch)
    generated = plan_positions(plan, count, patch, margin, float(config.base_fps))
    noisy_frames, noisy_rows = torch.tensor(plan.noisy_frames).long(), torch.tensor(plan.noisy_rows).long()
    rows = torch.arange(plan.rows) + count + frames * per_frame
    return {
        "input_ids": torch.tensor(ids),
        "text_indexes": torch.arange(count),
        "position_ids": torch.cat([text_positions(count), generated], dim=1),
        "und_len": count,
        "sequence_length": count + frames * per_frame + plan.rows,
        "vision_token_shapes": [grid],
        "vision_sequence_indexes": torch.arange(frames * per_frame) + count,
        "vision_mse_loss_indexes": (noisy_frames[:, None] * per_frame + torch.arange(per_frame)).flatten() + count,
        "vision_noisy_frame_indexes": [noisy_frames],
        "action_token_shapes": [(plan.rows, 1, 1)],
        "action_sequence_indexes": rows,
        "action_mse_loss_indexes": rows[noisy_rows],
        "action_noisy_frame_indexes": [noisy_rows],
        "action_domain_ids": [torch.tensor([domain])],
    }


def packed_velocity(
    transformer: Cosmos3OmniTransformer, static: dict[str, Any], latents: Tensor, rows: Tensor, timestep: Tensor
) -> tuple[Tensor, Tensor]:
    """diffusers' forward of one sample: video (C, L, h, w), zero at clean frames, and actions (R, width), zero at clean
    rows. latents (C, L, h, w), rows (R, at most width), timestep ()."""
    noisy_tokens, noisy_rows = len(static["vision_mse_loss_indexes"]), len(static["action_mse_loss_indexes"])
    dtype = transformer.dtype
    video, _, action = transformer(
        **static,
        vision_tokens=[latents[None].to(dtype)],
        vision_timesteps=timestep.expand(noisy_tokens),
        action_tokens=[F.pad(rows, (0, transformer.config.action_dim - rows.shape[1])).to(dtype)],
        action_timesteps=timestep.expand(noisy_rows),
        return_dict=False,
    )
    return video[0][0].float(), action[0].float()


def nano_slice(layers: int, vocabulary: int, dtype: torch.dtype, seed: int = 0) -> Cosmos3OmniTransformer:
    """Cosmos3-Nano's true widths (diffusers' defaults), a few layers, random weights made in ``dtype``."""
    with init_empty_weights():
        model = Cosmos3OmniTransformer(
            num_hidden_layers=layers, vocab_size=vocabulary, action_gen=True, action_dim=64, num_embodiment_domains=32
        )
    for name, parameter in list(model.named_parameters()):
        kind = torch.float32 if name.startswith("time_embedder") else dtype
        owner, leaf = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        setattr(owner, leaf, nn.Parameter(torch.ones(parameter.shape, dtype=kind), requires_grad=False))
    initialise(model, seed)
    return model.eval()
