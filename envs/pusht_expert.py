"""A scripted demonstrator for PushT: it tries pushes in a copy of the simulation and takes the one that pays best.

The disc goes round the T to a place beside it, pushes along a line, and decides again. Damping is total, so what a push
does depends on the disc's path and hardly on its speed: a candidate is simulated by sweeping the disc along its line.
Lengths are pixels of the square of 512, as everywhere in ``envs/pusht.py``.

Axis legend: V corners of the T, C candidate pushes, K places along a push.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.pusht import SIDE, PushTEnv, build_inner

RADIUS = 15.0
"""Of the disc."""
WALL = 5.0 + 2.0
LEAD = 28.0
"""How far ahead of the disc its target lies on the path: the disc then moves 12 px in a control step."""
_GAP = 4.0
"""Between disc and T where a push begins."""
_CLEAR = 6.0
"""Least gap between disc and T on the way round it."""
_NEAR = 1.5
"""A place is reached when the disc is so near."""
_PATIENCE = 60
"""Control steps after which a push is given up."""
_SWEEP = 2.0
"""Of the disc in a step of the simulated push."""
_LONGEST = 110.0
_TILTS = (-0.35, 0.0, 0.35)
"""Radians between a push and the inward normal of the edge it begins at."""
_SPACING = 18.0
"""Between neighbouring places on the outline at which pushes begin."""
_OUTLINE = np.array([(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], np.float64)
_CELL = 8.0
"""Of the grid on which ways round the T are searched."""
_DECISION_COST = 60.0
"""A decision costs as much as so many px of way, so that long pushes are preferred to many short ones."""


Pose = tuple[float, float, float]
"""x, y, angle of the T's own frame."""


@dataclass(frozen=True)
class Push:
    """A straight push. begin, end: middles of the disc (2,). gain: what the corners come nearer to their goal, px on
    average. way: px that the disc travels for it, the approach included. pose: where the T then lies."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    gain: float
    way: float
    pose: Pose

    @property
    def worth(self) -> float:
        return self.gain / (self.way + _DECISION_COST)


class PushTExpert:
    """``act()`` reads the simulation and returns the clean command (2,). All it remembers is the push it is at."""

    def __init__(self, env: PushTEnv):
        self._env = env
        self._model = _Model()
        self._way: list[NDArray[np.float64]] = []
        self._push: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._ticks = 0

    def act(self) -> NDArray[np.float64]:
        disc = np.array(self._env.inner.agent.position)
        self._ticks += 1
        if self._over(disc):
            self._decide(disc)
        while self._way and np.linalg.norm(self._way[0] - disc) < (_NEAR if len(self._way) == 1 else LEAD / 2):
            self._way.pop(0)
        return np.clip(self._ahead(disc) if self._way else self._along(disc), 0, SIDE)

    @property
    def careful(self) -> bool:
        """Whether the disc pushes or is about to, so that a pixel matters."""
        return len(self._way) <= 1

    def _over(self, disc: NDArray[np.float64]) -> bool:
        """Whether the push came to its end, left its line, or never got anywhere."""
        if self._push is None or self._ticks > _PATIENCE:
            return True
        if self._way:
            return False
        begin, end = self._push
        done, beside = _on_line(begin, end, disc)
        return done > float(np.linalg.norm(end - begin)) - 0.5 or beside > 6.0

    def _decide(self, disc: NDArray[np.float64]) -> None:
        self._ticks = 0
        pose = _pose(self._env)
        push = self._model.best(pose, disc)
        if push is None:  # the T lies where no push helps: let go of it
            middle = np.full(2, SIDE / 2)
            self._way, self._push = [], (disc, disc + 60 * (middle - disc) / max(1.0, np.linalg.norm(middle - disc)))
            return
        self._way, self._push = self._model.way_round(pose, disc, push.begin), (push.begin, push.end)

    def _ahead(self, disc: NDArray[np.float64]) -> NDArray[np.float64]:
        """The point ``LEAD`` along the way, or less far where the T is between. At its end the disc comes to rest."""
        pose = _pose(self._env)
        for lead in (LEAD, 0.7 * LEAD, 0.4 * LEAD):
            target = _walk([disc, *self._way], lead)
            if self._model.straight(pose, disc, target, 0.5):
                return target
        return target

    def _along(self, disc: NDArray[np.float64]) -> NDArray[np.float64]:
        """The point of the push's line ``LEAD`` beyond where the disc is, at most its end."""
        assert self._push is not None
        begin, end = self._push
        length = max(float(np.linalg.norm(end - begin)), 1e-9)
        done, _ = _on_line(begin, end, disc)
        return begin + (end - begin) * min(1.0, (max(done, 0.0) + min(LEAD, max(length, 8.0))) / length)


