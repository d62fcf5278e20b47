"""Statistics files of other projects: which block, for which method."""

from __future__ import annotations

import json

import pytest

from cosmos_robot.actions.statistics_files import blocks_of, choose_block, placeholder_dimensions, read_blocks
from cosmos_robot.errors import InputError, UnknownNameError

QUANTILES = {"q01": [-1.0, 0.0], "q99": [1.0, 2.0]}
ALL = QUANTILES | {"mean": [0.0, 1.0], "std": [0.5, 0.6], "min": [-2.0, -1.0], "max": [3.0, 4.0]}


def written(tmp_path, content):
    path = tmp_path / "stats.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (QUANTILES, [""]),
        ({"global": ALL, "global_raw": ALL, "metadata": {"rows": 3}}, ["global", "global_raw"]),
        ({"norm_stats": {"state": ALL, "actions": QUANTILES}}, ["norm_stats/state", "norm_stats/actions"]),
        ({"bridge": {"action": ALL | {"num_transitions": 7}}}, ["bridge/action"]),
        (
            {"observation.state": ALL | {"count": [9]}, "index": {"min": [0], "max": [8]}},
            ["observation.state", "index"],
        ),
        ({"actions_min": [0], "actions_max": [1], "proprio_min": [2], "proprio_std": [3]}, ["actions", "proprio"]),
    ],
)
def test_shapes_that_are_read(tmp_path, content, names) -> None:
    assert list(read_blocks(written(tmp_path, content))) == names


def test_counts_and_columns_arrive() -> None:
    block = blocks_of({"a": ALL | {"count": [9]}})["a"]
    assert block.count == 9 and block.column("q99") == (1.0, 2.0)
    assert blocks_of({"actions_min": [0], "actions_max": [1]})["actions"].recorded == ["min", "max"]


def test_pc_21_several_blocks_without_a_key_are_an_error_that_lists_them() -> None:
    blocks = blocks_of({"bridge": {"action": ALL}, "fractal": {"action": ALL}})
    with pytest.raises(InputError, match=r"'bridge/action', 'fractal/action'"):
        choose_block(blocks, method="quantile")
    assert choose_block(blocks, method="quantile", key="fractal/action") == blocks["fractal/action"]
    with pytest.raises(UnknownNameError, match="bridge/action"):
        choose_block(blocks, method="quantile", key="bridge/actions")


def test_pc_21_a_method_whose_statistics_are_not_there_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(InputError, match=r"min, max not recorded.*enough for quantile, quantile_rot"):
        choose_block(blocks_of(QUANTILES), method="minmax")


def test_cosmos3_blocks_go_with_their_methods() -> None:
    blocks = blocks_of({"global": ALL, "global_raw": QUANTILES})
    assert choose_block(blocks, method="quantile") == blocks["global"]
    assert choose_block(blocks, method="quantile_rot") == blocks["global_raw"]
    flat = blocks_of(QUANTILES)
    for key in ("global", "global_raw", None):
        assert choose_block(flat, method="quantile_rot", key=key) == flat[""]
    with pytest.raises(InputError, match="which block"):
        choose_block(blocks_of({"global": ALL}), method="quantile_rot")


def test_placeholder_statistics_of_rotations_are_refused_where_they_would_be_used() -> None:
    placeholders = {"mean": [0.1, 0], "std": [2, 1], "min": [-3, -1], "max": [3, 1], "q01": [-2, -1], "q99": [2, 1]}
    blocks = blocks_of({"global": placeholders, "global_raw": ALL})
    assert placeholder_dimensions(blocks["global"]) == [1]
    with pytest.raises(InputError, match=r"dimensions \[1\] hold placeholders.*global_raw"):
        choose_block(blocks, method="quantile_rot", key="global")
    assert choose_block(blocks, method="quantile", key="global") == blocks["global"]  # leaves rotations alone
    assert choose_block(blocks, method="quantile_rot") == blocks["global_raw"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a JSON file"),
        ([1, 2], "no statistics"),
        ({"note": "none"}, "no statistics"),
        ({"q01": [1.0], "q99": [1.0, 2.0]}, "not all of one width"),
        ({"q01": ["x"], "q99": [2.0]}, "q01"),
        ({"q01": [[1.0]], "q99": [[2.0]]}, "q01"),
        ('{"q01": [NaN], "q99": [1]}', "finite"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message) -> None:
    with pytest.raises(InputError, match=message):
        read_blocks(written(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="not a JSON file"):
        read_blocks(tmp_path / "none.json")
