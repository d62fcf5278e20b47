"""Whether weights fit into memory, asked before any is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import psutil
import torch

from cosmos_robot.backbone.cosmos3.weights import Stored
from cosmos_robot.errors import CheckpointError

_LOG = logging.getLogger(__name__)
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}


def needed_bytes(tensors: Iterable[Stored], dtype: torch.dtype, *, mapped: bool) -> tuple[int, int]:
    """Bytes of the weights in ``dtype``: all of them, and those that must be copied.

    mapped: weights that are stored in ``dtype`` are read in place from the file (on a CPU), which the system can drop
    and read again, so they need no memory of their own.
    """
    total = copied = 0
    for stored in tensors:
        kept = stored.dtype in DTYPES and DTYPES[stored.dtype] == dtype
        size = stored.size // max(1, _width(stored)) * dtype.itemsize
        total += size
        copied += 0 if mapped and kept else size
    return total, copied


def require_memory(name: str, tensors: Iterable[Stored], dtype: torch.dtype, device: torch.device) -> None:
    """Raise CheckpointError if the weights cannot fit; log a warning if they fit only as pages of their files."""
    total, copied = needed_bytes(list(tensors), dtype, mapped=device.type == "cpu")
    free = available_bytes(device)
    shown = f"the weights of {name} take {total / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}"
    if copied > free:
        raise CheckpointError(
            f"{shown}, of which {copied / 1e9:.1f} GB must be free on {device}; {free / 1e9:.1f} GB are. Load them as "
            "bfloat16, on a larger device, or choose a smaller checkpoint"
        )
    if total > free:
        _LOG.warning(
            "%s and %.1f GB are free on %s: they are read from the file again and again", shown, free / 1e9, device
        )


def available_bytes(device: torch.device) -> int:
    """Free memory of a device: of the GPU, else of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def _width(stored: Stored) -> int:
    return DTYPES[stored.dtype].itemsize if stored.dtype in DTYPES else 1
