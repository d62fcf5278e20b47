import data_oracle as oracle
import numpy as np
import pytest

from cosmos_robot.data.episodes import Episode
from cosmos_robot.data.staging import Staging
from cosmos_robot.errors import CheckpointError


def assert_equal(one: Episode, other: Episode) -> None:
    assert (one.instruction, one.info) == (other.instruction, other.info)
    for name in ("state", "actions", "valid"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("images", "extras"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert list(mine) == list(theirs)
        assert all(np.array_equal(mine[key], theirs[key]) for key in mine), name


def noise(rows: int, same: bool) -> np.ndarray:
    """Pictures of noise: all different, or all but the first few pixels the same."""
    frames = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)
    if same:
        frames[1:, 2:] = frames[0, 2:]
    return frames


@pytest.mark.parametrize("rows", [1, 5])
def test_round_trip_is_exact_for_still_and_moving_cameras(tmp_path, rows):
    base = oracle.episode(4, rows=rows)
    images = {"still": noise(rows, same=True), "moving": noise(rows, same=False), "turned": noise(rows, False)[:, ::-1]}
    episode = Episode(base.instruction, images, base.state, base.actions, base.valid, base.info, base.extras)
    staging = Staging(tmp_path / "new")
    staging.save("suite/3 seed:7", episode)
    assert staging.keys() == ["suite/3 seed:7"]
    assert_equal(staging.load("suite/3 seed:7"), episode)


def test_still_cameras_cost_less_disk_than_moving_ones(tmp_path):
    staging = Staging(tmp_path)
    base = oracle.episode(4, rows=10)
    sizes = {}
    for same in (True, False):
        images = {"camera": noise(10, same)}
        episode = Episode(base.instruction, images, base.state, base.actions, base.valid, base.info)
        sizes[same] = staging.save(str(same), episode).stat().st_size
    assert sizes[True] < sizes[False] / 3


def test_absent_and_damaged_files_are_told_apart(tmp_path):
    staging = Staging(tmp_path)
    with pytest.raises(CheckpointError, match="no staged episode 'gone'"):
        staging.load("gone")
    path = staging.save("bent", oracle.episode(1, rows=4))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        staging.load("bent")


def test_clean_forgets_temporary_files_and_sets_torn_ones_aside(tmp_path):
    staging = Staging(tmp_path)
    for number in range(2):
        staging.save(f"e{number}", oracle.episode(number, rows=3))
    torn = staging.path("e0")
    torn.write_bytes(torn.read_bytes()[:500])
    (tmp_path / "e9.npz.123.tmp").write_bytes(b"half")
    assert staging.clean() == ["e0"]
    assert staging.keys() == ["e1"] and "e0" not in staging and "e1" in staging
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e0.npz.broken", "e1.npz"]
