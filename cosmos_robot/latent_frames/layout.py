"""What each latent frame holds, and which of them a mode is given. No torch.

A layout is the contract's ``frames``: ``blank``, ``state``, ``action``, ``value``, a camera's name (or ``pictures`` for
a canvas that shows them all), and ``future state`` or ``future CAMERA`` for the same at the end of the chunk, in any
order, for any robot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from cosmos_robot.contract import WHOLE_CANVAS, Contract
from cosmos_robot.errors import ContractError, InputError, UnknownNameError

FrameMode = Literal["policy", "world_model", "value", "value_of_future", "q_value"]
"""policy: p(a, s', V | s). world_model: p(s', V | s, a). value: V(s, a, s'). value_of_future: V(s'). q_value: Q(s, a).
The frames that a value is not given are noise, not left out."""

ValueMode = Literal["value", "value_of_future", "q_value"]
SampleKind = Literal["policy", "world_model", "value"]
"""What a training sample is for: a demonstration trains the policy, a rollout the world model or the value."""

BLANK: Final = "blank"
STATE: Final = "state"
ACTION: Final = "action"
VALUE: Final = "value"
FUTURE: Final = "future "
_OWN: Final = (BLANK, STATE, ACTION, VALUE)
_GIVEN: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": ("blank", "now"),
    "world_model": ("blank", "now", "action"),
    "value": ("blank", "now", "action", "future"),
    "value_of_future": ("blank", "future"),
    "q_value": ("blank", "now", "action"),
}
_ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "policy": ("action", "future", "value"),
    "world_model": ("future", "value"),
    "value": ("value",),
}


@dataclass(frozen=True)
class FrameLayout:
    """Slots in the order of the latent frames. Raises ContractError where two hold the same, or a future has no
    present."""

    slots: tuple[str, ...]

    def __post_init__(self) -> None:
        named = [slot for slot in self.slots if slot != BLANK]
        twice = sorted({slot for slot in named if named.count(slot) > 1})
        if twice:
            raise ContractError(f"frames: {twice[0]!r} is in {named.count(twice[0])} latent frames, expected one")
        for slot in named:
            now = slot.removeprefix(FUTURE)
            if slot.startswith(FUTURE) and (now in (BLANK, ACTION, VALUE) or now not in named):
                raise ContractError(f"frames: {slot!r} has no frame {now!r} before the chunk; add it or drop both")
        if ACTION not in named:
            raise ContractError(f"frames: no frame holds the action; expected 'action' among {list(self.slots)}")

    def __len__(self) -> int:
        return len(self.slots)

    def index(self, slot: str) -> int:
        """The latent frame of ``slot``, from 0. Raises UnknownNameError with the nearest names."""
        if slot not in self.slots:
            raise UnknownNameError("latent frame", slot, self.slots)
        return self.slots.index(slot)

    def __contains__(self, slot: object) -> bool:
        return slot in self.slots

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras before the chunk, in the order of their frames; a whole canvas counts as one."""
        return tuple(s for s in self.slots if s not in _OWN and not s.startswith(FUTURE))

    @property
    def future_cameras(self) -> tuple[str, ...]:
        """Cameras whose picture after the chunk has a frame, by their names without ``future``."""
        return tuple(s.removeprefix(FUTURE) for s in self.slots if s.startswith(FUTURE) and s != FUTURE + STATE)

    @property
    def pictures_end(self) -> int:
        """One past the last frame that shows a picture of now: later frames hold nothing that is known."""
        return 1 + max((self.slots.index(camera) for camera in self.cameras), default=-1)

    def clean(self, mode: FrameMode) -> tuple[bool, ...]:
        """Which frames ``mode`` is given (video2world_conditioner.py, policy_video2world_model.py of Cosmos Policy)."""
        if mode not in _GIVEN:
            raise UnknownNameError("mode", str(mode), get_args(FrameMode))
        if mode not in ("policy", "world_model"):
            self.index(VALUE)
        return self._among(_GIVEN[mode])

    def trained(self, kind: SampleKind, targets: Iterable[str] = ("action", "future", "value")) -> tuple[bool, ...]:
        """Which frames a sample of ``kind`` learns: those that ``kind`` asks for, of the parts in ``targets``."""
        if kind not in _ASKED:
            raise UnknownNameError("sample kind", str(kind), get_args(SampleKind))
        wanted = set(targets)
        unknown = sorted(wanted - {"action", "future", "value"})
        if unknown:
            raise UnknownNameError("target", unknown[0], ("action", "future", "value"))
        return self._among([part for part in _ASKED[kind] if part in wanted])

    def _among(self, parts: Iterable[str]) -> tuple[bool, ...]:
        chosen = set(parts)
        return tuple(_part(slot) in chosen for slot in self.slots)


def layout_of(contract: Contract) -> FrameLayout:
    """The layout of a contract, checked against its robot and canvas. Raises ContractError naming the field."""
    model = contract.model
    if not model.frames:
        raise ContractError(
            f"model.frames of {model.name!r} is empty; a world model with values and a search need a checkpoint with "
            "latent frames, such as Cosmos Policy's"
        )
    layout = FrameLayout(model.frames)
    placed = {WHOLE_CANVAS} if WHOLE_CANVAS in layout else {p.camera for p in model.canvas.placements}
    strange = [camera for camera in layout.cameras if camera not in placed]
    if strange:
        raise ContractError(f"model.frames: {strange[0]!r} has no place on the canvas; placed are {sorted(placed)}")
    if (STATE in layout) != model.state_row:
        raise ContractError(f"model.state_row={model.state_row}, but frames {'have' if STATE in layout else 'lack'} it")
    return layout


def value_mode(mode: str) -> ValueMode:
    """``mode`` if it is one of a value. Raises InputError otherwise."""
    for known in get_args(ValueMode):
        if mode == known:
            return known
    raise InputError(f"expected what a value reads, one of {get_args(ValueMode)}, got {mode!r}")


def _part(slot: str) -> str:
    if slot in (BLANK, ACTION, VALUE):
        return slot
    return "future" if slot.startswith(FUTURE) else "now"
