"""The DROID table as a MuJoCo model: robosuite's Panda with its Robotiq 2F-85, things to handle, three cameras.

World axes are those of the arm's base, which stands on the table: x to the front, y to the left, z up; the table top is
z = 0. Lengths in metres, angles in radians, masses in kilograms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import DependencyError

if TYPE_CHECKING:
    import mujoco

ARM_JOINTS = tuple(f"joint{i}" for i in range(1, 8))
FINGER_JOINTS = ("gripper_finger_joint", "gripper_right_outer_knuckle_joint")
PADS = ("gripper_left_fingerpad_collision", "gripper_right_fingerpad_collision")
GRIP_SITE = "gripper_grip_site"
KNUCKLE_CLOSED = 0.8
"""Angle of the finger joint when closed; 0 is open (robosuite's model of the gripper)."""

SUBSTEPS = 40
"""Physics steps per control step, so that a control step lasts 1/15 s exactly."""
RATE_HZ = 15.0

_STIFFNESS = (3000.0, 3000.0, 2000.0, 2000.0, 1000.0, 1000.0, 600.0)
_DAMPING_SECONDS = 0.06
_TORQUE = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0)
_GRIP_TORQUE = 6.0

BLOCK_HALF = 0.025
BLOCKS = {"red": (0.85, 0.08, 0.06, 1), "green": (0.08, 0.6, 0.12, 1), "blue": (0.06, 0.16, 0.8, 1)}
TRAY_HALF, TRAY_WALL = 0.085, 0.03
MARK_RADIUS = 0.06
DRAWER_TRAVEL = 0.16
HANDLE = (-0.055, 0.0, 0.06)
"""Middle of the drawer's handle from the front face's middle on the table, drawer shut."""

CAMERAS = {
    "exterior_image_1_left": ((0.05, 0.62, 0.55), (0.45, 0.0, 0.08), 58.0),
    "exterior_image_2_left": ((0.05, -0.62, 0.55), (0.45, 0.0, 0.08), 58.0),
}
"""Exterior cameras: place, point looked at, vertical angle of view in degrees."""
_WRIST_AT, _WRIST_TO, _WRIST_FOVY = (0.085, 0.0, 0.0), (0.0, 0.0, 0.16), 62.0
_WOOD = "textures/light-wood.png"


def open_mujoco():
    """The module ``mujoco``, for rendering without a screen. Raises DependencyError if it is not installed."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import mujoco
    except ImportError as error:
        raise DependencyError(f"MuJoCo is not installed ({error}); install cosmos-robot[libero]") from error
    return mujoco


def block_name(colour: str) -> str:
    """The body of a block."""
    return f"{colour}_block"


@cache
def build(things: tuple[str, ...]) -> mujoco.MjModel:
    """The model with ``things`` on the table: colours of BLOCKS, "tray", "mark", "cabinet". One per set and process;
    nobody may change it. Raises DependencyError if robosuite is not installed."""
    spec = _arm()
    _servos(spec)
    _surroundings(spec)
    for thing in things:
        makers = {"tray": _tray, "mark": _mark, "cabinet": _cabinet}
        if thing in makers:
            makers[thing](spec)
        else:
            _block(spec, thing)
    return spec.compile()


def look_at(place: Sequence[float], target: Sequence[float], up: Sequence[float]) -> NDArray[np.float64]:
    """Axes (3, 3), as columns, of a camera: it looks along its -z, y up in the picture."""
    back = np.subtract(place, target)
    back = back / np.linalg.norm(back)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], axis=1)


def _assets() -> Path:
    found = find_spec("robosuite")  # its models are files; importing the package would take seconds
    if found is None or not found.submodule_search_locations:
        raise DependencyError("robosuite is not installed; install cosmos-robot[libero]")
    return Path(found.submodule_search_locations[0]) / "models" / "assets"


def _part(path: str):
    """One of robosuite's models, in radians and with the paths of its files made absolute."""
    mujoco = open_mujoco()
    file = _assets() / path
    spec = mujoco.MjSpec.from_file(str(file))
    spec.compiler.degree = False
    for asset in [*spec.meshes, *spec.textures]:
        if asset.file:
            asset.file = str(file.parent / asset.file)
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    return spec


