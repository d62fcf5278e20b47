"""The runner with real worker processes: outcomes, order, deaths, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.contract import CameraSpec
from cosmos_robot.errors import ContractError, InputError, UnknownNameError, WorkerError
from cosmos_robot.eval import runner
from cosmos_robot.eval.protocol import Job, derive_seed
from cosmos_robot.eval.runner import Filming, JobQueue, Listener, Runner, RunSettings
from cosmos_robot.types import ActionChunk


class Ear(Listener):
    def __init__(self):
        self.started, self.records, self.errors, self.decisions = [], [], [], []

    def on_start(self, job):
        self.started.append(job)

    def on_decision(self, job, step, observation, chunk, seed):
        self.decisions.append((job, step, seed))

    def on_episode(self, job, record):
        self.records.append(record)

    def on_error(self, job, error):
        self.errors.append(error)


def outcomes(records) -> dict:
    return {r.key: (r.success, r.ended, r.steps, r.noise_seeds, r.reset_seed, r.instruction) for r in records}


def run(policy, rules, jobs=None, **settings):
    ear = Ear()
    errors = Runner(policy, rules, RunSettings(**settings), [ear]).run(jobs or rules.jobs())
    return ear, errors


@pytest.fixture(scope="module")
def reference(fake):
    """Two episodes of each task with one worker."""
    ear, errors = run(fake.SeeingPolicy(), fake.fake_protocol(), workers=1)
    assert not errors
    return ear


def test_a_seeing_policy_succeeds_on_every_episode(reference, fake) -> None:
    records = {r.key: r for r in reference.records}
    assert sorted(records) == [(t, i) for t in range(3) for i in range(2)]
    assert all(r.success and r.ended == "success" for r in records.values())
    assert records[2, 0].steps == 12
    assert records[2, 0].decisions == 3
    assert records[1, 0].instruction == "Touch the far target"


def test_seeds_follow_from_protocol_and_episode(reference) -> None:
    for record in reference.records:
        job = Job("fake", record.task, record.init)
        assert record.reset_seed == derive_seed(0, job, "reset")
        assert record.noise_seeds == tuple(derive_seed(0, job, i) for i in range(record.decisions))
    job = Job("fake", 2, 0)
    steps = [(step, seed) for j, step, seed in reference.decisions if j == job]
    assert steps == [(4 * i, derive_seed(0, job, i)) for i in range(3)]


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_outcomes_do_not_depend_on_the_number_of_workers(reference, fake, one_at_a_time: bool) -> None:
    policy = fake.SeeingPolicy()
    ear, _ = run(policy, fake.fake_protocol(one_at_a_time=one_at_a_time), workers=3)
    assert outcomes(ear.records) == outcomes(reference.records)
    assert len(ear.decisions) == sum(map(len, policy.batches))
    assert not one_at_a_time or {len(batch) for batch in policy.batches} == {1}


def test_all_who_wait_are_answered_in_one_batch(fake) -> None:
    policy = fake.SeeingPolicy(seconds=0.3)
    run(policy, fake.fake_protocol(tasks=(2,), episodes=6), workers=3)
    assert max(map(len, policy.batches)) > 1


def test_a_policy_that_does_nothing_fails_by_budget_counted_in_steps(fake) -> None:
    class Still:
        contract, cameras = fake.CONTRACT, ()

        def act(self, observations, seeds):
            return [ActionChunk(np.array([[0.5, 0, -1]] * 8), 20.0) for _ in observations]

    rules = fake.fake_protocol(tasks=(0,), episodes=1, max_steps=13, settle_steps=3, settle_counts=True)
    ear, _ = run(Still(), rules, workers=1)
    (record,) = ear.records
    assert (record.success, record.ended, record.steps, record.decisions) == (False, "budget", 10, 3)


def test_a_dead_worker_is_replaced_and_its_episode_repeated(tmp_path, fake, reference) -> None:
    variables = fake.FINDABLE | {"DEATHS_FOLDER": str(tmp_path), "DEATHS": "1"}
    rules = fake.fake_protocol()
    ear, errors = run(fake.SeeingPolicy(), rules, workers=2, variables=variables, factory="fake_run:make_doomed")
    assert len(list(tmp_path.iterdir())) == 1
    assert errors == []
    assert outcomes(ear.records) == outcomes(reference.records)
    assert len(ear.started) == len(ear.records) + 1


def test_an_episode_whose_worker_dies_twice_is_reported_not_counted(tmp_path, fake) -> None:
    variables = fake.FINDABLE | {"DEATHS_FOLDER": str(tmp_path), "DEATHS": "2"}
    rules = fake.fake_protocol(tasks=(0,), episodes=3)
    ear, errors = run(fake.SeeingPolicy(), rules, workers=1, variables=variables, factory="fake_run:make_doomed")
    assert [(e.task, e.init) for e in errors] == [(0, 1)]
    assert ear.errors == errors
    assert "exit code 7" in errors[0].message
    assert sorted(r.key for r in ear.records) == [(0, 0), (0, 2)]


def test_a_silent_worker_counts_as_dead(tmp_path, fake) -> None:
    variables = fake.FINDABLE | {"DEATHS_FOLDER": str(tmp_path), "DEATHS": "1", "SILENT": "1"}
    rules = fake.fake_protocol(tasks=(0,), episodes=2)
    settings = {"workers": 1, "variables": variables, "factory": "fake_run:make_doomed", "reply_seconds": 3.0}
    ear, errors = run(fake.SeeingPolicy(), rules, **settings)
    assert errors == []
    assert len(list(tmp_path.iterdir())) == 1
    assert sorted(r.key for r in ear.records) == [(0, 0), (0, 1)]


def test_workers_that_cannot_start_end_the_run(fake, monkeypatch) -> None:
    monkeypatch.setattr(runner, "DEATHS_IN_A_ROW", 3)
    with pytest.raises(WorkerError, match="died in a row"):
        run(fake.SeeingPolicy(), fake.fake_protocol(), workers=2, factory="no_such_module:make")


@pytest.mark.parametrize(
    "change, named",
    [
        ({"rate_hz": 10.0}, "rate_hz: expected 10, got 20"),
        ({"cameras": (CameraSpec(name="table", height=64, width=64), CameraSpec(name="hand", height=24, width=24))},
         "cameras.table: expected 64x64, got 48x64"),
    ],
)  # fmt: skip
def test_a_contract_that_does_not_fit_is_refused_before_anything_runs(fake, change, named: str) -> None:
    policy = fake.SeeingPolicy()
    robot = fake.CONTRACT.robot.model_copy(update=change)
    policy.contract = fake.CONTRACT.model_copy(update={"robot": robot})
    ear = Ear()
    with pytest.raises(ContractError) as caught:
        Runner(policy, fake.fake_protocol(), RunSettings(workers=1), [ear]).run(fake.fake_protocol().jobs())
    assert named in str(caught.value)
    assert not ear.started
    assert not policy.batches


def test_more_init_states_than_there_are_is_refused_before_anything_runs(fake) -> None:
    policy = fake.SeeingPolicy()
    with pytest.raises(InputError, match="fake/0 has 10 init states, numbered from 0; got 11"):
        run(policy, fake.fake_protocol(episodes=12), workers=1)
    assert not policy.batches


def test_an_unknown_environment_ends_the_run(fake) -> None:
    with pytest.raises(UnknownNameError, match="fake/9"):
        run(fake.SeeingPolicy(), fake.fake_protocol(), [Job("fake", 9, 0)], workers=1)


def test_more_rows_than_the_chunk_has_are_refused(fake) -> None:
    with pytest.raises(InputError, match=r"execute=9 .* chunk has 8"):
        Runner(fake.SeeingPolicy(), fake.fake_protocol(execute=9), RunSettings())


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match="workers"):
        RunSettings(workers=0)


def test_films_show_the_cameras_side_by_side(tmp_path, fake) -> None:
    import av

    filming = Filming(tmp_path / "films", ("table", "hand"), every=2)
    ear, _ = run(fake.SeeingPolicy(), fake.fake_protocol(tasks=(2,), episodes=1), workers=1, filming=filming)
    (record,) = ear.records
    assert record.film == "fake_task02_init000.mp4"
    assert [path.name for path in filming.folder.iterdir()] == [record.film]
    with av.open(str(filming.folder / record.film)) as film:
        (stream,) = film.streams
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(stream)]
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert stream.average_rate == 10
    assert len(frames) == 1 + record.steps // 2
    assert frames[0].shape == (48, 88, 3)
    assert abs(frames[0][:, :64].astype(int).mean() - 200) < 20
    assert frames[0][30:, 64:].max() < 40


class TestJobQueue:
    jobs = tuple(Job("s", task, init) for task, inits in ((0, 3), (1, 2), (2, 2)) for init in range(inits))

    def test_a_worker_stays_on_its_task(self) -> None:
        queue = JobQueue(self.jobs)
        assert [queue.take("s/1", ["s/0"]).key for _ in range(2)] == [(1, 0), (1, 1)]

    def test_then_takes_the_largest_task_that_no_other_holds(self) -> None:
        queue = JobQueue(self.jobs)
        assert queue.take("s/9", ["s/0"]).task in (1, 2)
        assert queue.take(None, []).task == 0

    def test_then_helps(self) -> None:
        queue = JobQueue(self.jobs)
        assert queue.take(None, ["s/0", "s/1", "s/2"]).task == 0

    def test_and_ends_when_all_are_given_out(self) -> None:
        queue = JobQueue(self.jobs)
        taken = [queue.take(None, []) for _ in self.jobs]
        assert sorted(job.key for job in taken) == sorted(job.key for job in self.jobs)
        assert queue.take(None, []) is None

    def test_a_job_put_back_is_next(self) -> None:
        queue = JobQueue(self.jobs)
        job = queue.take("s/0", [])
        queue.put_back(job)
        assert queue.take("s/0", []) == job
