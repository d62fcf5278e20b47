"""Prompts to token ids, and word-level tokenizers for tiny models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cosmos_robot.errors import CheckpointError, InputError

VISION_START = "<|vision_start|>"
SYSTEM_PROMPT = "You are a helpful assistant who will generate videos from a give prompt."
"""Word for word (missing letter included) what the released models were trained with, where a system prompt is on."""

TEXT_LIMIT = 4096
"""Tokens of a prompt, special ones not counted. The reference cuts longer captions; here they are refused."""

_SPECIAL = ("[PAD]", "[UNK]", "<|im_start|>", "<|im_end|>", VISION_START)
_ROLES = ("system", "user", "assistant")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str, system_prompt: bool = False) -> list[int]:
    """Token ids of one prompt: BOS if the tokenizer has one, chat template with the answer opened, EOS, vision start.

    An empty prompt is the unconditional branch of guidance. Raises CheckpointError if the tokenizer lacks a piece,
    InputError for more than ``TEXT_LIMIT`` tokens.
    """
    vision_start = tokenizer.get_vocab().get(VISION_START)
    if vision_start is None or tokenizer.eos_token_id is None or tokenizer.chat_template is None:
        raise CheckpointError(
            f"the tokenizer needs {VISION_START}, an EOS token and a chat template; got "
            f"{vision_start=}, eos={tokenizer.eos_token!r}, template {'set' if tokenizer.chat_template else 'missing'}"
        )
    turns = [{"role": "system", "content": SYSTEM_PROMPT}] if system_prompt else []
    turns.append({"role": "user", "content": prompt})
    ids = tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"]
    if len(ids) > TEXT_LIMIT:
        raise InputError(
            f"the prompt has {len(ids)} tokens, expected at most {TEXT_LIMIT}; shorten the text that begins "
            f"{prompt[:60]!r}"
        )
    return frame_tokens(ids, tokenizer.eos_token_id, vision_start, tokenizer.bos_token_id)


def frame_tokens(ids: Sequence[int], eos: int, vision_start: int, bos: int | None = None) -> list[int]:
    """The whole text half of a sequence: ``ids`` with their special tokens (cosmos-framework, sequence_packing)."""
    return [*([] if bos is None else [bos]), *ids, eos, vision_start]


def build_word_tokenizer(sentences: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word or punctuation mark of ``sentences``, lower case, in alphabetical order.

    Words it does not know become ``[UNK]``. Saved with ``save_pretrained``, it is read back by ``AutoTokenizer``.
    """
    found = {word for sentence in sentences for word in _words(sentence)}
    if not found:
        raise InputError("build_word_tokenizer: no words in the sentences")
    vocabulary = [*_SPECIAL, *sorted(found | {w for text in (*_ROLES, SYSTEM_PROMPT) for w in _words(text)})]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    pattern = Regex(r"\w+|[^\w\s]")
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", VISION_START],
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())
