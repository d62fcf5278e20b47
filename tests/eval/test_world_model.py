"""World-model evaluation over worlds that know the physics of a dot, or get one thing wrong on purpose."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from cosmos_robot.errors import ContractError, CosmosRobotError, InputError
from cosmos_robot.eval import world_model_verdicts as verdicts
from cosmos_robot.eval.exploration import NoisyPolicy
from cosmos_robot.eval.world_model import summary
from cosmos_robot.eval.world_model_case import Models, joined, roll
from cosmos_robot.eval.world_model_faults import faults
from cosmos_robot.eval.world_model_log import WindowLog
from cosmos_robot.eval.world_model_measure import MeasureSettings
from cosmos_robot.eval.world_model_ranking import (
    Start,
    rank,
    rank_agreement,
    ranked_policy,
    require_rankable,
    run_both,
)
from cosmos_robot.eval.world_model_report import print_result, write_report
from cosmos_robot.eval.world_model_session import SessionSettings, episode_records, measure_all
from cosmos_robot.eval.world_model_windows import windows_of
from cosmos_robot.policies.conformance_video import run_world
from cosmos_robot.policies.fakes import RandomPolicy, StillInverse, StillWorld, ZeroPolicy
from cosmos_robot.types import ActionChunk

SETTINGS = SessionSettings(MeasureSettings(outcomes=True), windows=4, probed=4)


@pytest.fixture(scope="module")
def source(dots):
    return dots.DotSource(5)


def records_of(world, source, settings=SETTINGS, **others):
    models = Models(world, **others)
    return [r for number in range(source.episodes) for r in episode_records(models, source, settings, number)]


@pytest.fixture(scope="module")
def true_records(dots, source):
    return records_of(dots.Oracle(), source)


def found(records) -> set[str]:
    return {fault.name for fault in faults(records) if fault.found}


def test_the_oracles_are_world_models(dots) -> None:
    run_world(dots.Oracle)


def test_true_physics_follow_and_have_no_fault(true_records) -> None:
    verdict = verdicts.following(true_records)
    assert verdict.follows, verdict.sentence
    assert verdict.all_kinds.low < verdict.all_kinds.rate == 1, "it wins on every window that counts"
    assert verdict.all_kinds.windows >= 10 and verdict.all_kinds.episodes == 5
    assert found(true_records) == set()
    assert all(fault.found is False for fault in faults(true_records))
    scores = verdicts.overall(true_records)
    assert scores["model"]["moving_psnr"] == 60 > scores["mean"]["moving_psnr"] > scores["last"]["moving_psnr"]
    beaten = verdicts.better_than(true_records, "last")
    assert beaten.rate == 1


def test_the_state_follows_too(true_records) -> None:
    assert verdicts.following(true_records, "state").follows
    states = verdicts.states(true_records)
    assert states["error"]["true"] == pytest.approx(0, abs=1e-6)
    assert states["error"]["zero"] > 0.05
    assert states["fields"]["position"]["model"] < states["fields"]["position"]["last"]


def test_predictions_are_nearest_to_their_own_outcome(true_records) -> None:
    pairs = verdicts.pairing(true_records)
    assert pairs["repeats_db"] == 60, "the simulator repeats itself"
    assert pairs["chance"] == pytest.approx(1 / 6)
    assert all(rate["rate"] == 1 for rate in pairs["nearest_to_own_outcome"].values())


def test_a_model_told_unnormalised_commands(dots, source) -> None:
    records = records_of(dots.Unnormalised(), source)
    assert not verdicts.following(records).follows
    assert "commands arrive at another scale" in found(records)
    assert not {"a future frame leaks in", "cameras are exchanged"} & found(records)


def test_a_model_with_exchanged_cameras(dots, source) -> None:
    records = records_of(dots.Exchanged(), source)
    assert {"cameras are exchanged", "predicted cameras are exchanged"} <= found(records)
    assert "commands arrive at another scale" not in found(records)


def test_a_model_that_is_shown_the_future(dots, source) -> None:
    records = records_of(dots.Leaking(source), source)
    assert verdicts.overall(records)["model"]["psnr"] == 60, "too good"
    assert {"a future frame leaks in", "ignores the commands"} <= found(records)
    assert verdicts.following(records).follows is False, "ties count against"


def test_a_model_that_ignores_commands(dots, source) -> None:
    records = records_of(dots.Deaf(), source)
    verdict = verdicts.following(records)
    assert verdict.follows is False and verdict.all_kinds.successes == 0
    assert "ignores the commands" in found(records) and "a future frame leaks in" not in found(records)
    assert verdicts.following(records, "state").follows is False


def test_a_model_that_repeats_the_last_frame(dots, source) -> None:
    records = records_of(StillWorld(dots.dot_contract()), source)
    assert {"repeats the last frame", "ignores the commands"} == found(records)
    scores = verdicts.overall(records)
    assert scores["model"] == scores["last"]
    assert verdicts.better_than(records, "last").successes == 0
    nothing = verdicts.following(records, "state")
    assert nothing.follows is None and "at least 10" in nothing.sentence
    assert verdicts.states(records) is None


def test_pc_75_a_model_that_ignores_or_misscales_commands_is_called_so(dots) -> None:
    """On 20 windows from the same frames: the true commands win on motion and gripper, or the report says otherwise."""
    source, settings = dots.DotSource(5), SessionSettings(windows=4, probed=0)
    true = records_of(dots.Oracle(), source, settings)
    assert len(true) == 20
    assert verdicts.following(true).follows and verdicts.gripper(true).follows
    assert verdicts.following(true).margin_db > 1
    for world in (dots.Unnormalised(), StillWorld(dots.dot_contract())):
        records = records_of(world, source, settings)
        assert verdicts.following(records).follows is False
        content = summary({}, records, None, {})
        assert content["verdict"]["sentence"].startswith("not action-following")
    limp = records_of(dots.Limp(), source, settings)
    assert verdicts.gripper(limp).follows is False, "a gripper that never closes"
    assert "does not follow gripper" in verdicts.gripper(limp).sentence


def test_few_windows_say_nothing(true_records) -> None:
    few = verdicts.following(true_records[:4])
    assert few.follows is None and "cannot be said" in few.sentence


def test_ties_count_against(true_records) -> None:
    tied = [dict(r, error=r["error"] | {"zero": r["error"]["true"]}) for r in true_records]
    assert verdicts.following(tied).wins["zero"].successes == 0
    assert verdicts.following(tied).follows is False


def test_windows_without_motion_are_left_out(dots, source) -> None:
    records = records_of(dots.Oracle(), source, SessionSettings(windows=2, probed=0))
    still = [dict(r, error=dict.fromkeys(r["error"])) for r in records]
    assert verdicts.following(still).left_out == {"next to nothing moved": len(records)}


def test_rollouts_of_several_chunks(dots, source) -> None:
    settings = SessionSettings(MeasureSettings(chunks=3), windows=2, probed=0)
    records = records_of(dots.Oracle(), source, settings)
    assert [f["step"] for f in records[0]["frames"] if f["camera"] == "table"] == [4, 8, 12, 16, 20, 24]
    assert verdicts.overall(records)["model"]["psnr"] == 60
    world, run = dots.Oracle(), source.run(0, dots.dot_contract())
    window = windows_of(run, world.contract, 3, 1)[0]
    assert np.array_equal(joined(roll(world, window, 0, "pixels")), window.truth(world.contract))
    assert windows_of(run, world.contract, 6, 4) == [], "an episode of 40 steps holds no 48"


def test_inverse_models_and_values(dots, source) -> None:
    contract = dots.dot_contract()
    records = records_of(
        dots.Oracle(), source, SessionSettings(probed=0), inverse=StillInverse(contract), value=dots.Nearness()
    )
    recovered = verdicts.recovered(records)
    assert recovered["model"]["rmse"] == recovered["truth"]["rmse"] == recovered["last"]["rmse"] > 0
    assert recovered["model"]["correlation"] is None, "one that sees no motion orders nothing"
    ended = [dict(r, success=bool(r["value"] > 0.6)) for r in records]
    assert verdicts.values(ended)["auroc"] == 1
    assert verdicts.values(records)["base_rate"] == 0, "no episode of this source ends in success"
    assert [r["value_steps_left"] for r in records[:4]] == [40 - r["start"] - 8 for r in records[:4]]


def test_a_killed_run_goes_on(dots, source, tmp_path) -> None:
    """Only what is not in the log is measured again; another run's log is refused."""
    path, header = tmp_path / "out.windows.jsonl", {"checkpoint": "dots", "seed": 0}
    settings, console = SessionSettings(windows=2, probed=0), Console(quiet=True)
    made = []

    class Counting:
        def names(self):
            return source.names()

        def run(self, number, contract):
            made.append(number)
            if len(made) == 3:
                raise KeyboardInterrupt
            return source.run(number, contract)

        def close(self):
            pass

    log = WindowLog(path, header)
    with pytest.raises(Exception, match="2 of 5 episodes are saved"):
        measure_all(lambda: Models(dots.Oracle()), Counting(), settings, log, console)
    log.close()
    with path.open("a") as file:
        file.write('{"key": "cut sh')
    again = WindowLog(path, header)
    records = measure_all(lambda: Models(dots.Oracle()), Counting(), settings, again, console)
    again.close()
    assert made == [0, 1, 2, 2, 3, 4] and [r["run"] for r in records] == [n for n in source.names() for _ in range(2)]
    whole = WindowLog(tmp_path / "whole.windows.jsonl", header)
    assert measure_all(lambda: Models(dots.Oracle()), source, settings, whole, console) == records
    whole.close()
    with pytest.raises(InputError, match="seed: 0 then, 1 now"):
        WindowLog(path, header | {"seed": 1})
    other = tmp_path / "notes.windows.jsonl"
    other.write_text("mine")
    with pytest.raises(InputError, match="no world-model log"):
        WindowLog(other, header, fresh=True)
    assert other.read_text() == "mine"


