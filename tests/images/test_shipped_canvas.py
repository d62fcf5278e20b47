"""The pictures that the shipped checkpoints were trained on stay what they were, bit for bit."""

from __future__ import annotations

import hashlib
from importlib.resources import as_file, files

import numpy as np
import pytest

from cosmos_robot.contract import Contract
from cosmos_robot.images import compose_canvas, place_on_canvas

SHA256 = {
    "tiny-libero": "bb7a07057f55aca501c8c9b6e469bbdec6eca7df513354e5f1b5b2a5d96c39d4",
}


@pytest.mark.parametrize("name", SHA256)
def test_canvas_of_a_shipped_checkpoint(name: str) -> None:
    with as_file(files("cosmos_robot") / "assets" / name) as folder:
        contract = Contract.load(folder)
    random = np.random.RandomState(7)
    images = {c.name: random.randint(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in contract.robot.cameras}
    canvas = compose_canvas(contract, images)
    assert canvas.dtype == np.uint8 and canvas.shape == (contract.model.canvas.height, contract.model.canvas.width, 3)
    np.testing.assert_array_equal(canvas, place_on_canvas(contract.model.canvas, images))
    assert hashlib.sha256(canvas.tobytes()).hexdigest() == SHA256[name]
