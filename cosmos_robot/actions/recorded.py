"""From the columns that public data sets record to the raw action chunks that Cosmos 3 was trained on.

Raw: metres, radians, not normalised. A chunk of T rows needs T + 1 recorded poses. A pose part is a position and rot6d,
framewise relative in a tool frame that Cosmos 3's robots share (x right, y down, z ahead); a gripper column is 1 open,
0 closed, unless said otherwise. Sources: the data set classes of cosmos-framework
(``data/generator/action/datasets``). UR and AgiBot record joints; their poses need a robot model, which is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.actions.poses import pose9, poses_from, relative_rows
from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import RotationFormat
from cosmos_robot.errors import InputError, UnknownNameError

Array = NDArray[np.float64]
DroidSpace = Literal["midtrain", "joint_pos", "ee_pose_delta"]
"""midtrain: framewise poses in the shared tool frame. joint_pos: absolute joint targets. ee_pose_delta: poses since the
chunk's first one, in the robot's own tool frame."""

HAND_JOINTS: Final = 21
FINGERTIPS: Final = (4, 8, 12, 16, 20)


def tool_change(rotation: ArrayLike = ((1, 0, 0), (0, 1, 0), (0, 0, 1)), offset: ArrayLike = (0, 0, 0)) -> Array:
    """(4, 4) pose of another tool frame in the recorded one: pose @ tool_change is the other frame's pose."""
    return poses_from(offset, rotation, "matrix")


QUARTER_TURN: Final = ((0, -1, 0), (1, 0, 0), (0, 0, 1))
DROID_TOOL: Final = tool_change(QUARTER_TURN)
LIBERO_TOOL: Final = tool_change(QUARTER_TURN)
ROBOMIND_FRANKA_TOOL: Final = tool_change(QUARTER_TURN)
BRIDGE_TOOL: Final = (
    tool_change(((0, 0, 1), (0, 1, 0), (-1, 0, 0)))
    @ tool_change(offset=(-0.093575, 0, 0))
    @ tool_change(((0, 0, 1), (-1, 0, 0), (0, -1, 0)))
)
"""The controller's frame to kinematics, fingertip to flange, then the shared axes."""

FRACTAL_TOOL: Final = tool_change(
    (
        (0.9999897671, -0.0008686425, 0.0044397163),
        (0.0008745501, 0.9999987346, -0.0013288658),
        (-0.0044385564, 0.0013327349, 0.9999892615),
    ),
    offset=(-0.0050618476, -0.0016717725, -0.1635144743),
) @ tool_change(((0, 1, 0), (-1, 0, 0), (0, 0, 1)))
"""Google Robot: calibrated fingertip frame to gripper body, then the shared axes."""

HAND_TOOL: Final = tool_change(((0, 1, 0), (-1, 0, 0), (0, 0, 1)))