def test_the_report_shows_it_all(dots, source, tmp_path) -> None:
    films = tmp_path / "films"
    settings = SessionSettings(MeasureSettings(outcomes=True), windows=4, probed=1, filmed=1, films=films)
    records = records_of(dots.Oracle(), source, settings, value=dots.Nearness())
    ranking = {"agreement": {"spearman": None}, "policies": {}}
    content = summary({"checkpoint": "dots", "source": "dot"}, records, ranking, {"lpips": "no package"})
    json.dumps(content, allow_nan=False)
    page = write_report(tmp_path / "report.html", content, films).read_text()
    for part in ("data:video/mp4;base64,", "data:image/png;base64,", "follows", "no package", 'class="calibration"'):
        assert part in page, part
    assert page.count('<svg class="curves"') == 4, "two cameras, two measures"
    console = Console(record=True, width=200, file=open(tmp_path / "shown", "w"))  # noqa: SIM115
    print_result(content, console)
    assert "the model follows actions" in console.export_text()


def test_ranking_of_policies(dots) -> None:
    contract = dots.dot_contract()
    models, env = Models(dots.Oracle(), value=dots.Nearness()), dots.DotEnv(0, step_budget=40)
    found = run_both(RandomPolicy(contract), env, models, Start("dots/0", 1), steps=20, seed=3)
    assert found["success"] is False
    assert 0 <= found["value"] <= 1
    still = run_both(ZeroPolicy(contract), env, models, Start("dots/0", 1), steps=20, seed=3)
    start = env._hand  # a policy that does nothing leaves the hand where it was
    assert still["value"] == pytest.approx(1 - np.linalg.norm(start - dots.GOAL), abs=1e-6)
    with pytest.raises(ContractError, match="mode 'value'"):
        run_both(ZeroPolicy(contract), env, Models(dots.Oracle()), Start("dots/0", 1), 20, 3)


