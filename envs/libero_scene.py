"""A LIBERO scene read from the simulator: objects, their shapes, the goal, cameras. Privileged knowledge, for
demonstrators and training-only labels; policies never see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.libero import SIM_CAMERAS, LiberoEnv
from cosmos_robot.envs.mujoco_truth import pinhole
from cosmos_robot.errors import InputError

MAX_OBJECTS = 8
OBJECT_CLASSES = (
    "alphabet_soup",
    "cream_cheese",
    "salad_dressing",
    "bbq_sauce",
    "ketchup",
    "tomato_sauce",
    "butter",
    "milk",
    "chocolate_pudding",
    "orange_juice",
    "basket",
    "akita_black_bowl",
    "cookies",
    "glazed_rim_porcelain_ramekin",
    "plate",
    "wooden_cabinet",
    "flat_stove",
)


@dataclass(frozen=True)
class SceneObject:
    """One object: body, the address of its free joint in qpos (None for a fixture), collision points in body axes."""

    name: str
    category: str
    body: int
    qpos_address: int | None
    points: NDArray[np.float64]


class LiberoScene:
    """Objects and goal of one environment. Valid until the environment rebuilds its model (every ``reset``)."""

    def __init__(self, env: LiberoEnv):
        self.env = env
        self.model, self.data = env.sim.model._model, env.sim.data._data
        inner = env.sim_env.env
        self.objects = tuple(self._object(name, body) for name, body in inner.obj_body_id.items() if name != "floor")
        goal = inner.parsed_problem["goal_state"]
        if len(goal) != 1 or goal[0][0] not in ("in", "on"):
            raise InputError(f"no demonstrator for the goal {goal} of {env.task.name}")
        _, self.target_name, self.goal_site = goal[0]
        self.target = self.index(self.target_name)
        self.goal = self.index(self.goal_site.removesuffix("_contain_region"))

    def index(self, name: str) -> int:
        """Position of an object in ``objects``."""
        names = [o.name for o in self.objects]
        if name not in names:
            raise InputError(f"no object {name!r} in {self.env.task.name}; it has {names}")
        return names.index(name)

    def points(self, i: int) -> NDArray[np.float64]:
        """Collision points of object ``i`` in the world (N, 3), metres."""
        o = self.objects[i]
        return o.points @ self.data.xmat[o.body].reshape(3, 3).T + self.data.xpos[o.body]

    def box(self, i: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """World-axis bounding box of object ``i``: low (3,), high (3,)."""
        p = self.points(i)
        return p.min(0), p.max(0)

    def centre(self, i: int) -> NDArray[np.float64]:
        """Centre of the bounding box (3,)."""
        low, high = self.box(i)
        return (low + high) / 2

    def goal_position(self) -> NDArray[np.float64]:
        """Where the target belongs: the container's inside, or the plate's middle (3,)."""
        if self.goal_site.endswith("contain_region"):
            return np.array(self.env.sim.data.get_site_xpos(self.goal_site))
        return self.centre(self.goal)

    def project(self, camera: str, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """World points (N, 3) to (N, 3): u, v as fractions of the upright picture, and 1 where inside it."""
        spec = self.env.robot.camera(camera)
        index = self.model.camera(SIM_CAMERAS[camera]).id
        return pinhole(self.model, self.data, index, points, spec.width / spec.height)

    def _object(self, name: str, body: int) -> SceneObject:
        address = None
        if (
            self.model.body_jntnum[body]
            and self.model.jnt_type[self.model.body_jntadr[body]] == mujoco.mjtJoint.mjJNT_FREE
        ):
            address = int(self.model.jnt_qposadr[self.model.body_jntadr[body]])
        category = name.rstrip("0123456789").rstrip("_")
        return SceneObject(name, category, body, address, self._collision_points(body))

    def _collision_points(self, body: int) -> NDArray[np.float64]:
        to_body = self.data.xmat[body].reshape(3, 3)
        parts = []
        for geom in range(self.model.ngeom):
            if self.model.geom_contype[geom] and self.belongs(self.model.geom_bodyid[geom], body):
                world = _geom_points(self.model, geom) @ self.data.geom_xmat[geom].reshape(3, 3).T
                parts.append((world + self.data.geom_xpos[geom] - self.data.xpos[body]) @ to_body)
        points = np.concatenate(parts) if parts else np.zeros((1, 3))
        # Meshes have thousands of vertices; the outermost ones in many directions give the same boxes.
        return points[np.unique(np.argmax(points @ _DIRECTIONS.T, axis=0))]

    def belongs(self, body: int, root: int) -> bool:
        """Whether ``body`` is ``root`` or hangs below it."""
        while body not in (0, root):
            body = self.model.body_parentid[body]
        return body == root


def _sphere(n: int) -> NDArray[np.float64]:
    """n directions spread over the sphere (Fibonacci), and the six axes."""
    k = np.arange(n) + 0.5
    height, turn = 1 - 2 * k / n, k * np.pi * (1 + 5**0.5)
    radius = np.sqrt(1 - height**2)
    return np.concatenate([np.stack([radius * np.cos(turn), radius * np.sin(turn), height], 1), np.eye(3), -np.eye(3)])


_DIRECTIONS = _sphere(200)


def _geom_points(model, geom: int) -> NDArray[np.float64]:
    """Extreme points of a geom in its own axes: mesh vertices, or the corners of its bounding box."""
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        start = model.mesh_vertadr[mesh]
        return np.array(model.mesh_vert[start : start + model.mesh_vertnum[mesh]], dtype=np.float64)
    centre, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)
    return centre + corners * half