class _Model:
    """A copy of the simulation, in which pushes are tried."""

    def __init__(self) -> None:
        self._inner = build_inner(8, 8)
        self._inner.reset(seed=0)
        self._inner.collision_handeler.post_solve = _ignore
        shapes = self._inner.block.shapes
        self._corners = np.array([v for shape in shapes for v in shape.get_vertices()])
        self._boxes = [_bounds(np.array(shape.get_vertices())) for shape in shapes]
        goal = self._inner.goal_pose
        self._goal = _placed(self._corners, goal)
        self._edges = _edges()

    def error(self, pose: Pose) -> float:
        """Mean distance of the T's corners from where they shall be."""
        return float(np.linalg.norm(_placed(self._corners, pose) - self._goal, axis=1).mean())

    def best(self, pose: Pose, disc: NDArray[np.float64]) -> Push | None:
        """The push that pays best; where none pays much, the first of the two that together pay best."""
        pushes = [p for p in self._pushes(pose, disc) if p.gain > 0.3]
        best = max(pushes, key=lambda p: p.worth, default=None)
        if best is not None and best.gain > 0.4 * self.error(pose):
            return best
        return self._first_of_two(pose, disc) or best

    def _first_of_two(self, pose, disc) -> Push | None:
        before, best, least = self.error(pose), None, 0.0
        firsts = sorted(self._pushes(pose, disc, every=True), key=lambda p: -p.worth)[:12]
        for first in firsts:
            for second in self._pushes(first.pose, first.end):
                worth = (before - self.error(second.pose)) / (first.way + second.way + 2 * _DECISION_COST)
                if worth > least:
                    best, least = first, worth
        return best

    def _pushes(self, pose, disc, every: bool = False) -> list[Push]:
        found = []
        for begin, direction in self._starts(pose):
            push = self._sweep(pose, disc, begin, direction)
            if push is not None and (every or push.gain > 0):
                found.append(push)
        return found

    def _starts(self, pose) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Where the disc can begin to push, and which way."""
        turn = _turn(pose[2])
        starts = []
        for point, normal in self._edges:
            for tilt in _TILTS:
                begin = turn @ (point - (RADIUS + _GAP) * normal) + pose[:2]
                if self._free(pose, begin[None], _GAP - 1.0)[0]:
                    starts.append((begin, turn @ _turn(tilt) @ normal))
        return starts

    def _sweep(self, pose, disc, begin, direction) -> Push | None:
        """The best length of one push."""
        inner = self._inner
        before = self.error(pose)
        inner.agent.position = tuple(begin)
        inner.agent.velocity = tuple(direction * _SWEEP / inner.dt)
        inner.block.velocity, inner.block.angular_velocity = (0.0, 0.0), 0.0
        inner.block.angle, inner.block.position = pose[2], pose[:2]
        inner.space.reindex_shapes_for_body(inner.block)
        approach = 1.3 * float(np.linalg.norm(begin - disc))
        best, last = None, before
        low, high = WALL + RADIUS, SIDE - WALL - RADIUS
        for k in range(1, int(_LONGEST / _SWEEP)):
            inner.space.step(inner.dt)
            x, y = inner.agent.position
            if not (low < x < high and low < y < high):
                break
            here = (*inner.block.position, inner.block.angle)
            error = self.error(here)
            push = Push(begin, np.array([x, y]), before - error, approach + k * _SWEEP, here)
            if best is None or push.worth > best.worth:
                best = push
            if error > last + 8:
                break
            last = min(last, error)
        return best

    def _free(self, pose, points: NDArray[np.float64], gap: float) -> NDArray[np.bool_]:
        """(P,) whether a disc in the middle ``points`` (P, 2) touches neither wall nor T, by ``gap``."""
        local = (points - pose[:2]) @ _turn(pose[2])
        distance = np.min([np.linalg.norm(np.maximum(np.maximum(low - local, local - high), 0), axis=1)
                           for low, high in self._boxes], axis=0)  # fmt: skip
        inside = ((points > WALL + RADIUS) & (points < SIDE - WALL - RADIUS)).all(1)
        return inside & (distance >= RADIUS + gap)

    def way_round(self, pose, disc, goal) -> list[NDArray[np.float64]]:
        """Corners of a short way from ``disc`` to ``goal`` (included) that leaves the T where it is."""
        if self.straight(pose, disc, goal, 0.0):
            return [goal]
        count = int(SIDE / _CELL)
        points = (np.stack(np.meshgrid(*[np.arange(count)] * 2, indexing="ij"), -1) + 0.5) * _CELL
        free = self._free(pose, points.reshape(-1, 2), _CLEAR).reshape(count, count)
        cells = _shortest(free, _cell(disc, count), _cell(goal, count))
        corners = [points[c] for c in cells[1:-1]] + [goal]
        way, at = [], disc
        while corners:
            seen = (i for i in range(len(corners) - 1, 0, -1) if self.straight(pose, at, corners[i], _CLEAR - 2))
            ahead = next(seen, 0)
            way.append(corners[ahead])
            at, corners = corners[ahead], corners[ahead + 1 :]
        return way

    def straight(self, pose, a, b, gap: float) -> bool:
        steps = np.linspace(0, 1, 2 + int(np.linalg.norm(b - a) / 4))[1:, None]
        return bool(self._free(pose, a + steps * (b - a), gap).all())


def _walk(way: Sequence[NDArray[np.float64]], length: float) -> NDArray[np.float64]:
    """The point ``length`` along the way, at most its end."""
    for at, corner in pairwise(way):
        part = float(np.linalg.norm(corner - at))
        if part > length:
            return at + (corner - at) * length / part
        length -= part
    return way[-1]


def _on_line(begin, end, point) -> tuple[float, float]:
    """How far along a line ``point`` lies, and how far beside it."""
    unit = (end - begin) / max(float(np.linalg.norm(end - begin)), 1e-9)
    offset = point - begin
    return float(offset @ unit), float(abs(offset[0] * unit[1] - offset[1] * unit[0]))


def _ignore(arbiter, space, data) -> None:
    pass


def _pose(env: PushTEnv) -> Pose:
    block = env.inner.block
    return (*block.position, block.angle)


def _turn(angle: float) -> NDArray[np.float64]:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def _placed(corners: NDArray[np.float64], pose: Sequence[float]) -> NDArray[np.float64]:
    return corners @ _turn(pose[2]).T + np.asarray(pose[:2])


def _bounds(corners: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return corners.min(0), corners.max(0)


def _edges() -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Places on the T's outline (2,) and the inward normal there (2,), in its own frame."""
    found = []
    for a, b in zip(_OUTLINE, np.roll(_OUTLINE, -1, axis=0), strict=True):
        along = b - a
        length = float(np.linalg.norm(along))
        normal = np.array([-along[1], along[0]]) / length
        count = max(1, round(length / _SPACING))
        for share in (np.arange(count) + 0.5) / count:
            found.append((a + share * along, normal))
    return found


def _cell(point: NDArray[np.float64], count: int) -> tuple[int, int]:
    i, j = np.clip((point / _CELL).astype(int), 0, count - 1)
    return int(i), int(j)


def _shortest(free: NDArray[np.bool_], start: tuple[int, int], goal: tuple[int, int]) -> list[tuple[int, int]]:
    """Cells of the shortest way over ``free`` cells; others cost 30 times as much, so that there always is one."""
    queue, cost, came = [(0.0, start)], {start: 0.0}, {}
    while queue:
        _, at = heapq.heappop(queue)
        if at == goal:
            break
        for di in (-1, 0, 1):
            for dj in (-1, 0, 1):
                to = (at[0] + di, at[1] + dj)
                if to == at or not (0 <= to[0] < len(free) and 0 <= to[1] < len(free)):
                    continue
                total = cost[at] + np.hypot(di, dj) * (1 if free[to] else 30)
                if total < cost.get(to, np.inf):
                    cost[to], came[to] = total, at
                    heapq.heappush(queue, (total + np.hypot(to[0] - goal[0], to[1] - goal[1]), to))
    way = [goal]
    while way[-1] != start:
        way.append(came[way[-1]])
    return way[::-1]
