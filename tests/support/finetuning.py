"""What tests of fine-tuning have in common: a small description, three episodes, and trainings that take no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.envs.pusht import PushTEnv
from cosmos_robot.recipes.finetune import commands

EXAMPLE = Path(__file__).parents[2] / "examples" / "pusht.toml"
SMALL = {
    'path = "../runs/pusht-demos"': 'path = "demos"',
    "stride = 1 ": "stride = 8 ",
    "steps = 5000": "steps = 4",
    "steps = 200": "steps = 25",
    "batch = 64": "batch = 8",
    "warmup = 100": "warmup = 1",
    "threads = 2": "threads = 1",
    "steps = 400\n": "steps = 2\n",
}


def circling(phase: float, scale: float = 1.0, rows: int = 40) -> Episode:
    """A disc that circles, with the pictures of a real PushT."""
    env = PushTEnv()
    observation, _ = env.reset(seed=3)
    angles = phase + np.arange(rows) * 0.3
    commands = 256 + 120 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pictures, states = [], []
    for row in commands:
        pictures.append(observation.images["top"])
        states.append(observation.state["agent_position"])
        observation = env.step(row)[0]
    actions, valid = chunk_rows(scale * commands, np.arange(rows), 2)
    info = EpisodeInfo("pusht", 0, 3, "expert", True)
    state = scale * np.array(states, np.float32)
    return Episode("Push the T", {"top": np.stack(pictures)}, state, actions, valid, info)


def smaller(text: str) -> str:
    for normal, small in SMALL.items():
        assert normal in text
        text = text.replace(normal, small)
    return text


def changed(project: Path, old: str, new: str, name: str) -> Path:
    text = (project / "pusht.toml").read_text()
    assert old in text
    path = project / f"{name}.toml"
    path.write_text(text.replace(old, new))
    return path


class Fakes:
    """Trainings that take no time: what they leave, how far their policy is from the episode, whether they stop."""

    def __init__(self) -> None:
        self.weights, self.error, self.stops = b"weights", 0.0, False

    def train_on(self, run, description, contract, out: Path, *, steps: int, only: int | None = None) -> Path:
        out.mkdir(exist_ok=True)
        if self.stops and only is None:
            raise KeyboardInterrupt
        (out / "model.safetensors").write_bytes(self.weights)
        return out

    def predicted(self, policy: object, episode: Episode, seed: int) -> np.ndarray:
        return episode.actions + self.error

    def adapted(self, folder: Path, *given: object, **settings: object) -> Path:
        (folder / "start" / "vae").mkdir(parents=True)
        return folder / "start"


def until(out: Path, description: Path, last: str, probe: bool = True) -> None:
    """All stages up to ``last``, the name of its command."""
    commands.describe(description, out)
    for name in ("lint", "stats", "plan", "tokenizer", "overfit", "run"):
        if last == "describe":
            return
        stage = getattr(commands, name)
        stage(out, probe) if name == "plan" else stage(out)
        if name == last:
            return
