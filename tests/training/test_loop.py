import json
import signal

import pytest
import torch

from cosmos_robot.errors import CheckpointError, Interrupted, TrainingError
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.optimise import Average, WorkingCopy, adamw, learning_rate, step
from cosmos_robot.training.session import Budget, RunFolder

PACE = Pace(save_seconds=1e9, validate_seconds=1e9, validate_steps=10, progress=False)
CYCLES = [Cycle("first", Budget(None, 25), 0.1, 5, 0.0), Cycle("second", Budget(None, 15), 0.05, 0, 0.5)]


class Counter:
    """Learns the sum of what it was shown; ``at`` runs a hook inside one step."""

    def __init__(self, at: int | None = None, hook=lambda: None):
        self.total, self.rates, self.at, self.hook = 0.0, [], at, hook

    def train_step(self, cycle: int, step: int, rate: float):
        if step == self.at:
            self.hook()
        self.total += (step + 1) * rate
        self.rates.append(rate)
        return {"loss": float(step)}

    def validate(self):
        return {"score": self.total}

    def state(self):
        return {"total": self.total}

    def load(self, state):
        self.total = state["total"]


def folder(path, config=None) -> RunFolder:
    return RunFolder(path, config or {"lr": 1, "threads": 2}, ("threads",))


def test_runs_every_cycle_and_logs(tmp_path):
    learner = Counter()
    run(learner, folder(tmp_path), CYCLES, PACE)
    assert len(learner.rates) == 40
    assert learner.rates[0] == pytest.approx(0.1 / 5) and max(learner.rates[:25]) < 0.1
    assert learner.rates[25] == 0.05 and learner.rates[-1] < 0.03
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "validation"] == [10, 20, 25, 30, 40]
    means = {r["step"]: r["loss"] for r in records if r["kind"] == "train"}
    assert means[20] == pytest.approx(9.5) and means[25] == pytest.approx(22)


def test_a_finished_run_is_not_repeated(tmp_path):
    run(Counter(), folder(tmp_path), CYCLES, PACE)
    again = Counter()
    run(again, folder(tmp_path), CYCLES, PACE)
    assert not again.rates


@pytest.mark.parametrize("at", [7, 24, 33])
def test_ctrl_c_saves_and_the_resumed_run_equals_an_uninterrupted_one(tmp_path, at):
    whole = Counter()
    run(whole, folder(tmp_path / "whole"), CYCLES, PACE)
    with pytest.raises(Interrupted, match=f"stopped at step {at + 1}"):
        run(Counter(at, lambda: signal.raise_signal(signal.SIGINT)), folder(tmp_path / "cut"), CYCLES, PACE)
    resumed = Counter()
    run(resumed, folder(tmp_path / "cut"), CYCLES, PACE)
    assert resumed.total == whole.total and len(resumed.rates) == 40 - at - 1
    scores = [
        [r["score"] for r in folder(tmp_path / name).read_log() if r["kind"] == "validation"]
        for name in ("whole", "cut")
    ]
    assert scores[0] == scores[1]


def test_a_killed_run_goes_on_from_its_last_save(tmp_path):
    class Killed(BaseException):
        pass

    def kill():
        raise Killed

    often = Pace(save_seconds=0, validate_seconds=1e9, validate_steps=10, progress=False)
    with pytest.raises(Killed):
        run(Counter(30, kill), folder(tmp_path), CYCLES, often)
    resumed, whole = Counter(), Counter()
    run(resumed, folder(tmp_path), CYCLES, often)
    run(whole, folder(tmp_path / "whole"), CYCLES, often)
    assert resumed.total == whole.total and len(resumed.rates) == 10
    steps = [r["step"] for r in folder(tmp_path).read_log() if r["kind"] == "validation"]
    assert steps == [10, 20, 25, 30, 40]


def test_another_config_is_refused(tmp_path):
    folder(tmp_path)
    folder(tmp_path, {"lr": 1, "threads": 4})
    with pytest.raises(CheckpointError, match="lr differ"):
        folder(tmp_path, {"lr": 2, "threads": 2})


def test_a_log_line_cut_short_does_not_prevent_resuming(tmp_path):
    run(Counter(), folder(tmp_path), CYCLES, PACE)
    whole = folder(tmp_path).read_log()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 4')
    assert folder(tmp_path).read_log() == whole
    run(Counter(), folder(tmp_path), CYCLES, PACE)


def test_a_damaged_state_is_named(tmp_path):
    run(Counter(), folder(tmp_path), CYCLES, PACE)
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="is damaged"):
        run(Counter(), folder(tmp_path), CYCLES, PACE)


def test_minutes_bound_a_cycle():
    budget = Budget(0.5, None)
    assert budget.progress(15, 999) == 0.5 and budget.progress(30, 0) == 1


def test_learning_rate_cycle():
    rates = [learning_rate(1.0, 0.1, 10, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1, rel=0.01) and max(rates) == rates[9 if rates[9] > rates[10] else 10]
    assert rates[-1] == pytest.approx(0.1) and rates[50] == pytest.approx(0.55)


def test_working_copy_trains_the_original():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    work = WorkingCopy(module, torch.bfloat16, keep=("1",))
    module[0].weight.data.fill_(1 / 3)
    work.refresh()
    assert work.module[0].weight.dtype == torch.bfloat16 and work.module[1].weight.dtype == torch.float32
    assert (work.module[0].weight.float() - 1 / 3).abs().max() < 2e-3
    work.module[0](torch.ones(2, 3).bfloat16()).sum().backward()
    work.hand_over()
    torch.testing.assert_close(module[0].weight.grad, torch.full((4, 3), 2.0))
    assert module[1].weight.grad is None
    module.requires_grad_(False)
    module[0].bfloat16()
    frozen = WorkingCopy(module, torch.bfloat16, keep=("1",))
    assert frozen.module[0].weight is module[0].weight, "what is never trained is there once"
    assert frozen.module[1].weight is not module[1].weight and torch.equal(frozen.module[1].weight, module[1].weight)
    module.float().requires_grad_(True)
    same = WorkingCopy(module, torch.float32)
    assert same.module is module


def test_average_follows_weights():
    module = torch.nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(0.0)
    average = Average(module, 0.5)
    module.weight.data.fill_(1.0)
    average.update()  # decay 1/10
    assert average.module.weight.item() == pytest.approx(0.9)
    for _ in range(20):
        average.update()
    assert average.module.weight.item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("loss", "gradient", "said"),
    [
        (float("nan"), float("nan"), "training step 7: the loss b is not finite, the gradient's norm is nan; mode wam"),
        (1.0, float("inf"), r"training step 7: the gradient \(its losses are finite here\) is not finite"),
        (float("inf"), 1.0, "the loss b is not finite, the gradient's norm is 2"),
    ],
)
def test_numbers_that_are_not_finite_change_nothing(loss, gradient, said):
    module = torch.nn.Linear(2, 2, bias=False)
    optimizer, before = adamw(module.parameters(), 0.1), module.weight.detach().clone()
    module.weight.grad = torch.full((2, 2), gradient)
    with pytest.raises(TrainingError, match=said):
        step(optimizer, 0.1, 1.0, 7, {"a": 1.0, "b": loss}, "mode wam")
    assert torch.equal(module.weight, before) and not optimizer.state
    module.weight.grad = torch.ones(2, 2)
    assert step(optimizer, 0.1, 1.0, 8, {"a": 1.0}) == pytest.approx(2) and not torch.equal(module.weight, before)