def _arm():
    arm, gripper = _part("robots/panda/robot.xml"), _part("grippers/robotiq_gripper_85.xml")
    # The file names two meshes alike, of which the second is not in the package; the first serves for both.
    missing = next(mesh for mesh in gripper.meshes if not Path(mesh.file).is_file())
    gripper.delete(missing)
    for tendon in list(gripper.tendons):
        gripper.delete(tendon)
    for geom in [*arm.geoms, *gripper.geoms]:
        # The robot meets things and the table, not itself: neighbouring parts of the linkage overlap.
        if geom.contype:
            geom.contype, geom.conaffinity, geom.group = 2, 1, 3
        if geom.name.removeprefix("left_").removeprefix("right_") in ("fingertip_collision", "fingerpad_collision"):
            geom.friction, geom.condim = [1.5, 0.02, 0.0005], 4
    for body in [*arm.bodies, *gripper.bodies]:
        body.gravcomp = 1.0
    # With joint 7 at 0 the fingers of DROID's gripper open along y of the base: 45 degrees from robosuite's hand.
    quarter = [np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)]
    mount = arm.body("right_hand").add_frame(quat=quarter)
    arm.attach(gripper, frame=mount, prefix="gripper_")
    for camera in list(arm.cameras):
        arm.delete(camera)
    axes = look_at(_WRIST_AT, _WRIST_TO, (1, 0, 0))
    _camera(arm.body("gripper_robotiq_85_adapter_link"), "wrist_image_left", _WRIST_AT, axes, _WRIST_FOVY)
    return arm


def _camera(body, name: str, place: Sequence[float], axes: NDArray[np.float64], fovy: float) -> None:
    mujoco = open_mujoco()
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, axes.reshape(-1))
    body.add_camera(name=name, pos=place, quat=quat, fovy=fovy)


def _servos(spec) -> None:
    """Position servos on the seven joints and on the gripper's motor, and the linkage that keeps its pads parallel."""
    mujoco = open_mujoco()
    for joint, stiffness, torque in zip(ARM_JOINTS, _STIFFNESS, _TORQUE, strict=True):
        _servo(spec, joint, stiffness, _DAMPING_SECONDS * stiffness, torque)
        spec.joint(joint).armature = 0.1
    _servo(spec, FINGER_JOINTS[0], 60.0, 3.0, _GRIP_TORQUE)
    followers = {"right_outer_knuckle": 1, "left_inner_knuckle": 1, "right_inner_knuckle": 1}
    followers |= {"left_inner_finger": -1, "right_inner_finger": -1}
    for name in ("finger", *followers):
        joint = spec.joint(f"gripper_{name}_joint")
        joint.armature, joint.damping = 0.002, 0.02
    for name, ratio in followers.items():
        link = spec.add_equality(
            type=mujoco.mjtEq.mjEQ_JOINT,
            objtype=mujoco.mjtObj.mjOBJ_JOINT,
            name1=f"gripper_{name}_joint",
            name2=FINGER_JOINTS[0],
            solref=[0.004, 1.0],
        )
        link.data = [0, ratio, *[0] * (len(link.data) - 2)]


def _servo(spec, joint: str, stiffness: float, damping: float, torque: float) -> None:
    mujoco = open_mujoco()
    servo = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(stiffness, damping)
    servo.forcelimited, servo.forcerange = True, [-torque, torque]


def _surroundings(spec) -> None:
    mujoco = open_mujoco()
    spec.option.timestep = 1 / (RATE_HZ * SUBSTEPS)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone, spec.option.impratio = mujoco.mjtCone.mjCONE_ELLIPTIC, 10
    spec.visual.map.znear = 0.01
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.35] * 3
    spec.stat.extent, spec.stat.center = 1.5, [0.4, 0, 0.2]
    _texture(spec, "wood", _WOOD)
    spec.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.78, 0.8], rgb2=[0.45, 0.47, 0.5], width=64, height=64,
    )  # fmt: skip
    world = spec.worldbody
    _box(world, (0.55, 0.75, 0.02), pos=(0.35, 0, -0.02), name="table", material="wood", friction=[0.8, 0.01, 0.0005])
    _box(world, (3, 3, 0.01), pos=(0, 0, -0.8), name="floor", rgba=[0.35, 0.35, 0.37, 1])
    # Shadows would more than double the time of a picture.
    world.add_light(
        pos=[0.4, 0.3, 1.8], dir=[0.1, -0.25, -1], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, diffuse=[0.5] * 3,
        castshadow=False,
    )  # fmt: skip
    for name, (place, target, fovy) in CAMERAS.items():
        _camera(world, name, place, look_at(place, target, (0, 0, 1)), fovy)


