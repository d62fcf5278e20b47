"""The demo and its report: what the page holds, and that it needs nothing beside it."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import av
import numpy as np
import pytest
from PIL import Image

from cosmos_robot.contract import FieldSpec
from cosmos_robot.errors import InputError, RenderError
from cosmos_robot.eval.demo import DemoConfig, demo_jobs, run_demo
from cosmos_robot.eval.plots import action_names, plot_actions
from cosmos_robot.eval.report import Decision, EpisodeTrace
from cosmos_robot.eval.results import EpisodeRecord
from cosmos_robot.eval.runner import Filming, RunSettings


class Page(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str, css: str | None = None) -> list[dict]:
        return [a for t, a in self.tags if t == tag and (css is None or a.get("class") == css)]


def config(folder, **changes) -> DemoConfig:
    settings = {"episodes": 3, "out": folder, "tasks": ("fake/2", "fake/0"), "max_steps": 60, "workers": 2}
    return DemoConfig(**(settings | changes))


@pytest.fixture(scope="module")
def demo(tmp_path_factory, fake):
    folder = tmp_path_factory.mktemp("demo") / "demo_out"
    return run_demo(fake.fake_entrant(), config(folder)), Page((folder / "report.html").read_text()), folder


def test_the_outcome_counts_the_episodes(demo) -> None:
    outcome, _, folder = demo
    assert (outcome.successes, outcome.episodes, outcome.errors) == (3, 3, ())
    assert outcome.report == folder / "report.html"


def test_the_page_tells_score_instructions_and_origin(demo) -> None:
    _, page, _ = demo
    assert "success: 3/3" in page.text
    assert "sha256 000000000000" in page.text
    assert "fake-model" in page.text
    titles = re.findall(r"\d\. [A-Z][a-z ]+success", page.text)
    assert titles == ["1. Keep still success", "2. Touch the near target success", "3. Keep still success"]
    assert "fake/2, init state 1: 12 steps (0.6 s), 3 decisions" in page.text


def test_the_films_are_inside_the_page_and_beside_it(demo) -> None:
    _, page, folder = demo
    videos = page.all("video")
    assert len(videos) == 3
    for video, name in zip(videos, ("task02_init000", "task00_init000", "task02_init001"), strict=True):
        kind, data = video["src"].split(",")
        assert kind == "data:video/mp4;base64"
        assert base64.b64decode(data) == (folder / "films" / f"fake_{name}.mp4").read_bytes()
    with av.open(str(folder / "films" / "fake_task02_init000.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) == 7


def test_the_page_needs_nothing_from_elsewhere(demo) -> None:
    _, page, _ = demo
    sources = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert sources
    assert all(source.startswith(("data:", "#episode-")) for source in sources)
    assert not page.all("script")
    assert not page.all("link")


def test_the_page_shows_what_the_model_saw_at_each_decision(demo) -> None:
    _, page, _ = demo
    pictures = page.all("img")
    assert [p["alt"] for p in pictures[:3]] == ["canvas at step 0", "canvas at step 4", "canvas at step 8"]
    canvas = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0]["src"].split(",")[1]))))
    assert canvas.shape == (48, 96, 3)
    assert canvas[47, 0].tolist() == [200, 200, 200]
    assert canvas[30:, 64:].max() == 0


def test_the_page_plots_every_action_dimension(demo) -> None:
    _, page, _ = demo
    assert len(page.all("svg", "actions")) == 3
    assert len(page.all("polyline", "executed")) == 3 * 3
    decisions = len(page.all("img"))
    assert len(page.all("polyline", "predicted")) == 3 * decisions


def test_a_blind_policy_is_shown_to_see_nothing(tmp_path, fake) -> None:
    class Blind(fake.SeeingPolicy):
        cameras = ()

        def _towards(self, observation):
            return np.zeros((8, 3))

    outcome = run_demo(fake.fake_entrant(Blind()), config(tmp_path, episodes=1, tasks=("fake/0",), max_steps=6))
    page = Page(outcome.report.read_text())
    assert "success: 0/1" in page.text
    assert "this policy does not look at pictures" in page.text
    assert not page.all("img")


def test_missing_gl_is_said_so_with_the_remedy(tmp_path, fake) -> None:
    settings = RunSettings(workers=1, variables=fake.FINDABLE, factory="fake_run:make_dark")
    with pytest.raises(RenderError, match="apt-get install libegl1"):
        run_demo(fake.fake_entrant(), config(tmp_path), settings)


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path, fake) -> None:
    place = tmp_path / "demo_out"
    place.write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        run_demo(fake.fake_entrant(), config(place))
    assert place.read_text() == "mine"


def test_tasks_take_turns_and_each_round_has_new_init_states(tmp_path) -> None:
    jobs = demo_jobs(config(tmp_path, episodes=5, tasks=("libero_object/3", "libero_object_swap/4"), init_offset=2))
    assert [(job.env_name, job.init) for job in jobs] == [
        ("libero_object/3", 2),
        ("libero_object_swap/4", 2),
        ("libero_object/3", 3),
        ("libero_object_swap/4", 3),
        ("libero_object/3", 4),
    ]
    with pytest.raises(InputError, match="SUITE/INDEX"):
        demo_jobs(config(tmp_path, tasks=("libero_object",)))
    with pytest.raises(InputError, match="at least one"):
        demo_jobs(config(tmp_path, episodes=0))


def test_executed_rows_are_the_heads_of_the_chunks_within_the_range(fake) -> None:
    record = EpisodeRecord(
        suite="fake", task=0, init=0, instruction="", success=False, ended="budget", steps=5, decisions=2,
        reset_seed=0, noise_seeds=(0, 0), seconds=0,
    )  # fmt: skip
    first, second = np.arange(24).reshape(8, 3) / 12, -np.arange(24).reshape(8, 3) / 2
    trace = EpisodeTrace(record, (Decision(0, None, first, 0), Decision(3, None, second, 0)))
    expected = np.clip(np.concatenate([first[:3], second[:2]]), -1, 1)
    np.testing.assert_allclose(trace.executed(fake.CONTRACT.robot), expected)


def test_plotted_points_lie_where_the_values_say(fake) -> None:
    rows = np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 1.0]])
    svg = Page(plot_actions(fake.CONTRACT.robot, [(0, rows)], rows))
    points = [p["points"] for p in svg.all("polyline", "executed")]
    assert points[0] == "96.0,32.0 428.0,0.0"
    assert points[1] == "96.0,72.0 428.0,104.0"
    assert points[2] == "96.0,208.0 428.0,144.0"
    assert [p["points"] for p in svg.all("polyline", "predicted")] == points


def test_action_names_tell_the_dimensions_apart() -> None:
    fields = [FieldSpec(name=n, width=w, unit="1") for n, w in (("position", 3), ("joints", 2), ("gripper", 1))]
    assert action_names(fields) == ["position x", "position y", "position z", "joints 0", "joints 1", "gripper"]


@pytest.mark.parametrize(
    ("change", "field"), [({"max_steps": 0}, "max_steps"), ({"seed": -1}, "seed"), ({"init_offset": -1}, "init_offset")]
)
def test_a_demo_of_nonsense_is_refused_by_field(tmp_path, fake, change, field: str) -> None:
    with pytest.raises(InputError, match=field):
        run_demo(fake.fake_entrant(), config(tmp_path, **change))


@pytest.mark.parametrize(("folder", "every", "words"), [("file", 2, "is a file"), ("films", 0, "at least 1")])
def test_films_that_cannot_be_made_are_refused_at_once(tmp_path, folder: str, every: int, words: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=words):
        Filming(tmp_path / folder, ("table",), every)
