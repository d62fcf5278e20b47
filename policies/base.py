"""What a model can do for a robot: act, imagine what would happen, say how good that is, and tell which actions a
video shows.

All of them are stateless: nothing is remembered from call to call but caches. The same input and seed give the same
answer, alone or in a batch. Seeds make the noise; lists in, lists out, empty in, empty out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import compose_canvas
from cosmos_robot.latent_frames.layout import ValueMode
from cosmos_robot.types import ActionChunk, Clip, Image, Observation, VideoPrediction


class Policy(ABC):
    """From an observation to a chunk of commands in the robot's units.

    A subclass sets ``contract`` and writes ``_act``, and ``_continue`` where its chunks can go on from given rows.
    """

    contract: Contract

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures ``act`` reads, so that nobody draws the others."""
        return ()

    def act(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        committed: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[ActionChunk]:
        """One chunk of ``contract.model.chunk`` rows for each observation; the same observation may stand several
        times, with other seeds, for several candidates.

        committed: for each observation the first rows (k, D) of its chunk, in the robot's units: commands that will be
        carried out before the answer is there. The chunk holds them as they are, and goes on from them.
        Raises InputError where the lengths differ, a seed is no whole number of 32 bits, committed rows do not fit, or
        an observation lacks what the contract's robot delivers; ContractError for a policy that cannot be given rows.
        """
        check_seeds("act", "observations", observations, seeds)
        if committed is None:
            return self._act(observations, seeds) if observations else []
        given = _checked_rows(self.contract, committed, len(observations))
        return self._continue(observations, seeds, given) if observations else []

    @abstractmethod
    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        """``act`` for at least one observation and as many seeds."""

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        """``act`` with rows given, checked before: each (k, D), finite, 0 <= k < chunk."""
        raise ContractError(
            f"{self.contract.model.name!r}, as {type(self).__name__}, cannot go on from committed rows; ask without "
            "them (a control loop: any strategy but rtc)"
        )


class JointPolicy(Policy):
    """A policy that imagines the video of its own actions while it finds them. A subclass writes ``_foresee``."""

    def foresee(
        self, observations: Sequence[Observation], seeds: Sequence[int]
    ) -> list[tuple[ActionChunk, VideoPrediction]]:
        """As ``act``, each chunk with the video that was denoised with it."""
        check_seeds("foresee", "observations", observations, seeds)
        return self._foresee(observations, seeds, None) if observations else []

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        return [chunk for chunk, _ in self._foresee(observations, seeds, None)]

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return [chunk for chunk, _ in self._foresee(observations, seeds, committed)]

    @abstractmethod
    def _foresee(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        committed: Sequence[NDArray[np.float64]] | None,
    ) -> list[tuple[ActionChunk, VideoPrediction]]:
        """``foresee`` for at least one observation and as many seeds; committed as in ``Policy._continue``, or None."""


class WorldModel(ABC):
    """From an observation and a chunk of commands to the video of what would happen (forward dynamics).

    A subclass sets ``contract`` and writes ``_imagine`` and ``_extend``.
    """

    contract: Contract

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures ``imagine`` reads."""
        return ()

    def imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]:
        """The video of each chunk, begun at its observation; nothing is decoded before somebody asks for pictures.

        actions: chunks of ``contract.model.chunk`` rows at the robot's rate. Raises InputError for another length,
        width or rate, and as ``Policy.act``.
        """
        check_seeds("imagine", "observations", observations, seeds)
        _check_chunks(self.contract, actions, len(observations))
        return self._imagine(observations, actions, seeds) if observations else []

    def extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[Mapping[str, NDArray[np.float64]]] | None = None,
        carry: str = "pixels",
    ) -> list[VideoPrediction]:
        """The next chunk after each of ``predictions``, which must be this model's own.

        The next chunk sees the end of the last and nothing else: carry ``pixels`` decodes the last frame and encodes it
        again as a first frame; ``latent`` takes the last latent frame as it is, which costs no decoding but is a latent
        of four frames where the model was trained on one of a single frame. A contract with history rows also sees the
        last commands. ``states``: the robot's state at each junction, needed where ``contract.reads_state``, for a row
        of its own or to make relative rows of the commands, since a video holds none.
        """
        check_seeds("extend", "predictions", predictions, seeds)
        _check_chunks(self.contract, actions, len(predictions))
        if carry not in ("pixels", "latent"):
            raise InputError(f"extend: expected carry 'pixels' or 'latent', got {carry!r}")
        if self.contract.reads_state and predictions and (states is None or len(states) != len(predictions)):
            raise InputError(
                f"extend: {self.contract.model.name!r} reads the robot's state, which no video shows: pass one state "
                f"for each of {len(predictions)} predictions, got {None if states is None else len(states)}"
            )
        return self._extend(predictions, actions, seeds, states, carry) if predictions else []

    def unmoved(self, predictions: Sequence[VideoPrediction]) -> list[Image]:
        """The moment that each prediction begins at, (H, W, 3), as this model would show it if nothing had moved: what
        its later frames are to be compared with. The first frame, unless that did not pass through the autoencoder that
        the later ones did."""
        return [prediction.frames[0] for prediction in predictions]

    @abstractmethod
    def _imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]:
        """``imagine`` for at least one observation."""

    @abstractmethod
    def _extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[Mapping[str, NDArray[np.float64]]] | None,
        carry: str,
    ) -> list[VideoPrediction]:
        """``extend`` for at least one prediction."""


class ValueModel(ABC):
    """From a moment, a chunk of commands and the future it leads to, to how likely the task is done.

    A subclass sets ``contract`` and ``reads``, and writes ``_score``. reads: what of the three the value is a function
    of: ``value`` of all, ``value_of_future`` of the future alone, ``q_value`` of the moment and the commands.
    """

    contract: Contract
    reads: ValueMode = "value"

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures ``score`` reads."""
        return ()

    def score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]:
        """(B,) values from 0 to 1, one for each observation, chunk and future.

        futures: predictions of this checkpoint's world model for these chunks; None for ``q_value``, which reads none.
        The same observation, chunk or future may stand several times, with other seeds, for an ensemble. Raises
        InputError where the lengths or the chunks do not fit, and as ``Policy.act``.
        """
        check_seeds("score", "observations", observations, seeds)
        _check_chunks(self.contract, actions, len(observations))
        if (futures is None) != (self.reads == "q_value"):
            has = "no futures" if futures is None else "futures"
            raise InputError(f"score: {self.reads!r} got {has}; pass None to 'q_value' and predictions to the others")
        if futures is not None and len(futures) != len(observations):
            raise InputError(f"score: {len(observations)} observations but {len(futures)} futures; pass one for each")
        return self._score(observations, actions, futures, seeds) if observations else np.zeros(0)

    @abstractmethod
    def _score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]:
        """``score`` for at least one observation."""