def _texture(spec, name: str, path: str) -> None:
    mujoco = open_mujoco()
    spec.add_texture(name=name, type=mujoco.mjtTexture.mjTEXTURE_CUBE, file=str(_assets() / path))
    material = spec.add_material(name=name)
    textures = list(material.textures)
    textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
    material.textures = textures


def _box(body, half: Sequence[float], **facts) -> None:
    """A box of these half sizes that things and the robot can touch."""
    mujoco = open_mujoco()
    body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=half, contype=1, conaffinity=3, group=1, **facts)


def _block(spec, colour: str) -> None:
    body = spec.worldbody.add_body(name=block_name(colour), pos=(0.5, 0, BLOCK_HALF))
    body.add_freejoint(name=block_name(colour))
    _box(
        body, (BLOCK_HALF,) * 3, name=block_name(colour), rgba=BLOCKS[colour], mass=0.06, condim=4,
        friction=[1.0, 0.01, 0.0005],
    )  # fmt: skip


def _tray(spec) -> None:
    body = spec.worldbody.add_body(name="tray", pos=(0.5, 0, 0))
    body.add_freejoint(name="tray")
    looks = {"rgba": [0.85, 0.8, 0.65, 1]}
    _box(body, (TRAY_HALF, TRAY_HALF, 0.004), pos=(0, 0, 0.004), mass=0.6, **looks)
    side, middle = TRAY_HALF, TRAY_WALL / 2
    for x, y in ((side, 0), (-side, 0), (0, side), (0, -side)):
        half = (0.004, side, middle) if x else (side, 0.004, middle)
        _box(body, half, pos=(x, y, middle), mass=0.05, **looks)


def _mark(spec) -> None:
    """A yellow disc painted on the table; nothing touches it."""
    mujoco = open_mujoco()
    body = spec.worldbody.add_body(name="mark", pos=(0.5, 0, 0), mocap=True)
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=(MARK_RADIUS, 0.0005, 0), rgba=[0.95, 0.8, 0.1, 1],
        contype=0, conaffinity=0, group=1,
    )  # fmt: skip


def _cabinet(spec) -> None:
    """A cabinet with one drawer that opens towards the robot. Its origin is the middle of its front on the table."""
    mujoco = open_mujoco()
    body = spec.worldbody.add_body(name="cabinet", pos=(0.62, 0, 0), mocap=True)
    depth, width, height, board = 0.11, 0.13, 0.06, 0.006
    looks = {"material": "wood"}
    _box(body, (depth, width, board), pos=(depth, 0, board), **looks)
    _box(body, (depth, width, board), pos=(depth, 0, 2 * height + board), **looks)
    for side in (-1, 1):
        _box(body, (depth, board, height), pos=(depth, side * (width - board), height), **looks)
    _box(body, (board, width, height), pos=(2 * depth - board, 0, height), **looks)
    drawer = body.add_body(name="drawer")
    drawer.add_joint(
        name="drawer", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=(-1, 0, 0), range=(0, DRAWER_TRAVEL), limited=True,
        damping=2.0, frictionloss=0.5, armature=0.05,
    )  # fmt: skip
    spec.add_exclude(bodyname1="cabinet", bodyname2="drawer")
    inner, low, tall = width - 0.018, 0.018, 0.042
    paint = {"rgba": [0.55, 0.35, 0.2, 1], "mass": 0.1}
    _box(drawer, (0.006, inner, tall), pos=(-0.002, 0, low + tall), **paint)
    _box(drawer, (0.09, inner, 0.004), pos=(0.096, 0, low + 0.004), **paint)
    for side in (-1, 1):
        _box(drawer, (0.09, 0.004, tall / 2), pos=(0.096, side * (inner - 0.004), low + tall / 2), **paint)
    metal = {"rgba": [0.15, 0.15, 0.17, 1], "mass": 0.05}
    x, _, z = HANDLE
    _box(drawer, (0.006, 0.05, 0.006), pos=HANDLE, name="handle", friction=[1.0, 0.01, 0.0005], **metal)
    for side in (-1, 1):
        _box(drawer, (abs(x) / 2, 0.005, 0.005), pos=(x / 2, side * 0.045, z), **metal)
