"""Embedded instructions: kept in one safetensors file, made by T5 where somebody has it.

The network reads 512 rows of the T5 encoder, those beyond the prompt zero, and masks none of them in its attention
(get_t5_emb.py): so zeros are part of the text. Stored are the rows of the prompt alone.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cosmos_robot.errors import CheckpointError, InputError, UnknownNameError

TOKENS: Final = 512
T5: Final = "google-t5/t5-11b"
Encode = Callable[[Sequence[str]], Sequence[Tensor]]
"""Prompts to the rows (tokens of the prompt, width) of each."""


class TextEmbeddings(Mapping[str, Tensor]):
    """Prompts to their rows. encode: makes those that are missing; None: a missing one is an error that names it."""

    def __init__(self, rows: Mapping[str, Tensor], tokens: int = TOKENS, encode: Encode | None = None):
        widths = {tuple(value.shape[1:]) for value in rows.values()}
        if len(widths) > 1 or any(not 0 < len(value) <= tokens or value.ndim != 2 for value in rows.values()):
            raise CheckpointError(f"text embeddings: expected rows (1 to {tokens}, one width), got widths {widths}")
        self.tokens, self.encode = tokens, encode
        self._rows = dict(rows)

    def __getitem__(self, prompt: str) -> Tensor:
        return self._rows[prompt]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def missing(self, prompts: Sequence[str]) -> list[str]:
        """Those of ``prompts`` that are not stored, each once."""
        return [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._rows]

    def batch(self, prompts: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
        """(B, tokens, width) float32. Raises InputError listing the prompts that are missing and cannot be made."""
        missing = self.missing(prompts)
        if missing and self.encode is None:
            near = UnknownNameError("prompt", missing[0], list(self._rows))
            raise InputError(
                f"{len(missing)} prompts have no text embedding: {missing[:4]}. Add them with T5 "
                f"(TextEmbeddings.with_prompts, cosmos_robot.backbone.predict2.text.load_t5). {near}"
            )
        if missing:
            self._rows.update(zip(missing, self.encode(missing), strict=True))
        rows = [self._rows[prompt] for prompt in prompts]
        out = torch.zeros(len(rows), self.tokens, rows[0].shape[1] if rows else 0, device=device)
        for place, value in zip(out, rows, strict=True):
            place[: len(value)] = value
        return out

    def with_prompts(self, prompts: Sequence[str], encode: Encode) -> TextEmbeddings:
        """These and the missing ones of ``prompts``, embedded now."""
        missing = self.missing(prompts)
        return TextEmbeddings({**self._rows, **dict(zip(missing, encode(missing), strict=True))}, self.tokens)

    def write(self, path: Path) -> None:
        """Into a safetensors file, bfloat16 as published; names are the prompts."""
        rows = {prompt: value.detach().cpu().bfloat16().contiguous() for prompt, value in sorted(self.items())}
        save_file(rows, path, metadata={"format": "pt", "tokens": str(self.tokens)})
        path.chmod(0o644)  # safetensors writes files that only their owner may read

    @classmethod
    def read(cls, path: Path, encode: Encode | None = None) -> TextEmbeddings:
        """What ``write`` wrote. Raises CheckpointError for a broken file."""
        try:
            with safe_open(path, "pt") as stored:
                tokens = (stored.metadata() or {}).get("tokens", "")
                rows = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118, not a mapping
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is not a whole safetensors file: {error}; copy or save it again") from error
        if not tokens.isdigit():
            raise CheckpointError(f"{path} does not say how many tokens a text has; write it with TextEmbeddings.write")
        return cls(rows, int(tokens), encode)


def prompt_rows(padded: Tensor) -> Tensor:
    """(tokens, width) with zero rows at the end to the rows before them, at least one."""
    used = padded.abs().sum(1).nonzero()
    return padded[: int(used[-1]) + 1 if len(used) else 1].clone()


def read_published(path: Path) -> TextEmbeddings:
    """The published cache ``t5_embeddings.pkl``: prompt to (1, 512, width). Nothing that the file could run is run.

    Raises CheckpointError for anything but texts and tensors.
    """
    try:
        with path.open("rb") as stream:
            held = _TensorsOnly(stream).load()
    except CheckpointError:
        raise
    except Exception as error:  # a pickle can fail in any way
        raise CheckpointError(f"{path} cannot be read as texts and tensors: {error}") from error
    if not isinstance(held, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in held.items()):
        raise CheckpointError(f"{path} holds a {type(held).__name__}, expected prompts and their tensors")
    rows = {prompt: value.reshape(-1, value.shape[-1]) for prompt, value in held.items()}
    return TextEmbeddings({p: prompt_rows(v) for p, v in rows.items()}, max((len(v) for v in rows.values()), default=1))


def load_t5(ref: str | Path = T5, *, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Encode:
    """An encoder of prompts by a T5 that lies on this machine; ``T5`` is the one of the released checkpoints (11
    billion parameters, of which the encoder is half). Raises CheckpointError if it is not here."""
    from transformers import AutoTokenizer, T5EncoderModel

    try:
        tokenizer = AutoTokenizer.from_pretrained(ref, local_files_only=True)
        encoder = T5EncoderModel.from_pretrained(ref, local_files_only=True, dtype=dtype).to(device).eval()
    except Exception as error:  # the library raises whatever its readers stumble over
        raise CheckpointError(
            f"T5 {ref} is not on this machine: {str(error).splitlines()[0]}. 'hf download {T5}' fetches it, or embed "
            "the prompts elsewhere and copy the file"
        ) from error
    return lambda prompts: encode_t5(encoder, tokenizer, prompts)


@torch.no_grad()
def encode_t5(encoder: Any, tokenizer: Any, prompts: Sequence[str], tokens: int = TOKENS) -> list[Tensor]:
    """Rows (tokens of the prompt, width) float32 on the CPU, each prompt alone so that none sees another's padding."""
    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt, truncation=True, max_length=tokens, return_tensors="pt").to(encoder.device)
        found = encoder(input_ids=ids.input_ids, attention_mask=ids.attention_mask).last_hidden_state[0]
        rows.append(found.float().cpu())
    return rows


class _TensorsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
            ("torch.storage", "_load_from_bytes"): _storage,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in allowed:
            raise CheckpointError(f"the file asks for {module}.{name}; only texts and tensors are read")
        return allowed[module, name]


def _storage(held: bytes) -> Any:
    return torch.load(io.BytesIO(held), map_location="cpu", weights_only=True)