class Recorded(ZeroPolicy):
    """Moves towards the target and far beyond it, or for another time of a run away from it; keeps its seeds."""

    def __init__(self, contract, signs=(1, -1)):
        super().__init__(contract)
        self.seeds, self.signs = [], signs

    def _act(self, observations, seeds):
        self.seeds += seeds
        sign = self.signs[0] if observations[0].time < 0.5 else self.signs[1]
        way = np.sign(np.array([0.3, 0.3]) - observations[0].state["position"]) * sign
        rows = np.tile([*way, -1.0], (self.contract.model.chunk, 1))
        return [ActionChunk(rows, self.contract.robot.rate_hz, o.time) for o in observations]


def test_a_policy_is_worth_its_best_moment(dots) -> None:
    """The simulator stops at a success, so what comes after it must not count in the model either."""
    contract = dots.dot_contract()
    models, env = Models(dots.Oracle(), value=dots.Nearness()), dots.DotEnv(0, step_budget=60)
    leaves, start = Recorded(contract), Start("dots/0", 1)
    found = run_both(leaves, env, models, start, steps=60, seed=3)["value"]
    short = run_both(Recorded(contract), env, models, start, steps=4, seed=3)["value"]
    assert found >= short > 0.3, "it is driven away from the target again"
    away = run_both(Recorded(contract, (-1, -1)), env, models, start, steps=60, seed=3)["value"]
    assert away < found


