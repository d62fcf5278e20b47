"""Prompts to tokens, canvases to latents, and the token plan's own checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from cosmos_robot.backbone.cosmos3.latents import crop_content, decode, encode_clip, encode_first_frame
from cosmos_robot.backbone.cosmos3.layout import TokenPlan, policy_plan, wam_plan
from cosmos_robot.backbone.cosmos3.text import TEXT_LIMIT, build_word_tokenizer, prompt_tokens
from cosmos_robot.backbone.cosmos3.tiny import tiny_vae
from cosmos_robot.contract import PromptSpec
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.prompts import render_prompt

SENTENCES = ["Pick up the soup, please.", "put the bowl on the plate"]


@pytest.mark.parametrize(
    "instruction", ["Pick up the soup.", "pick up  the soup", " PICK UP THE SOUP . ", "pick up the soup.."]
)
def test_caption(instruction: str) -> None:
    assert render_prompt(PromptSpec(template="caption"), instruction) == "pick up the soup"


def test_an_instruction_without_words_is_refused() -> None:
    with pytest.raises(InputError, match="no words"):
        render_prompt(PromptSpec(template="caption"), " . ")


def test_prompt_tokens_are_those_of_the_chat() -> None:
    tokenizer = build_word_tokenizer(SENTENCES)
    ids = prompt_tokens(tokenizer, "Pick up the ZEBRA bowl,")
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "<|im_start|>", "user", "pick", "up", "the", "[UNK]", "bowl", ",", "<|im_end|>",
        "<|im_start|>", "assistant", "<|im_end|>", "<|vision_start|>",
    ]  # fmt: skip
    with_system = tokenizer.convert_ids_to_tokens(prompt_tokens(tokenizer, "bowl", system_prompt=True))
    assert with_system[1] == "system" and "[UNK]" not in with_system and with_system[-6:] == [
        "bowl", "<|im_end|>", "<|im_start|>", "assistant", "<|im_end|>", "<|vision_start|>"
    ]  # fmt: skip
    assert len(prompt_tokens(tokenizer, "")) == 7


def test_a_saved_tokenizer_is_read_by_auto_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_word_tokenizer(SENTENCES)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert prompt_tokens(again, SENTENCES[0]) == prompt_tokens(tokenizer, SENTENCES[0])
    assert build_word_tokenizer(SENTENCES[::-1]).get_vocab() == tokenizer.get_vocab() == again.get_vocab()


def test_a_beginning_of_text_token_comes_first() -> None:
    tokenizer = build_word_tokenizer(SENTENCES)
    plain = prompt_tokens(tokenizer, "bowl")
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    assert prompt_tokens(tokenizer, "bowl") == [tokenizer.bos_token_id, *plain]


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = build_word_tokenizer(SENTENCES)
    tokenizer.chat_template = None
    with pytest.raises(CheckpointError, match="template missing"):
        prompt_tokens(tokenizer, "bowl")


@pytest.fixture(scope="module")
def vae():
    vae = tiny_vae(0, base_dim=4)
    vae.register_to_config(latents_mean=[0.1 * i for i in range(48)], latents_std=[0.5 + 0.1 * i for i in range(48)])
    return vae.eval()


@torch.no_grad()
def test_first_latent_is_that_of_the_whole_video(vae) -> None:
    rng = np.random.default_rng(0)
    video = rng.integers(0, 256, (2, 5, 32, 48, 3), dtype=np.uint8)
    ours = encode_first_frame(vae, video[:, 0])
    assert ours.shape == (2, 48, 1, 2, 3) and ours.dtype == torch.float32
    pixels = torch.from_numpy(video).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    whole = vae.encode(pixels).latent_dist.mode()[:, :, :1]
    mean, std = (torch.tensor(v).view(1, 48, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    torch.testing.assert_close(ours, (whole - mean) / std, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_decode_undoes_the_standardisation(vae) -> None:
    raw = torch.randn(1, 48, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(v).view(1, 48, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    video = decode(vae, (raw - mean) / std)
    assert video.shape == (1, 5, 32, 48, 3) and video.dtype == np.uint8
    expected = ((vae.decode(raw).sample + 1) * 127.5).round().clamp(0, 255)
    assert np.abs(video.astype(int) - expected.permute(0, 2, 3, 4, 1).numpy()).max() <= 1


@pytest.mark.parametrize(
    "canvases", [np.zeros((1, 40, 48, 3), np.uint8), np.zeros((32, 48, 3), np.uint8), np.zeros((1, 32, 48, 3))]
)
def test_a_canvas_that_does_not_fit_is_refused(vae, canvases: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"expected uint8|multiples of 16"):
        encode_first_frame(vae, canvases)


def test_plans() -> None:
    plan = policy_plan(8, 12, chunk=16, fps=20, state_row=True)
    assert (plan.rows, plan.noisy_rows, plan.noisy_frames, plan.action_start) == (17, tuple(range(1, 17)), (), 0)
    assert plan.patches(1) == 96 and plan.patches(5) == 6
    plan = wam_plan(3, 8, 12, chunk=8, fps=20, state_row=False)
    assert (plan.rows, plan.noisy_frames, plan.action_start) == (8, (1, 2), 1)
    assert hash(plan) == hash(wam_plan(3, 8, 12, chunk=8, fps=20.0, state_row=False))


@pytest.mark.parametrize(
    "plan, words",
    [
        (((1, 0, 2), (True,), (False,), 20, 0), "latent_grid"),
        (((2, 1, 1), (True,), (False,), 20, 0), "2 latent frames but 1"),
        (((1, 1, 1), (True,), (False,), 0, 0), "fps"),
        (((1, 1, 1), (True,), (True, True), 20, 0), "nothing to denoise"),
    ],
)
def test_impossible_plans_are_refused(plan: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        TokenPlan(*plan)


@torch.no_grad()
def test_every_latent_of_a_clip(vae) -> None:
    clips = np.random.default_rng(1).integers(0, 256, (2, 5, 32, 48, 3), dtype=np.uint8)
    ours = encode_clip(vae, clips)
    pixels = torch.from_numpy(clips).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    mean, std = (torch.tensor(v).view(1, 48, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    torch.testing.assert_close(ours, (vae.encode(pixels).latent_dist.mode() - mean) / std, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[:, :, :1], encode_first_frame(vae, clips[:, 0]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encode_clip(vae, clips[:, :1]), encode_first_frame(vae, clips[:, 0]))


@pytest.mark.parametrize(
    "clips, words",
    [
        (np.zeros((1, 4, 32, 32, 3), np.uint8), r"1 \+ 4 k frames, got 4"),
        (np.zeros((1, 5, 40, 32, 3), np.uint8), "multiples of 16"),
        (np.zeros((5, 32, 32, 3), np.uint8), "expected uint8"),
        (np.zeros((1, 5, 32, 32, 3)), "expected uint8"),
    ],
)
def test_a_clip_that_does_not_fit_is_refused(vae, clips: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode_clip(vae, clips)


def test_padding_makes_no_tokens() -> None:
    """DROID's canvas: 540x640 pixels on 544x736 keep 33x40 cells of 34x46."""
    latents = torch.arange(34 * 46).view(1, 1, 1, 34, 46)
    kept = crop_content(latents, (544, 736, 540, 640), 16)
    assert kept.shape[-2:] == (33, 40) and torch.equal(kept, latents[..., :33, :40])
    for size in ((544, 736, 15, 640), (544, 736, 540, 752)):
        with pytest.raises(InputError, match="latent cells"):
            crop_content(latents, size, 16)


def test_a_text_over_the_limit_is_refused() -> None:
    tokenizer = build_word_tokenizer(["go on"])
    fits = prompt_tokens(tokenizer, "go " * (TEXT_LIMIT - 6))
    with pytest.raises(InputError, match=f"at most {TEXT_LIMIT}"):
        prompt_tokens(tokenizer, "go " * TEXT_LIMIT)
    assert len(fits) <= TEXT_LIMIT + 3
