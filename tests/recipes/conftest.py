"""A project to fine-tune from, and stages whose trainings are faked."""

from __future__ import annotations

from pathlib import Path

import pytest
from finetuning import EXAMPLE, Fakes, circling, smaller

from cosmos_robot.data.store import write_dataset
from cosmos_robot.envs.pusht import PUSHT


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A description and three episodes beside it."""
    folder = tmp_path_factory.mktemp("project")
    write_dataset([circling(phase) for phase in (0.0, 1.0, 2.0)], folder / "demos", PUSHT, stride=1)
    (folder / "pusht.toml").write_text(smaller(EXAMPLE.read_text()))
    return folder


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    from cosmos_robot.recipes.finetune import learn
    from cosmos_robot.recipes.finetune import plan as planning

    found = Fakes()
    monkeypatch.setattr(learn, "train_on", found.train_on)
    monkeypatch.setattr(learn, "predicted", found.predicted)
    monkeypatch.setattr(learn, "adapt_tokenizer", found.adapted)
    monkeypatch.setattr(learn, "load_policy", lambda folder: None)
    monkeypatch.setattr(learn, "replay_lines", lambda *about: [])
    monkeypatch.setattr(planning, "_probed", lambda *about: 1.5)
    return found
