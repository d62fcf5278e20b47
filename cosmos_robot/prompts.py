"""From an instruction to the text a model reads, as its contract says. No tokenizer here."""

from __future__ import annotations

from cosmos_robot.contract import PromptSpec
from cosmos_robot.errors import InputError


def render_prompt(spec: PromptSpec, instruction: str) -> str:
    """The prompt for ``instruction``. Raises InputError if no word is left.

    caption: lower case, single spaces, no full stop at the end.
    """
    text = " ".join(instruction.lower().split()).rstrip(".").rstrip()
    if not text:
        raise InputError(f"instruction {instruction!r} holds no words; say what the robot should do")
    return text
