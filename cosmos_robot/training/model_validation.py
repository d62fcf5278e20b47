"""What is measured on held-out episodes in post-training: the same samples and the same noise every time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from cosmos_robot.actions.codec import Codec
from cosmos_robot.backbone.cosmos3.layout import PlanMode
from cosmos_robot.backbone.cosmos3.runtime import TextCache, join_rows
from cosmos_robot.backbone.cosmos3.sampler import Given, Sample, draw_noise, sample
from cosmos_robot.training.clips import commands_of
from cosmos_robot.training.crew import Root
from cosmos_robot.training.model_batches import ModelBatch, Prompt, StreamSamples, on_device
from cosmos_robot.training.model_learner import run_losses
from cosmos_robot.training.order import Draw

AT_ONCE = 32
Texts = Callable[[Sequence[Prompt]], TextCache]


class ModelValidation:
    """Called with a model; returns named measures of each stream (its name before them where there are several).

    MODE_action, MODE_video: losses. MODE_FIELD_mae: mean absolute error of a field of sampled commands over all valid
    steps, in the robot's units. MODE_latent_mse: of sampled video, over future frames of the episode.
    """

    def __init__(self, streams: Sequence[StreamSamples], names: Sequence[str], modes: Sequence[Sequence[PlanMode]],
                 samples: int, by_active: bool, device: torch.device):  # fmt: skip
        self._streams, self._by_active, self._device = list(streams), by_active, device
        self._prefixes = [f"{name}/" if len(names) > 1 else "" for name in names]
        self._modes, self._samples = modes, samples

    def __call__(self, root: Root, texts: Texts) -> dict[str, float]:
        measures: dict[str, float] = {}
        for stream, prefix, modes in zip(self._streams, self._prefixes, self._modes, strict=True):
            for mode in modes:
                found = self._measure(stream, mode, root, texts)
                measures |= {f"{prefix}{mode}_{name}": value for name, value in found.items()}
        return measures

    def _measure(self, stream: StreamSamples, mode: PlanMode, root: Root, texts: Texts) -> dict[str, float]:
        found: dict[str, list[np.ndarray]] = defaultdict(list)
        for draws in _groups(stream, _held_out(stream, mode, self._samples)):
            prompts = tuple(dict.fromkeys(stream.prompt(draw) for draw in draws))
            batch = on_device(stream.batch(draws, prompts, noisy_inputs=False), self._device)
            text = texts(prompts)
            for name, loss in run_losses(root, batch, text, self._by_active).items():
                found[name].append(loss.float().cpu().numpy())
            drawn = root(_sample, stream, batch, text, [_noise_seed(draw) for draw in draws])
            for name, errors in _errors(stream, draws, batch, drawn).items():
                found[name].append(errors)
        joined = {name: np.concatenate(parts) for name, parts in found.items()}
        return {name: float(values.mean()) for name, values in joined.items() if values.size}


def _held_out(stream: StreamSamples, mode: PlanMode, count: int) -> list[Draw]:
    """Fixed draws of held-out samples; noise levels stand evenly."""
    clips, random = stream.clips, np.random.default_rng(0)
    rows = [(episode, row) for episode in clips.validation for row in range(clips.lengths[episode])]
    chosen = sorted(random.permutation(len(rows))[:count])
    return [
        Draw(stream.index, i, *rows[place], mode, (i + 0.5) / len(chosen), 1.0, False, (0, stream.index, i))
        for i, place in enumerate(chosen)
    ]


def _groups(stream: StreamSamples, draws: Sequence[Draw]) -> Iterator[list[Draw]]:
    """Draws of one plan, at most ``AT_ONCE``."""
    keys = defaultdict(list)
    for draw in draws:
        keys[stream.key(draw)].append(draw)
    for members in keys.values():
        yield from (members[i : i + AT_ONCE] for i in range(0, len(members), AT_ONCE))


def _noise_seed(draw: Draw) -> int:
    return 1 + draw.number


def _sample(transformer, stream: StreamSamples, batch: ModelBatch, text: TextCache, seeds: Sequence[int]) -> Sample:
    """Denoise a batch as the contract says, without guidance."""
    flow, model, plan = batch.flow, stream.contract.model, batch.plan
    given_rows = set(plan.clean_rows[-model.chunk :]) == {True}
    rows = join_rows(flow.state, flow.actions if given_rows else torch.zeros_like(flow.actions))
    if flow.history is not None:
        past = torch.nn.functional.pad(flow.history, (0, rows.shape[2] - flow.history.shape[2]))
        rows = torch.cat([past, rows], dim=1)
    width, config = flow.actions.shape[2], transformer.config
    given = Given(flow.text_index.tolist(), flow.latents, rows, model.domain_id, width)
    noise = draw_noise(plan, config.latent_channel, config.action_dim, width, seeds)
    settings = model.sampler.model_copy(update={"guidance": 1.0})
    return sample(transformer, plan, text, given, settings, noise)


def _errors(stream: StreamSamples, draws: Sequence[Draw], batch: ModelBatch, found: Sample) -> Mapping[str, np.ndarray]:
    """Absolute errors of each field, over valid steps; squared errors of video."""
    errors: dict[str, np.ndarray] = {}
    if found.action is not None:
        raws = [(stream.clips.raw(draw.episode), draw.row) for draw in draws]
        states = np.stack([raw.state[row] for raw, row in raws])
        commands = commands_of(draws[0].mode)
        truth, valid = (np.stack([getattr(raw, n)[row] for raw, row in raws]) for n in (commands, "valid"))
        robot = stream.contract.robot
        was_open = True if robot.gripper and robot.gripper.hysteresis else None
        codec, rows = Codec(stream.contract), found.action.float().cpu().numpy()
        decoded = np.stack([codec.decode_actions(r, s, was_open) for r, s in zip(rows, states, strict=True)])
        wrong, first = np.abs(decoded - truth)[valid], 0
        for field in robot.action:
            errors[f"{field.name}_mae"] = wrong[:, first : first + field.width].ravel()
            first += field.width
    if found.video is not None:
        future = list(batch.plan.noisy_frames)
        squared = (found.video - batch.flow.latents).square()[:, :, future].mean((1, 3, 4))
        errors["latent_mse"] = squared[batch.flow.video_valid[:, future]].float().cpu().numpy()
    return errors