@dataclass(frozen=True)
class RawChunk:
    """actions (T, D), state (D,) if the data set gives one in the action's space, history (H, D) rows before it, and
    the absolute (4, 4) poses that the chunk starts from, by the name of the hand."""

    actions: Array
    state: Array | None = None
    history: Array | None = None
    initial_poses: Mapping[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> Array:
        """The state row, if there is one, and the actions."""
        return self.actions if self.state is None else np.concatenate([self.state[None], self.actions])


def droid_chunk(
    space: DroidSpace, chunk: int, *, gripper_action: ArrayLike, gripper_state: ArrayLike,
    cartesian: ArrayLike | None = None, joint_action: ArrayLike | None = None, joint_state: ArrayLike | None = None,
    gripper_flipped: bool = True, use_state: bool = True, history: int = 0,
) -> RawChunk:  # fmt: skip
    """DROID. Columns end with the chunk's last row and may begin earlier, for history.

    cartesian: (K, 6) position and euler_xyz, for the pose spaces. joint_action: (>= chunk, 7) commanded joints;
    joint_state: (K, 7) observed ones, for ``joint_pos``. gripper_action, gripper_state: (K,) as recorded (1 closed
    where ``gripper_flipped``). history: how many rows before the chunk to give; ``ee_pose_delta`` has none.
    """
    if space not in get_args(DroidSpace):
        raise UnknownNameError("DROID action space", space, get_args(DroidSpace))
    commanded, observed = (np.asarray(g, dtype=np.float64)[:, None] for g in (gripper_action, gripper_state))
    if gripper_flipped:
        commanded, observed = 1 - commanded, 1 - observed
    initial: dict[str, Array] = {}
    if space == "joint_pos":
        joints, states = _columns(joint_action, 7, chunk), _columns(joint_state, 7, chunk + 1 + history)
        rows = np.concatenate([joints[-chunk:], _last(commanded, chunk)], axis=1)
        before = np.concatenate([states, _last(observed, len(states))], axis=1)[: len(states) - chunk]
        state, earlier = before[-1], before[len(before) - 1 - history : -1]
    else:
        columns = _columns(cartesian, 6, chunk + 1 + history)
        poses = poses_from(columns[:, :3], columns[:, 3:], "euler_xyz")
        if space == "midtrain":
            poses = poses @ DROID_TOOL
            changes = relative_rows(poses, "rot6d", "framewise")
            initial = {"tool": poses[-chunk - 1]}
        elif history:
            raise InputError(f"DROID {space}: no history rows, got history={history}")
        else:
            changes = relative_rows(poses[-chunk - 1 :], "rot6d", "anchored")
        wanted = chunk + history
        all_rows = np.concatenate([changes[-wanted:], _last(commanded, wanted)], axis=1)
        rows, earlier = all_rows[history:], all_rows[:history]
        state = np.concatenate([pose9(poses[-chunk - 1]), _last(observed, chunk + 1)[0]])
    return RawChunk(rows, state if use_state else None, earlier if history else None, initial)


def bridge_chunk(state: ArrayLike, action: ArrayLike) -> RawChunk:
    """Bridge (WidowX): state (T + 1, >= 6) position and euler_xyz; action (>= T, 7), its last the gripper."""
    return _one_hand(state, "euler_xyz", BRIDGE_TOOL, np.asarray(action, dtype=np.float64)[:, 6:7])


def fractal_chunk(state: ArrayLike, action: ArrayLike) -> RawChunk:
    """Fractal (Google Robot): state (T + 1, >= 7) position and quat_xyzw, action (>= T, 7), its last the gripper."""
    return _one_hand(state, "quat_xyzw", FRACTAL_TOOL, np.asarray(action, dtype=np.float64)[:, 6:7])


def umi_chunk(trajectory: ArrayLike, gripper_width: ArrayLike, eef_in_camera: ArrayLike) -> RawChunk:
    """UMI: trajectory (T + 1, 7) of the wrist camera, position and quat_wxyz; eef_in_camera (7,) likewise.

    gripper_width: (T + 1, 1) metres; a row carries that of the frame it leads to. The chunk's initial pose is the
    camera's.
    """
    path, tool = _columns(trajectory, 7, 2), _columns(np.atleast_2d(eef_in_camera), 7, 1)[0]
    camera = poses_from(path[:, :3], path[:, 3:], "quat_wxyz")
    changes = relative_rows(camera @ poses_from(tool[:3], tool[3:], "quat_wxyz"), "rot6d", "framewise")
    widths = _columns(gripper_width, 1, len(path))
    return RawChunk(np.concatenate([changes, widths[1:]], axis=1), initial_poses={"camera": camera[0]})


def robomind_franka_chunk(end_effector: ArrayLike, joint_position: ArrayLike) -> RawChunk:
    """RoboMIND's Franka, one arm or two (left, right): end_effector (T + 1, 6 a hand) position and euler_xyz,
    joint_position (>= T, 8 a hand) whose last number of each hand is the gripper, 1 closed as recorded."""
    poses, joints = np.asarray(end_effector, dtype=np.float64), np.asarray(joint_position, dtype=np.float64)
    hands = {6: ("tool",), 12: ("left", "right")}.get(poses.shape[-1])
    if hands is None or joints.shape[-1] != 8 * len(hands):
        raise InputError(f"RoboMIND Franka: poses of 6 or 12 and joints of 8 or 16, got {poses.shape}, {joints.shape}")
    parts = [
        _one_hand(poses[:, 6 * i : 6 * i + 6], "euler_xyz", ROBOMIND_FRANKA_TOOL, 1 - joints[:, 8 * i + 7 : 8 * i + 8])
        for i in range(len(hands))
    ]
    initial = {hand: part.initial_poses["tool"] for hand, part in zip(hands, parts, strict=True)}
    return RawChunk(np.concatenate([part.actions for part in parts], axis=1), initial_poses=initial)


def hand_pose_chunk(
    camera_position: ArrayLike, camera_rotation: ArrayLike, right: tuple[ArrayLike, ArrayLike],
    left: tuple[ArrayLike, ArrayLike],
) -> RawChunk:  # fmt: skip
    """Human hands, 57 numbers a row: camera pose 9, then wrist pose 9 and fingertips 15 of the right and left hand.

    camera_position (T + 1, 3), camera_rotation (T + 1, 4) quat_xyzw, in the world. right, left: (T + 1, 63) positions
    and (T + 1, 84) quat_xyzw of 21 joints, the wrist first, in the camera's frame. Camera and wrists are framewise
    poses in the world; the fingertips of a row are those of the frame it leads to, in that frame's wrist.
    """
    camera = poses_from(_columns(camera_position, 3, 2), _columns(camera_rotation, 4, 2), "quat_xyzw")
    parts = [relative_rows(camera, "rot6d", "framewise")]
    for positions, rotations in (right, left):
        places = _columns(positions, 3 * HAND_JOINTS, 2).reshape(-1, HAND_JOINTS, 3)
        turns = _columns(rotations, 4 * HAND_JOINTS, 2).reshape(-1, HAND_JOINTS, 4)
        wrist = poses_from(places[:, 0], turns[:, 0], "quat_xyzw") @ HAND_TOOL
        tips = places[1:, FINGERTIPS] - wrist[1:, None, :3, 3]
        in_wrist = np.einsum("tji,tnj->tni", wrist[1:, :3, :3], tips).reshape(len(tips), -1)
        parts += [relative_rows(camera @ wrist, "rot6d", "framewise"), in_wrist]
    return RawChunk(np.concatenate(parts, axis=1), initial_poses={"camera": camera[0]})


def libero_rows(actions: ArrayLike, rotation: RotationFormat) -> Array:
    """LIBERO: (T, 7) recorded commands, position change, rotation vector and gripper, with the rotation in another
    format; (T, 4 + width). Nothing is integrated: the model speaks the controller's commands."""
    x = _columns(actions, 7, 1)
    return np.concatenate([x[:, :3], convert(x[:, 3:6], "rotvec", rotation), x[:, 6:]], axis=1)


def libero_commands(rows: ArrayLike, rotation: RotationFormat) -> Array:
    """The inverse of ``libero_rows``: (T, 4 + width) rows to (T, 7) commands. Rotation vectors pass unchanged."""
    x = np.asarray(rows, dtype=np.float64)
    turn = x[:, 3:-1] if rotation == "rotvec" else convert(x[:, 3:-1], rotation, "rotvec")
    return np.concatenate([x[:, :3], turn, x[:, -1:]], axis=1)


def libero_poses(state: ArrayLike, *, shared_axes: bool) -> Array:
    """(T, >= 6) LIBERO states, position and robosuite's axis-angle, to (T, 4, 4) poses; ``shared_axes`` turns the tool
    frame into the one that Cosmos 3's robots share."""
    x = np.asarray(state, dtype=np.float64)
    poses = poses_from(x[:, :3], x[:, 3:6], "rotvec_robosuite")
    return poses @ LIBERO_TOOL if shared_axes else poses


def _one_hand(columns: ArrayLike, rotation: RotationFormat, tool: Array, gripper: Array) -> RawChunk:
    """Framewise rows of one hand whose recorded columns begin with a position and a rotation."""
    x = np.asarray(columns, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise InputError(f"recorded poses: expected (T + 1, D), got {x.shape}")
    width = 4 if rotation == "quat_xyzw" else 3
    poses = poses_from(x[:, :3], x[:, 3 : 3 + width], rotation) @ tool
    changes = relative_rows(poses, "rot6d", "framewise")
    if len(gripper) < len(changes):
        raise InputError(f"recorded gripper: {len(gripper)} rows for {len(changes)} actions")
    return RawChunk(np.concatenate([changes, gripper[: len(changes)]], axis=1), initial_poses={"tool": poses[0]})


def _columns(values: ArrayLike | None, width: int, least: int) -> Array:
    x = np.asarray([] if values is None else values, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != width or len(x) < least:
        raise InputError(f"recorded columns: expected at least ({least}, {width}), got {x.shape}")
    return x


def _last(rows: Array, count: int) -> Array:
    if len(rows) < count:
        raise InputError(f"recorded columns: {len(rows)} rows, expected at least {count}")
    return rows[len(rows) - count :]
