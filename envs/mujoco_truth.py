"""The ground truth of a MuJoCo simulation. Forward kinematics is run anew, on data of its own, for every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.truth import GroundTruth, Pose

MARK_RADIUS = 0.06
"""Metres. The free body nearest to this size serves as mark."""
MARK_SHARE = 0.25
"""Radius of the mark in the picture, as a share of half its height."""
NEAR_PLANES = 1.2
"""How far beyond the nearest distance that is drawn a mark begins."""
FREE_SHARE = 0.7
"""How far towards what stands behind it a mark is put at most."""
_SIGNS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)
HIDDEN = np.array([0.0, 0.0, -5.0])


class MujocoTruth(GroundTruth):
    """Reads a model and its data. Abstract still: an environment adds its initial states.

    robot: for the shape of its pictures. cameras: camera name to the name in the model. hand_site, base_body: names.
    hand_body: whose orientation counts. finger_joints: names, of which each opens away from 0. joints: names of those
    that joint commands move. refresh: makes the simulation take over a changed ``qpos``.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        robot: RobotSpec,
        *,
        cameras: Mapping[str, str],
        hand_site: str,
        hand_body: str,
        base_body: str,
        finger_joints: Sequence[str],
        joints: Sequence[str] = (),
        refresh: Callable[[], None],
    ):
        self.model, self._live = model, data
        self._own = mujoco.MjData(model)
        self._cameras = {name: model.camera(inside).id for name, inside in cameras.items()}
        self._site, self._hand = model.site(hand_site).id, model.body(hand_body).id
        self._base = model.body(base_body).id
        self._fingers = [model.joint(name).id for name in finger_joints]
        self._joints = [model.joint(name).id for name in joints]
        self._refresh = refresh
        self._aspect = {camera.name: camera.width / camera.height for camera in robot.cameras}

    @property
    def now(self) -> mujoco.MjData:
        """Kinematics of the present joint positions."""
        self._own.qpos[:] = self._live.qpos
        mujoco.mj_kinematics(self.model, self._own)
        mujoco.mj_camlight(self.model, self._own)
        return self._own

    def seconds(self) -> float:
        return float(self._live.time)

    def frames(self) -> Mapping[str, Pose]:
        now = self.now
        base = Pose(np.array(now.xpos[self._base]), now.xmat[self._base].reshape(3, 3).copy())
        return {"world": Pose(np.zeros(3), np.eye(3)), "base": base, "tool": self.hand()}

    def hand(self) -> Pose:
        now = self.now
        return Pose(np.array(now.site_xpos[self._site]), now.xmat[self._hand].reshape(3, 3).copy())

    def joints(self) -> NDArray[np.float64]:
        return np.array([self._live.qpos[self.model.jnt_qposadr[j]] for j in self._joints])

    def fingers(self) -> NDArray[np.float64]:
        return np.array([self._live.qpos[self.model.jnt_qposadr[j]] for j in self._fingers])

    def opening(self) -> float:
        return float(np.abs(self.fingers()).sum())

    def fully_open(self) -> float:
        return float(np.abs(self.model.jnt_range[self._fingers]).max(axis=1).sum())

    def seen_at(self, camera: str, u: float, v: float) -> NDArray[np.float64]:
        """Where the mark fills ``MARK_SHARE`` of the picture, but nearer than whatever stands there."""
        now, index = self.now, self._cameras[camera]
        focal = focal_length(self.model, index)
        right, up = (u - 0.5) * self._aspect[camera] / focal, (0.5 - v) / focal
        ray = now.cam_xmat[index].reshape(3, 3) @ np.array([right, up, -1.0])
        free = mujoco.mj_ray(
            self.model,
            self._live,
            now.cam_xpos[index],
            ray,
            None,
            1,
            self.model.cam_bodyid[index],
            np.zeros(1, np.int32),
        )
        radius = self._mark()[2]
        nearest = NEAR_PLANES * self.model.vis.map.znear * self.model.stat.extent + radius  # nothing nearer is drawn
        depth = max(2 * focal * radius / MARK_SHARE, nearest)
        return np.array(now.cam_xpos[index] + ray * (depth if free < 0 else min(depth, FREE_SHARE * free)))

    def put_mark(self, point: NDArray[np.float64] | None) -> Callable[[], None]:
        """The mark is a free body of the scene, moved there in no time."""
        address, centre, _ = self._mark()
        before = np.array(self._live.qpos)
        self._live.qpos[address : address + 3] = HIDDEN if point is None else point - centre

        def undo() -> None:
            self._live.qpos[:] = before
            self._refresh()

        self._refresh()
        return undo

    def _mark(self) -> tuple[int, NDArray[np.float64], float]:
        """Address in qpos, centre from the body's origin in world axes, and radius of the body that serves as mark."""
        now, model = self.now, self.model
        found = []
        for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            body = model.jnt_bodyid[joint]
            geoms = np.flatnonzero(model.body_rootid[model.geom_bodyid] == model.body_rootid[body])
            corners = np.concatenate([self._corners(now, geom) for geom in geoms])
            low, high = corners.min(0), corners.max(0)
            radius = float((high - low).max() / 2)
            found.append((int(model.jnt_qposadr[joint]), (low + high) / 2 - now.xpos[body], radius))
        return min(found, key=lambda mark: abs(mark[2] - MARK_RADIUS))

    def _corners(self, now: mujoco.MjData, geom: int) -> NDArray[np.float64]:
        """The corners (8, 3) of a geom's box in the world."""
        centre, half = self.model.geom_aabb[geom][:3], self.model.geom_aabb[geom][3:]
        return now.geom_xpos[geom] + (centre + half * _SIGNS) @ now.geom_xmat[geom].reshape(3, 3).T


def focal_length(model: mujoco.MjModel, camera: int) -> float:
    """Of camera number ``camera``, in picture heights."""
    return float(0.5 / np.tan(np.radians(model.cam_fovy[camera]) / 2))


def pinhole(
    model: mujoco.MjModel, data: mujoco.MjData, camera: int, points: ArrayLike, aspect: float = 1.0
) -> NDArray[np.float64]:
    """World points (N, 3) to (N, 3): u, v as fractions of the upright picture, at most one picture outside it, and 1
    where inside. aspect: width over height. A camera looks along its -z with x to the right and y up (MuJoCo,
    XML reference, "camera")."""
    local = (np.asarray(points) - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
    scale = focal_length(model, camera) / np.maximum(-local[:, 2], 1e-6)
    u, v = 0.5 + scale * local[:, 0] / aspect, 0.5 - scale * local[:, 1]
    inside = (local[:, 2] < 0) & (u >= 0) & (u < 1) & (v >= 0) & (v < 1)
    return np.stack([np.clip(u, -1, 2), np.clip(v, -1, 2), inside], axis=1)
