"""Pictures of a MuJoCo model without a screen, whichever way ``mujoco`` was first imported.

MuJoCo's own renderer takes the OpenGL library that the environment named when the module was first imported, which may
have been somebody else's doing.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from importlib import import_module

import mujoco
import numpy as np

from cosmos_robot.envs.libero import GL_REMEDY
from cosmos_robot.errors import RenderError
from cosmos_robot.types import Image


class MujocoPictures:
    """Draws geoms of the given groups. All pictures have one size. Raises RenderError where OpenGL does not start.

    The library is the one that MUJOCO_GL names, "egl" or "osmesa"; EGL if it is not set.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, groups: tuple[int, ...]):
        self._model, self._shape = model, (height, width, 3)
        library = os.environ.get("MUJOCO_GL") or "egl"
        try:
            self._gl = import_module(f"mujoco.{library}").GLContext(width, height)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        except (AttributeError, RuntimeError, OSError, ImportError, mujoco.FatalError) as error:
            raise RenderError(f"the renderer could not start ({library}): {error}; {GL_REMEDY}") from error
        # Also when the interpreter ends: later, the OpenGL library is gone and says so.
        self._free = weakref.finalize(self, _free, self._context, self._gl)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=2 * model.ngeom + 100)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[:], self._options.sitegroup[:] = 0, 0
        self._options.geomgroup[list(groups)] = 1
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def draw(self, data: mujoco.MjData, camera: str) -> Image:
        """What ``camera`` sees, upright (H, W, 3)."""
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(self._area, self._scene, self._context)
        rows = np.empty(self._shape, np.uint8)
        mujoco.mjr_readPixels(rows, None, self._area, self._context)
        return np.ascontiguousarray(rows[::-1])

    def close(self) -> None:
        """Free the context; calling it again does nothing."""
        self._free()


def _free(context: mujoco.MjrContext, gl) -> None:
    # Some drivers complain about a context that is freed; there is nothing left to lose.
    with contextlib.suppress(Exception):
        context.free()
        gl.free()