def test_each_start_has_noise_of_its_own(dots) -> None:
    contract = dots.dot_contract()
    models, env = Models(dots.Oracle(), value=dots.Nearness()), dots.DotEnv(0, step_budget=60)
    seeds = {}
    for start in (Start("dots/0", 1), Start("dots/0", 2), Start("dots/1", 1)):
        policy = Recorded(contract)
        run_both(policy, env, models, start, steps=20, seed=3)
        seeds[start] = policy.seeds
    drawn = [set(found) for found in seeds.values()]
    assert not drawn[0] & drawn[1] and not drawn[0] & drawn[2]
    again = Recorded(contract)
    run_both(again, env, models, Start("dots/0", 1), steps=20, seed=3)
    assert again.seeds == seeds[Start("dots/0", 1)]


def test_starts_are_ranked_task_by_task() -> None:
    asked = []

    def score(name, start):
        asked.append((name, start))
        return {"success": name != "a", "value": {"a": 0.1, "b": 0.5, "c": 0.7}[name] + 0.01 * start.init}

    starts = [Start(task, init) for task in ("x/0", "x/1") for init in (0, 1)]
    found = rank(["a", "b", "c"], score, starts)
    assert found["tasks"] == ["x/0", "x/1"] and found["agreement"]["starts"] == 4
    assert [start.task for _, start in asked] == ["x/0"] * 6 + ["x/1"] * 6, "each environment is made once"
    assert found["policies"]["b"] == {"success_rate": 1.0, "mean_value": pytest.approx(0.505)}


def test_what_cannot_be_ranked_is_refused_first(dots) -> None:
    valued = dots.dot_contract(modes=["forward_dynamics", "value"])
    cases = {
        "stands twice": ("zero", "random", "random~0.30", "random~0.3"),
        "at least 3 policies": ("zero", "random"),
        "unknown checkpoint 'nobody'": ("zero", "random", "nobody"),
        "such as zero~0": ("zero", "random", "zero~much"),
        "from 0 to 1": ("zero", "random", "zero~3"),
        "does not fit": ("zero", "random", "tiny-libero"),
    }
    for message, names in cases.items():
        with pytest.raises(CosmosRobotError, match=message):
            require_rankable(names, valued)
    require_rankable(("zero", "random", "random~0.3"), valued)
    with pytest.raises(ContractError, match="mode 'value'"):
        require_rankable(("zero", "random", "random~0.3"), dots.dot_contract())
    with pytest.raises(ContractError, match="does not fit"):
        ranked_policy("tiny-libero", valued)


def test_rank_agreement() -> None:
    rng = np.random.default_rng(0)
    good = np.array([0.1, 0.3, 0.5, 0.9])
    simulated = (rng.random((4, 60)) < good[:, None]).astype(float)
    same = rank_agreement(simulated, good[:, None] + 0.01 * rng.normal(size=(4, 60)))
    assert same.spearman == pytest.approx(1) and same.low > 0.5 and same.best_agrees
    turned = rank_agreement(simulated, -good[:, None] + 0.01 * rng.normal(size=(4, 60)))
    assert turned.spearman == pytest.approx(-1) and not turned.best_agrees
    nothing = rank_agreement(np.zeros((4, 5)), rng.random((4, 5)))
    assert nothing.spearman is None and nothing.low is None and nothing.undefined == 1
    with pytest.raises(InputError, match="at least 3 policies"):
        rank_agreement(simulated[:2], simulated[:2])


def test_policies_to_rank_by_name(dots) -> None:
    contract = dots.dot_contract()
    assert isinstance(ranked_policy("zero", contract), ZeroPolicy)
    assert isinstance(ranked_policy("random~0.5", contract), NoisyPolicy)
    with pytest.raises(InputError, match="such as zero~0"):
        ranked_policy("zero~much", contract)
