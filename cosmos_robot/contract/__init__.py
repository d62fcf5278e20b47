"""The contract: everything about one robot and one checkpoint that two ends could disagree about, as data.

``RobotSpec`` is what an environment or a robot reports about itself. ``ModelSpec`` is what a checkpoint was trained
for. A ``Contract`` holds both, is saved as ``contract.json`` beside the weights, and nothing is served, evaluated or
trained without it.
"""

from __future__ import annotations

from cosmos_robot.contract.base import plain
from cosmos_robot.contract.compare import Difference, Verdict, compatible, differences, require_fit
from cosmos_robot.contract.document import CONTRACT_FILE, CONTRACT_VERSION, Contract, read_contract
from cosmos_robot.contract.library import contract_names, load_contract, load_robot, robot_names
from cosmos_robot.contract.model import (
    WHOLE_CANVAS,
    Backbone,
    Box,
    CanvasSpec,
    CanvasTier,
    Mode,
    ModelSpec,
    Placement,
    PromptSpec,
    ResizeRule,
    SamplerSpec,
    Size,
    Viewpoint,
)
from cosmos_robot.contract.numbers import (
    NEEDED_STATISTICS,
    ModelSpace,
    Normalization,
    NormalizationMethod,
    Statistics,
)
from cosmos_robot.contract.robot import (
    ROTATION_WIDTHS,
    CameraSpec,
    FieldKind,
    FieldSpec,
    GripperSpec,
    Orientation,
    RobotSpec,
    RotationFormat,
)
from cosmos_robot.contract.words import Told, describe, diff, say

__all__ = [
    "CONTRACT_FILE",
    "CONTRACT_VERSION",
    "NEEDED_STATISTICS",
    "ROTATION_WIDTHS",
    "WHOLE_CANVAS",
    "Backbone",
    "Box",
    "CameraSpec",
    "CanvasSpec",
    "CanvasTier",
    "Contract",
    "Difference",
    "FieldKind",
    "FieldSpec",
    "GripperSpec",
    "Mode",
    "ModelSpace",
    "ModelSpec",
    "Normalization",
    "NormalizationMethod",
    "Orientation",
    "Placement",
    "PromptSpec",
    "ResizeRule",
    "RobotSpec",
    "RotationFormat",
    "SamplerSpec",
    "Size",
    "Statistics",
    "Told",
    "Verdict",
    "Viewpoint",
    "compatible",
    "contract_names",
    "describe",
    "diff",
    "differences",
    "load_contract",
    "load_robot",
    "plain",
    "read_contract",
    "require_fit",
    "robot_names",
    "say",
]
