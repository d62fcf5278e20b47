"""Small synthetic recordings: two coloured squares on a grey table, a hand that moves to the named one."""

from __future__ import annotations

import numpy as np

from cosmos_robot.data.episodes import Episode, EpisodeInfo

COLOURS = {"red block": (220, 40, 40), "green block": (40, 200, 60)}
CHUNK = 4


def draw_episode(seed: int, rows: int = 6, dagger: bool = False) -> Episode:
    """Two squares at random places; the instruction names one of them, the hand moves straight to it."""
    rng = np.random.default_rng(seed)
    names = list(COLOURS)
    places = rng.uniform(0.15, 0.85, (2, 2))  # (row, column) fractions of the picture
    while np.abs(places[0] - places[1]).max() < 0.25:
        places = rng.uniform(0.15, 0.85, (2, 2))
    target = int(rng.integers(2))
    picture = np.full((64, 64, 3), 120, np.uint8)
    for name, (down, right) in zip(names, places, strict=True):
        top, left = int(down * 64) - 4, int(right * 64) - 4
        picture[top : top + 8, left : left + 8] = COLOURS[name]
    goal = np.array([*places[target] - 0.5, 0.0])
    hand = rng.uniform(-0.4, 0.4, 3) * [1, 1, 0.5] + [0, 0, 0.2]
    state, actions = np.zeros((rows, 3)), np.zeros((rows, CHUNK, 4))
    for row in range(rows):
        state[row] = hand
        for step in range(CHUNK):
            command = np.clip(10 * (goal - hand), -1, 1)
            actions[row, step] = [*command, 1 if np.abs(goal - hand).max() < 0.05 else -1]
            if step < 2:
                hand = hand + 0.05 * command
    valid = np.ones((rows, CHUNK), bool)
    valid[-1, 2:] = False
    uv = np.zeros((rows, 3, 3))
    uv[:, :2] = [*[(right, down, 1) for down, right in places]]
    extras = {
        "object_uv_top": uv,
        "object_uv_wrist": uv * [1, 1, 0],
        "object_class": np.tile([0, 1, -1], (rows, 1)),
        "target": np.full(rows, target),
        "goal": np.full(rows, 1 - target),
        "target_xyz": np.tile(goal, (rows, 1)),
        "goal_xyz": np.tile([*places[1 - target] - 0.5, 0.0], (rows, 1)),
        "phase": np.arange(rows) // 3,
    }
    return Episode(
        instruction=f"go to the {names[target]}",
        images={"top": np.tile(picture, (rows, 1, 1, 1)), "wrist": np.zeros((rows, 64, 64, 3), np.uint8)},
        state=state.astype(np.float32),
        actions=actions.astype(np.float32),
        valid=valid,
        info=EpisodeInfo("dots", 0, seed, "dagger" if dagger else "expert", True),
        extras={name: np.asarray(value, np.float32) for name, value in extras.items()},
    )
