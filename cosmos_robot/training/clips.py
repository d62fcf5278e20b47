"""Episodes as training samples on disk, one pair of files an episode: what a sample reads costs no decoding.

A sample begins at a row of an episode. It holds the latents of its pictures, encoded causally from its own first
picture on, as ``policies/cosmos3_model.py`` encodes what it is shown; the state; the commands that follow; and those
before. Numbers are kept in robot units: the contract's statistics may come later.

Axis legend: n samples of an episode, T chunk steps, H history rows, Ds Da widths, C L h w latents.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from rich.progress import track

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.normalization import LARGEST_NORMALISED, require_bounded
from cosmos_robot.actions.statistics import StatisticsAccumulator
from cosmos_robot.backbone.cosmos3.latents import crop_content, encode_clip
from cosmos_robot.backbone.cosmos3.layout import TEMPORAL_COMPRESSION, PlanMode, video_frames
from cosmos_robot.contract import Contract, Normalization
from cosmos_robot.data.episodes import EXECUTED, Episode, executed_commands, require_robot
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import CanvasComposer, arriving, image_size
from cosmos_robot.training.cache import EpisodeSource
from cosmos_robot.training.latents import vae_fingerprint
from cosmos_robot.training.model_config import Stream
from cosmos_robot.training.session import write_atomic

_FORMAT = 2
_FRAMES_AT_ONCE = 64
INDEX_FILE = "index.json"


@dataclass(frozen=True)
class ClipEpisode:
    """The n samples of an episode. state (n, Ds), actions (n, T, Da), executed (n, T, Da): what was really sent, the
    same where nothing else was recorded; history (n, H, Da), of what was sent, right-aligned, of which the last
    ``past`` (n,) are recorded; valid (n, T) False past the end. latents (n, C, L, h, w) float16, a memory map;
    seen (n, L) False where a picture of the frame lies past the end. instruction: in words."""

    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    executed: NDArray[np.float32]
    valid: NDArray[np.bool_]
    history: NDArray[np.float32]
    past: NDArray[np.int64]
    seen: NDArray[np.bool_]
    latents: NDArray[np.float16]
    instruction: str


_COLUMNS = ("state", "actions", "executed", "valid", "history", "past", "seen")


def commands_of(mode: PlanMode) -> str:
    """The column that ``mode`` reads its commands from: dynamics pair a video with what was sent while it was made."""
    # wam is a policy, whose commands are run in closed loop: it learns those that were wanted, though its video is of
    # the disturbed ones. Given the choice, what is done matters more than the match of what is imagined.
    return EXECUTED if mode in ("forward_dynamics", "inverse_dynamics") else "actions"


class ClipStore:
    """One source of a stream on disk. lengths: samples of each episode. instructions: of each episode."""

    def __init__(self, folder: Path):
        index = json.loads((folder / INDEX_FILE).read_text())
        self.folder, self.lengths, self.instructions = folder, index["lengths"], index["instructions"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> ClipEpisode:
        with np.load(self.folder / f"{index:06d}.npz") as file:
            columns = {name: file[name] for name in _COLUMNS}
        latents = np.load(self.folder / f"{index:06d}.npy", mmap_mode="r")
        return ClipEpisode(**columns, latents=latents, instruction=self.instructions[index])


def clip_store(
    source: EpisodeSource, stream: Stream, vae: AutoencoderKLWan, root: Path, progress: bool = True
) -> ClipStore:
    """The samples of ``source``, from ``root`` if they are there, made otherwise; a stopped build goes on.

    Raises InputError for episodes that are no recordings of the contract's robot, have another stride than the stream
    or hold labels where what was sent is needed, ContractError for a contract whose modes have no such samples.
    """
    contract = stream.contract
    _require_plain(stream)
    _require_stride(source, stream)
    model = contract.model
    parts = (
        str(_FORMAT), source.fingerprint, model.canvas.model_dump_json(), str(arriving(contract)), str(model.chunk),
        str(model.history_rows), str(model.actions_per_frame), str(model.sees), str(stream.stride), str(stream.every),
        str(stream.has_video), vae_fingerprint(vae),
    )  # fmt: skip
    key = hashlib.blake2b("|".join(parts).encode(), digest_size=8).hexdigest()
    folder = Path(root) / f"clips-{key}"
    if not folder.is_dir():
        _build(source, _Cutter(stream, vae), folder, f"encoding {stream.name}", progress)
    return ClipStore(folder)


def _require_plain(stream: Stream) -> None:
    model = stream.contract.model
    if model.frames:
        raise ContractError(f"{model.name!r} holds vectors as latent frames; this trainer learns Cosmos 3's own rows")
    if not model.sees and stream.has_video:
        raise ContractError(f"{model.name!r} is blind: only mode 'policy' can be trained without pictures")


def _require_stride(source: EpisodeSource, stream: Stream) -> None:
    found = getattr(source, "stride", None)
    if found is not None and found != stream.stride:
        raise InputError(
            f"stream {stream.name!r} has stride {stream.stride}, but its episodes were recorded with {found} control "
            f"steps from row to row, so pictures and commands would not match; set stride={found}"
        )


def _build(source: EpisodeSource, cut: _Cutter, folder: Path, title: str, progress: bool) -> None:
    if not len(source):
        raise InputError("training: the dataset has no episodes")
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    lengths, instructions = [], []
    for index in track(range(len(source)), title, disable=not progress):
        note = part / f"{index:06d}.json"
        if not note.is_file():  # written last
            written = _write_episode(part / f"{index:06d}", cut(source[index], index))
            write_atomic(note, lambda path, written=written: path.write_text(json.dumps(written)))
        count, instruction = json.loads(note.read_text())
        lengths.append(count)
        instructions.append(instruction)
    if not sum(lengths):
        raise InputError("training: no row of any episode has a command to learn")
    (part / INDEX_FILE).write_text(json.dumps({"lengths": lengths, "instructions": instructions}))
    for note in part.glob("[0-9]*.json"):
        note.unlink()
    part.rename(folder)


def _write_episode(stem: Path, episode: ClipEpisode) -> tuple[int, str]:
    np.save(stem.with_suffix(".npy"), episode.latents)
    np.savez(stem.with_suffix(".npz"), **{name: getattr(episode, name) for name in _COLUMNS})
    return len(episode.state), episode.instruction


class _Cutter:
    """An episode to its samples."""

    def __init__(self, stream: Stream, vae: AutoencoderKLWan):
        self.stream, self.contract, self.vae = stream, stream.contract, vae
        self.compose = CanvasComposer(stream.contract)
        self.size = image_size(stream.contract.model.canvas)
        self.frames = video_frames(stream.contract.model) if stream.has_video else 1

    def __call__(self, episode: Episode, index: int) -> ClipEpisode:
        contract, model = self.contract, self.contract.model
        require_robot(episode, contract.robot)
        if episode.actions.shape[1] < model.chunk:
            raise InputError(
                f"episode {index}: {episode.actions.shape[1]} commands per row, the model predicts {model.chunk}"
            )
        starts = np.arange(0, len(episode), self.stream.every)
        starts = starts[episode.valid[starts, 0]]
        executed = self._executed(episode, index)
        history, past = self._history(executed, starts)
        pictures = self._rows(starts)
        return ClipEpisode(
            state=episode.state[starts],
            actions=episode.actions[starts, : model.chunk],
            executed=executed[starts, : model.chunk],
            valid=episode.valid[starts, : model.chunk],
            history=history,
            past=past,
            seen=(pictures < len(episode))[:, ::TEMPORAL_COMPRESSION],
            latents=self._latents(episode, np.minimum(pictures, len(episode) - 1)),
            instruction=episode.instruction,
        )

    def _rows(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, F) rows whose pictures the samples show, those past the end included."""
        gap = self.contract.model.actions_per_frame // self.stream.stride if self.frames > 1 else 1
        return starts[:, None] + gap * np.arange(self.frames)

    def _executed(self, episode: Episode, index: int) -> NDArray[np.float32]:
        """``executed_commands``; the recorded ones where nothing reads what was sent."""
        if not self.stream.has_video and not self.contract.model.history_rows:
            return episode.actions
        return executed_commands(episode, self.stream.stride, f"episode {index}")

    def _history(self, executed: NDArray[np.float32], starts: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """The commands before each start, (n, H, Da) right-aligned, and how many of them there are."""
        most, stride = self.contract.model.history_rows, self.stream.stride
        history = np.zeros((len(starts), most, executed.shape[2]), np.float32)
        past = np.minimum(starts * stride, most)
        if most:
            if stride > executed.shape[1]:
                raise InputError(f"history: rows {stride} steps apart hold {executed.shape[1]} commands each")
            commands = executed[:, :stride].reshape(-1, executed.shape[2])
            for i, (start, count) in enumerate(zip(starts, past, strict=True)):
                history[i, most - count :] = commands[start * stride - count : start * stride]
        return history, past

    def _latents(self, episode: Episode, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        if not self.contract.model.sees:
            black = self._encode(np.zeros((1, 1, *self.size[:2], 3), np.uint8))
            return np.repeat(black, len(rows), axis=0)
        shown = np.unique(rows)
        canvases = np.stack([self.compose({n: f[row] for n, f in episode.images.items()}) for row in shown])
        place = np.searchsorted(shown, rows)
        at_once = max(1, _FRAMES_AT_ONCE // self.frames)
        parts = [self._encode(canvases[place[i : i + at_once]]) for i in range(0, len(rows), at_once)]
        return np.concatenate(parts) if parts else np.zeros((0, 0, 0, 0, 0), np.float16)

    def _encode(self, clips: NDArray[np.uint8]) -> NDArray[np.float16]:
        latents = encode_clip(self.vae, clips)
        cropped = crop_content(latents, self.size, self.vae.config.scale_factor_spatial)
        return cropped.cpu().numpy().astype(np.float16)


@dataclass(frozen=True)
class EncodedEpisode:
    """A ``ClipEpisode`` in model units, as tensors. state (n, S), actions, executed (n, T, D), history (n, H, D)."""

    state: torch.Tensor
    actions: torch.Tensor
    executed: torch.Tensor
    valid: torch.Tensor
    history: torch.Tensor
    past: NDArray[np.int64]
    seen: torch.Tensor
    latents: NDArray[np.float16]
    instruction: str


class Clips:
    """The samples of all sources of a stream in model units; the last ``keep`` episodes used stay in memory.

    validation: every so-manieth episode, from the first on, is held out.
    """

    def __init__(self, stores: list[ClipStore], contract: Contract, validation_every: int, keep: int = 128):
        self.stores, self.contract, self._keep = stores, contract, keep
        self._codec = Codec(contract)
        self._places = [(store, i) for store in stores for i in range(len(store))]
        self.lengths = [length for store in stores for length in store.lengths]
        held_out = [i % validation_every == 0 for store in stores for i in range(len(store))]
        self.validation = [i for i, held in enumerate(held_out) if held and self.lengths[i]]
        self.training = [i for i, held in enumerate(held_out) if not held and self.lengths[i]]
        if not self.training or not self.validation:
            raise InputError(
                f"training: {len(self.training)} episodes to learn and {len(self.validation)} held out for validation; "
                "record more than one"
            )
        self._kept: OrderedDict[int, EncodedEpisode] = OrderedDict()

    @property
    def instructions(self) -> list[str]:
        """The distinct ones, in order of appearance."""
        return list(dict.fromkeys(text for store in self.stores for text in store.instructions))

    def instruction(self, episode: int) -> str:
        store, index = self._places[episode]
        return store.instructions[index]

    def raw(self, episode: int) -> ClipEpisode:
        """Episode number ``episode`` in robot units."""
        store, index = self._places[episode]
        return store[index]

    def __getitem__(self, episode: int) -> EncodedEpisode:
        """Raises InputError where a normalised state or valid command is far beyond its range."""
        if episode not in self._kept:
            self._kept[episode] = self._encoded(self.raw(episode), f"episode {episode}")
        self._kept.move_to_end(episode)
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return self._kept[episode]

    def _encoded(self, raw: ClipEpisode, where: str) -> EncodedEpisode:
        codec, model = self._codec, self.contract.model
        state = codec.encode_state(raw.state)
        actions, executed = (codec.encode_actions(part, raw.state) for part in (raw.actions, raw.executed))
        require_bounded(state, LARGEST_NORMALISED, f"{where}: states")
        require_bounded(actions[raw.valid], LARGEST_NORMALISED, f"{where}: actions")
        require_bounded(executed[raw.valid], LARGEST_NORMALISED, f"{where}: executed commands")
        history = codec.encode_actions(raw.history) if model.history_rows else np.zeros((len(state), 0, 0))
        tensors = (torch.from_numpy(np.asarray(part, np.float32)) for part in (state, actions, executed))
        return EncodedEpisode(
            *tensors,
            valid=torch.from_numpy(raw.valid),
            history=torch.from_numpy(np.asarray(history, np.float32)),
            past=raw.past,
            seen=torch.from_numpy(raw.seen),
            latents=raw.latents,
            instruction=raw.instruction,
        )


def fitted_contract(
    contract: Contract, stores: list[ClipStore], validation_every: int, method: str, floors: Mapping[str, float]
) -> Contract:
    """``contract`` with statistics of the training episodes, in the model's own spaces, in those normalisers
    (``state``, ``action``) that have method ``identity``; others stay as they are. floors: ``scale_floor`` of each."""
    wanted = [name for name in floors if getattr(contract.model, f"{name}_normalization").method == "identity"]
    if not wanted:
        return contract
    plain = Normalization(method="identity", scale_floor=1.0)
    unscaled = {"state_normalization": plain, "action_normalization": plain}
    codec = Codec(Contract(robot=contract.robot, model=contract.model.model_copy(update=unscaled)))
    widths = {"state": codec.state_width, "action": codec.action_width}
    tallies = {name: StatisticsAccumulator(widths[name]) for name in wanted if widths[name]}
    for raw in _training_episodes(stores, validation_every):
        rows = {
            "state": codec.encode_state(raw.state),
            "action": codec.encode_actions(raw.actions, raw.state)[raw.valid],
        }
        for name, tally in tallies.items():
            tally.update(rows[name])
    changes = {
        f"{name}_normalization": Normalization(method=method, scale_floor=floors[name], statistics=tally.finish())
        for name, tally in tallies.items()
    }
    return Contract(robot=contract.robot, model=contract.model.model_copy(update=changes))


def _training_episodes(stores: list[ClipStore], validation_every: int) -> Iterator[ClipEpisode]:
    for store in stores:
        yield from (store[i] for i in range(len(store)) if i % validation_every and store.lengths[i])
