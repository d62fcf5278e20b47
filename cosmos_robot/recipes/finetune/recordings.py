"""The recordings as ``describe`` found them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.data.episodes import Episode
from cosmos_robot.errors import InputError
from cosmos_robot.recipes.finetune.stages import Run, command
from cosmos_robot.training.cache import EpisodeSource

if TYPE_CHECKING:
    from cosmos_robot.data.store import EpisodeStore


def open_episodes(run: Run) -> RecordedEpisodes:
    """The recordings of a run, under its description's contract. Raises InputError unless they still are what
    ``describe`` saw: statistics and lint would be those of others."""
    description = run.description()
    episodes = RecordedEpisodes(description.data, description.contract)
    if episodes.fingerprint != run.facts("describe")["data"]:
        raise InputError(
            f"{description.data.path} is no longer what was described: got {len(episodes)} episodes, expected the "
            f"{run.facts('describe')['episodes']} of {run.folder('describe')} with unchanged files; restore them, or "
            f"run: {command('describe', run.out)}, and the stages after it"
        )
    return episodes


def labelled_episodes(run: Run) -> EpisodeSource:
    """The recordings; with the columns that only training may read, where our own collector wrote such."""
    from cosmos_robot.data.store import SIDECAR, EpisodeStore

    episodes = open_episodes(run)
    path = episodes.data.path
    if not (path / SIDECAR).is_file() or any(a != b for a, b in episodes.cameras.items()):
        return episodes
    return _Labelled(episodes, EpisodeStore(path))


class _Labelled(Sequence[Episode]):
    """Recordings with the extras that lie beside them, row for row."""

    def __init__(self, episodes: RecordedEpisodes, store: EpisodeStore):
        self._episodes, self._store = episodes, store
        self.fingerprint = f"{episodes.fingerprint} {store.fingerprint}"

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Episode:  # type: ignore[override]
        extras = self._store.episode(self._episodes.places[index], cameras=[]).extras
        episode, stride = self._episodes[index], self._episodes.data.stride
        rows = {name: value[::stride][: len(episode)] for name, value in extras.items()}
        return replace(episode, extras=rows | episode.extras)