class SampledValue(ValueModel):
    """The value that a policy sampled beside a chunk's commands, as it stands in the chunk's ``info``."""

    reads: ValueMode = "q_value"

    def __init__(self, contract: Contract):
        self.contract = contract

    def _score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]:
        found = [chunk.info.get("value") for chunk in actions]
        if None in found:
            raise ContractError(f"{actions[found.index(None)].source}: no value was sampled beside the commands")
        return np.array(found, dtype=np.float64)


class InverseModel(ABC):
    """From a video to the commands that it shows (inverse dynamics). A subclass sets ``contract`` and writes
    ``_label``."""

    contract: Contract

    @property
    def frames(self) -> int:
        """Frames of a clip: those of a chunk, and the one it starts from."""
        return self.contract.model.chunk // self.contract.model.actions_per_frame + 1

    def clip(self, observations: Sequence[Observation]) -> Clip:
        """Successive observations, ``frames`` of them, as the clip that ``label`` reads."""
        if len(observations) != self.frames:
            raise InputError(f"clip: expected {self.frames} observations, got {len(observations)}")
        first = observations[0]
        canvases = np.stack([compose_canvas(self.contract, o.images) for o in observations])
        return Clip(canvases, first.instruction, first.state, first.time, first.history)

    def label(self, clips: Sequence[Clip], seeds: Sequence[int]) -> list[ActionChunk]:
        """The chunk of ``contract.model.chunk`` commands that each clip shows. Raises InputError for a clip of another
        length than ``frames``, and as ``Policy.act``."""
        check_seeds("label", "clips", clips, seeds)
        for clip in clips:
            if len(clip.frames) != self.frames:
                raise InputError(
                    f"clip: {self.contract.model.name!r} labels {self.contract.model.chunk} commands on {self.frames} "
                    f"frames, got {len(clip.frames)}"
                )
        return self._label(clips, seeds) if clips else []

    @abstractmethod
    def _label(self, clips: Sequence[Clip], seeds: Sequence[int]) -> list[ActionChunk]:
        """``label`` for at least one clip."""


def check_seeds(verb: str, what: str, given: Sequence[object], seeds: Sequence[int]) -> None:
    """Raise InputError unless there is one seed of 32 bits for each of ``given``."""
    if len(given) != len(seeds):
        raise InputError(f"{verb}: {len(given)} {what} but {len(seeds)} seeds; pass one seed for each")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise InputError(f"{verb}: expected seeds that are whole numbers from 0 to 2**32 - 1, got {seed!r}")


def begun_with(committed: Sequence[NDArray[np.float64]], chunks: Sequence[ActionChunk]) -> list[ActionChunk]:
    """``chunks`` with the rows (k, D) that each was given in place of its first ones."""
    return [
        replace(chunk, values=np.concatenate([rows, chunk.values[len(rows) :]]))
        for rows, chunk in zip(committed, chunks, strict=True)
    ]


def _check_chunks(contract: Contract, actions: Sequence[ActionChunk], count: int) -> None:
    if len(actions) != count:
        raise InputError(f"expected one action chunk for each of {count} starts, got {len(actions)}")
    shape, rate = (contract.model.chunk, contract.robot.action_width), contract.robot.rate_hz
    for chunk in actions:
        if chunk.values.shape != shape or chunk.rate_hz != rate:
            raise InputError(
                f"action chunk: expected {shape[0]} rows of {shape[1]} at {rate} Hz, the video's length in "
                f"{contract.model.name!r}, got {chunk.values.shape} at {chunk.rate_hz} Hz"
            )


def _checked_rows(
    contract: Contract, committed: Sequence[NDArray[np.float64]], count: int
) -> list[NDArray[np.float64]]:
    if len(committed) != count:
        raise InputError(f"act: {count} observations but committed rows for {len(committed)}; pass them for each")
    width, chunk, out = contract.robot.action_width, contract.model.chunk, []
    for rows in committed:
        given = np.asarray(rows, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != width or len(given) >= chunk:
            raise InputError(
                f"committed: expected rows (k, {width}) with k below the chunk of {chunk}, got {given.shape}"
            )
        if not np.isfinite(given).all():
            raise InputError(f"committed: row {int(np.argwhere(~np.isfinite(given))[0, 0])} is not finite")
        out.append(given)
    return out
