"""Files of initial simulator states: numpy's, and those that torch wrote for LIBERO, read through an allow-list."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import CheckpointError, DependencyError


def find_init_states(path: Path) -> Path | None:
    """The file that holds the states called ``path``: converted (``.npz``) or as LIBERO ships it; None if neither."""
    converted = path.with_name(path.name + ".npz")
    return next((p for p in (converted, path) if p.is_file()), None)


def read_init_states(path: Path) -> NDArray[np.float64]:
    """(n, state) initial states. Raises CheckpointError naming the file unless it holds finite numbers of that shape.

    Nothing but arrays of numbers is unpickled, whatever the file says.
    """
    found = find_init_states(path)
    if found is None:
        raise CheckpointError(f"no initial states at {path}, nor at {path.name}.npz beside it; reinstall LIBERO")
    try:
        states = _numpy(found) if found.suffix in (".npz", ".npy") else _torch(found)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{found} holds no initial states that can be read safely ({type(error).__name__}); expected numpy's .npz "
            "with 'states', or one array of numbers as torch.save writes it"
        ) from error
    if not isinstance(states, np.ndarray) or states.dtype.kind not in "fiu":
        raise CheckpointError(f"{found}: expected an array of numbers, got {type(states).__name__}")
    if states.ndim != 2 or not len(states) or not np.isfinite(states).all():
        raise CheckpointError(f"{found}: expected finite numbers of shape (n, state), got {states.shape}")
    return states.astype(np.float64)


def _numpy(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as content:
        return content["states"]


def _torch(path: Path) -> Any:
    """What ``torch.save`` wrote of a numpy array; its weights-only reader refuses all that is not allowed here."""
    try:
        import torch
    except ImportError as error:
        raise DependencyError(f"{path} was written by torch, which is absent: install cosmos-robot[model]") from error
    with torch.serialization.safe_globals(_allowed()):
        return torch.load(path, map_location="cpu", weights_only=True)


def _allowed() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """What an array of numbers is pickled as, by numpy 1 and 2."""
    rebuild = np._core.multiarray._reconstruct
    names = [f"{package}.multiarray._reconstruct" for package in ("numpy.core", "numpy._core")]
    kinds = [type(np.dtype(name)) for name in ("f4", "f8", "i4", "i8", "u1")]
    return [np.ndarray, np.dtype, *kinds, *((rebuild, name) for name in names)]
