"""Collection with real worker processes. Each process costs seconds to start, so the tests start few of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import data_oracle as oracle
import pytest

from cosmos_robot.data.collect import DemonstratorSpec, collect, record, staging_folder
from cosmos_robot.data.staging import Staging
from cosmos_robot.data.workers import _Queue
from cosmos_robot.errors import CheckpointError, InputError, Interrupted, WorkerError


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


class Place:
    def __init__(self, folder: Path):
        self.out, self.diary = folder / "demos", folder / "diary"

    def record(self, jobs, **options):
        kwargs = {"workers": 1, "progress": False, **options}
        return record(jobs, self.demonstrator(), oracle.ROBOT, self.out, **kwargs)

    def demonstrator(self, **kwargs):
        return DemonstratorSpec("data_oracle:OracleDemonstrator", {"diary": str(self.diary), **kwargs})

    def entries(self):
        """Process, job and environment of each attempt, in order."""
        return [line.split() for line in self.diary.read_text().splitlines()]

    def log(self):
        lines = (staging_folder(self.out) / "log.jsonl").read_text().splitlines()
        return {entry["job"]: entry for entry in map(json.loads, lines)}


def test_each_outcome_is_told_and_only_lost_jobs_are_tried_again(place):
    jobs = oracle.jobs("keep", "fail", "none", "kill", "raise", "keep", per_group=3)
    first = place.record(jobs)
    assert first.kept == ("oracle/0", "oracle/5")
    assert first.failed == ("oracle/1", "oracle/2")
    assert first.lost == ("oracle/3", "oracle/4")
    assert first.success_share == pytest.approx(2 / 6)
    log = place.log()
    assert log["oracle/1"]["reason"] == "the object slipped"
    assert "exit code -9" in log["oracle/3"]["reason"]
    assert "ValueError: a defect" in log["oracle/4"]["reason"]
    assert len({process for process, *_ in place.entries()}) == 3  # one more after the kill, one after the exception

    second = place.record(jobs)
    assert second.kept == ("oracle/0", "oracle/3", "oracle/5") and second.lost == ("oracle/4",)
    assert [job for _, job, *_ in place.entries()[6:]] == ["oracle/3", "oracle/4"]
    assert Staging(second.staging).load("oracle/3").info.seed == 3


def test_workers_keep_to_their_group_and_run_with_one_thread(place, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    collection = place.record(oracle.jobs(*["keep"] * 6, per_group=3), workers=2)
    assert len(collection.kept) == 6
    assert {tuple(entry[2:]) for entry in place.entries()} == {("1", "osmesa")}
    assert "OMP_NUM_THREADS" not in os.environ
    groups = defaultdict(list)
    for process, job, *_ in place.entries():
        groups[process].append(int(job.split("/")[1]) // 3)
    assert all(sum(a != b for a, b in pairwise(done)) <= 1 for done in groups.values())


def test_jobs_are_shared_out_by_group_and_split_only_at_the_end():
    queue = _Queue(oracle.jobs(*["keep"] * 5, per_group=3))
    first, one = queue.take(None, set())
    second, two = queue.take(None, {one})
    assert (one, two) == ("task 0", "task 1") and (first.id, second.id) == ("oracle/0", "oracle/3")
    assert [queue.take(two, {one, two})[0].id for _ in range(2)] == ["oracle/4", "oracle/1"]
    assert queue.take(two, {one})[0].id == "oracle/2"
    assert queue.take(one, {two}) == (None, None)


def test_a_worker_that_dies_again_and_again_is_given_up_with_how_to_go_on(place):
    with pytest.raises(WorkerError, match=r"lost 2 times in a row(.|\n)*exit code -9(.|\n)*same command again"):
        place.record(oracle.jobs(*["always kill"] * 4), max_restarts=1)
    assert sorted(place.log()) == ["oracle/0", "oracle/1"]


def test_a_worker_that_hangs_is_replaced(place):
    collection = place.record(oracle.jobs("hang", "keep"), job_seconds=2)
    assert collection.lost == ("oracle/0",) and collection.kept == ("oracle/1",)
    assert "no result within 2 s" in place.log()["oracle/0"]["reason"]


def test_a_demonstrator_that_cannot_be_built_stops_everything_at_once(place):
    with pytest.raises(WorkerError, match="the simulator is missing a part"):
        record(oracle.jobs("keep"), place.demonstrator(broken=True), oracle.ROBOT, place.out, progress=False)


def test_episodes_of_another_robot_are_refused_before_they_are_staged(place):
    robot = oracle.ROBOT.model_copy(update={"cameras": oracle.ROBOT.cameras[:1]})
    options = {"workers": 1, "max_restarts": 0, "progress": False}
    with pytest.raises(WorkerError, match="episode cameras"):
        record(oracle.jobs("keep", "keep"), place.demonstrator(), robot, place.out, **options)
    assert Staging(staging_folder(place.out)).keys() == []


def test_what_another_demonstrator_began_is_not_mixed(place):
    place.record(oracle.jobs())
    with pytest.raises(InputError, match="another demonstrator"):
        record(oracle.jobs("keep"), place.demonstrator(seconds=1.0), oracle.ROBOT, place.out, progress=False)


def test_the_same_id_twice_is_refused(place):
    with pytest.raises(InputError, match="'oracle/0'"):
        place.record([*oracle.jobs("keep"), *oracle.jobs("keep")])


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import data_oracle as oracle
from cosmos_robot.data.collect import DemonstratorSpec, record
from cosmos_robot.errors import Interrupted

if __name__ == "__main__":
    spec = DemonstratorSpec("data_oracle:OracleDemonstrator", {{"diary": {diary!r}, "seconds": 0.3}})
    try:
        record(oracle.jobs(*["keep"] * 12), spec, oracle.ROBOT, {out!r}, workers=2, progress=False)
    except Interrupted as stop:
        sys.exit(f"interrupted: {{stop}}")
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_collection_resumes_without_repeating(place, stop, tmp_path):
    script = tmp_path / "collect_it.py"
    script.write_text(SCRIPT.format(path=[str(Path(__file__).parent)], diary=str(place.diary), out=str(place.out)))
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True)
    staging = Staging(staging_folder(place.out))
    while len(staging.keys()) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    with pytest.raises(CheckpointError, match="another process is collecting"):
        place.record([])
    os.kill(process.pid, stop) if stop == signal.SIGKILL else os.killpg(process.pid, stop)
    message = process.communicate()[1]
    _wait_for_workers(place)
    before = staging.keys()
    assert 3 <= len(before) < 12
    if stop == signal.SIGINT:
        assert "are safe in" in message and "same command again" in message
        assert not list(staging.folder.glob("*.tmp"))

    attempts = len(place.entries())
    spec = place.demonstrator(seconds=0.3)
    collection = record(oracle.jobs(*["keep"] * 12), spec, oracle.ROBOT, place.out, progress=False)
    assert len(collection.kept) == 12
    assert {job for _, job, *_ in place.entries()[attempts:]} == {f"oracle/{n}" for n in range(12)} - set(before)
    assert all(staging.load(f"oracle/{n}").info.seed == n for n in range(12))


def _wait_for_workers(place) -> None:
    """Until the processes that wrote into the diary are gone: a killed parent's workers end by themselves."""
    for process in {int(entry[0]) for entry in place.entries()}:
        deadline = time.monotonic() + 30
        while Path(f"/proc/{process}").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]:
            assert time.monotonic() < deadline, f"worker {process} outlived its parent"
            time.sleep(0.05)


def test_collect_writes_dataset_and_sheet_and_then_frees_the_staging(place):
    from cosmos_robot.data.store import EpisodeStore

    jobs = oracle.jobs("keep", "fail", "keep")
    options = {"stride": oracle.STRIDE, "notes": {"why": "test"}, "workers": 1, "progress": False}
    collection = collect(jobs, place.demonstrator(), oracle.ROBOT, place.out, **options)
    store = EpisodeStore(place.out)
    assert [info.seed for info in store.infos] == [0, 2]
    assert store.notes == {"why": "test", "failed": 1, "lost": 0}
    assert Path(f"{place.out}.png").stat().st_size > 1000
    assert not collection.staging.exists()
    with pytest.raises(CheckpointError, match="already there"):
        collect(jobs, place.demonstrator(), oracle.ROBOT, place.out, **options)


def test_ctrl_c_while_the_dataset_is_written_keeps_the_episodes(place, monkeypatch):
    monkeypatch.setattr(Staging, "load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted, match="same command again"):
        collect(oracle.jobs("keep"), place.demonstrator(), oracle.ROBOT, place.out, stride=5, progress=False)
    assert Staging(staging_folder(place.out)).keys() == ["oracle/0"]
    assert not place.out.exists()
