"""Which reader fits a path."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cosmos_robot.data.recordings import Recordings
from cosmos_robot.errors import CheckpointError

KNOWN = (
    "LeRobot v2.0, v2.1 or v3.0 (a folder with meta/info.json)",
    "LIBERO, robomimic or Cosmos Policy demonstrations (HDF5 with data/demo_N)",
    "Cosmos Policy rollouts (HDF5 with actions and proprio)",
    "ALOHA episodes (HDF5 with action and observations/qpos)",
)
HDF5_SUFFIXES = (".hdf5", ".h5")


def open_recordings(
    path: str | Path, *, state: str | None = None, action: str | None = None, strict: bool = True
) -> Recordings:
    """The dataset at ``path``: a LeRobot folder, an HDF5 file, or a folder of HDF5 files.

    state, action: columns or HDF5 datasets to read instead of the usual ones. strict: refuse a folder in which some
    HDF5 file is damaged; otherwise it is left to ``inspect``. Raises CheckpointError if there is no dataset, naming
    what was found and which layouts are known, or if what is there is half-written or damaged.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    if not path.exists():
        if partial.exists():
            raise CheckpointError(f"{path} was never finished: a killed run left {partial}; delete it, run again")
        raise CheckpointError(f"no dataset at {path}: there is nothing of that name")
    if (path / "meta" / "info.json").is_file():
        from cosmos_robot.data.lerobot import LeRobotRecordings

        return LeRobotRecordings(path, state, action)
    files = hdf5_files(path)
    if files:
        from cosmos_robot.data.hdf5 import Hdf5Recordings

        return Hdf5Recordings(path, files, state, action, strict)
    raise CheckpointError(
        f"no dataset at {path}: {_found(path)}; known layouts:" + "".join(f"\n  - {k}" for k in KNOWN)
    )


def hdf5_files(path: Path) -> list[Path]:
    """HDF5 files at or below ``path``, in a fixed order; hidden folders are left alone."""
    if path.is_file():
        return [path] if path.suffix in HDF5_SUFFIXES else []
    found = (p for suffix in HDF5_SUFFIXES for p in path.rglob(f"*{suffix}") if p.is_file())
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(path).parts))


def _found(path: Path) -> str:
    if path.is_file():
        return f"a file of {path.stat().st_size} bytes"
    inside = sorted(path.iterdir())
    if (path / "meta").is_dir() or (path / "data").is_dir():
        return f"a folder with {_listed(inside)} but no meta/info.json: a LeRobot dataset, half-written or half-copied"
    return f"a folder with {_listed(inside)}" if inside else "an empty folder"


def _listed(paths: Iterable[Path]) -> str:
    names = [p.name for p in paths]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
