"""What a run is made from: fingerprints of weights on any device, and runs of something else that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.tiny import tiny_vae
from cosmos_robot.errors import CheckpointError
from cosmos_robot.training import latents
from cosmos_robot.training.ingredients import autoencoder_fingerprint, ingredients, module_fingerprint
from cosmos_robot.training.session import RunFolder


class Elsewhere(torch.Tensor):
    """As a tensor of another device: its numbers are not to be had before ``cpu``."""

    def numpy(self, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, **options):
        return self.as_subclass(torch.Tensor)


class MovedModule:
    """A module whose weights are elsewhere."""

    def __init__(self, module):
        self.config, self._module = module.config, module

    def state_dict(self):
        return {name: value.as_subclass(Elsewhere) for name, value in self._module.state_dict().items()}


def test_fingerprints_are_those_of_any_device():
    vae = tiny_vae(0, base_dim=4)
    assert latents.vae_fingerprint(MovedModule(vae)) == latents.vae_fingerprint(vae)
    assert autoencoder_fingerprint(MovedModule(vae)) == autoencoder_fingerprint(vae)


def test_latents_come_from_any_device(monkeypatch):
    vae = tiny_vae(0, base_dim=4)
    expected = latents.black_latents(vae, 32, 32)
    whole = latents.encode_first_frame
    monkeypatch.setattr(latents, "encode_first_frame", lambda *args: whole(*args).as_subclass(Elsewhere))
    np.testing.assert_array_equal(latents.black_latents(vae, 32, 32), expected)


def test_fingerprints_change_with_any_weight():
    vae, half = tiny_vae(0, base_dim=4), torch.nn.Linear(2, 2).bfloat16()
    before, first = module_fingerprint(half), autoencoder_fingerprint(vae)
    with torch.no_grad():
        half.bias[1] += 1
        vae.decoder.conv_out.bias[0] += 1
    assert module_fingerprint(half) != before and autoencoder_fingerprint(vae) != first
    assert first == autoencoder_fingerprint(tiny_vae(0, base_dim=4))


def test_a_run_made_from_something_else_is_refused(tmp_path):
    def folder(data, start):
        made_from = ingredients({"stream 'dots'": data}, {"start weights": start, "autoencoder": "v"})
        return RunFolder(tmp_path, {"lr": 1, **made_from}, ())

    folder(["a", "b"], "s")
    folder(["a", "b"], "s")
    with pytest.raises(CheckpointError, match="whose data of stream 'dots' differ"):
        folder(["b", "a"], "s")
    with pytest.raises(CheckpointError, match="whose start weights differ"):
        folder(["a", "b"], "other")


def test_a_run_that_did_not_note_them_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"lr": 1}))
    with pytest.raises(CheckpointError, match="a run of an older version, which did not note"):
        RunFolder(tmp_path, {"lr": 1, **ingredients({"datasets": ["a"]}, {})}, ())
