import dataclasses

import numpy as np
import pytest
from dots import draw_episode

from cosmos_robot.backbone.cosmos3.latents import encode_first_frame
from cosmos_robot.backbone.cosmos3.tiny import tiny_vae
from cosmos_robot.contract import Box
from cosmos_robot.errors import InputError
from cosmos_robot.images import compose_canvas
from cosmos_robot.training.cache import EpisodeList, frame_cache, placement_cells
from cosmos_robot.training.latents import black_latents, latent_cache


@pytest.fixture(scope="module")
def cache(contract, episodes, tmp_path_factory):
    return frame_cache(episodes, contract, tmp_path_factory.mktemp("cache"), progress=False)


def test_holds_every_row(cache, episodes, contract):
    assert len(cache) == sum(len(episodes[i]) for i in range(len(episodes)))
    row, episode = 8, episodes[1]  # six rows per episode
    np.testing.assert_array_equal(
        cache.canvases[row], compose_canvas(contract, {n: v[2] for n, v in episode.images.items()})
    )
    np.testing.assert_array_equal(cache.state[row], episode.state[2])
    np.testing.assert_array_equal(cache.actions[row], episode.actions[2])
    assert cache.instructions[cache.instruction[row]] == episode.instruction
    assert not cache.valid[11, 2:].any() and cache.valid[10].all()


def test_every_twentieth_episode_is_held_out(cache):
    assert sorted({*cache.episode[cache.validation]}) == [0, 20]


def test_objects_lie_where_they_are_drawn(cache):
    """The canvas has each object's colour at the place the cells name."""
    for row in range(0, len(cache), 7):
        for slot, colour in enumerate([(220, 40, 40), (40, 200, 60)]):
            down, right = (cache.object_cells[row, 0, slot] * 16).astype(int)
            assert cache.object_seen[row, 0, slot]
            np.testing.assert_array_equal(cache.canvases[row, down, right], colour)
    assert not cache.object_seen[:, 1].any()  # the wrist camera sees none
    assert not cache.object_seen[:, :, 2].any()  # an empty slot


def test_cells_follow_crop_and_size(contract, episodes, tmp_path):
    """A crop of the lower right quarter, blown up: objects outside it are not seen, those inside move with it."""
    quarter = Box(top=32, left=32, height=32, width=32)
    placement = contract.model.canvas.placements[0].model_copy(update={"crop": quarter})
    canvas = contract.model.canvas.model_copy(update={"placements": (placement,)})
    cropped = contract.model_copy(update={"model": contract.model.model_copy(update={"canvas": canvas})})
    cache = frame_cache(episodes, cropped, tmp_path, progress=False)
    checked = 0
    for index in range(len(episodes)):
        right, down, _ = episodes[index].extras["object_uv_top"][0, 0]
        row = 6 * index
        assert cache.object_seen[row, 0, 0] == (down >= 0.5 and right >= 0.5)
        if cache.object_seen[row, 0, 0]:
            expected = np.array([(down - 0.5) * 2 * 64, (right - 0.5) * 2 * 64]) / 16
            np.testing.assert_allclose(cache.object_cells[row, 0, 0], expected, atol=1e-5)
            checked += 1
    assert checked


def test_is_built_once_and_again_when_stale(contract, episodes, tmp_path):
    first = frame_cache(episodes, contract, tmp_path, progress=False)
    stamp = (first.folder / "meta.json").stat().st_mtime_ns
    assert frame_cache(episodes, contract, tmp_path, progress=False).key == first.key
    assert (first.folder / "meta.json").stat().st_mtime_ns == stamp
    other = EpisodeList([draw_episode(seed) for seed in range(1, 4)])
    assert frame_cache(other, contract, tmp_path, progress=False).key != first.key
    wider = contract.model.canvas.model_copy(update={"width": 112})
    moved = contract.model_copy(update={"model": contract.model.model_copy(update={"canvas": wider})})
    assert frame_cache(episodes, moved, tmp_path, progress=False).canvases.shape[2] == 112


def test_half_written_cache_is_built_again(contract, episodes, tmp_path):
    key = frame_cache(episodes, contract, tmp_path / "a", progress=False).key
    part = tmp_path / "b" / f"frames-{key}.part"
    part.mkdir(parents=True)
    (part / "canvases.u8").write_bytes(b"cut off")
    cache = frame_cache(episodes, contract, tmp_path / "b", progress=False)
    assert len(cache) == 144 and not part.exists()


def test_recordings_without_privileged_columns_have_no_objects(contract, tmp_path):
    episode = dataclasses.replace(draw_episode(0), extras={})
    cache = frame_cache(EpisodeList([episode]), contract, tmp_path, progress=False)
    assert (cache.target == -1).all() and np.isnan(cache.target_xyz).all() and cache.object_class.shape == (6, 0)


@pytest.mark.parametrize("change", ["cameras", "extras", "extra shape", "source", "extra values"])
def test_the_fingerprint_of_a_list_is_that_of_all_it_holds(change):
    episode = draw_episode(0)
    top, wrist = episode.images["top"], episode.images["wrist"]
    flat = {**episode.extras, "target_xyz": episode.extras["target_xyz"].reshape(-1, 1, 3)}
    other = {
        "cameras": {"images": {"wrist": top, "top": wrist}},  # the same arrays one after the other, named wrongly
        "extras": {"extras": {}},
        "extra shape": {"extras": flat},
        "extra values": {"extras": {**episode.extras, "phase": episode.extras["phase"] + 1}},
        "source": {"info": dataclasses.replace(episode.info, source="dagger")},
    }[change]
    changed = dataclasses.replace(episode, **other)
    assert EpisodeList([changed]).fingerprint != EpisodeList([episode]).fingerprint
    assert EpisodeList([draw_episode(0)]).fingerprint == EpisodeList([episode]).fingerprint


def test_short_chunks_are_refused(contract, tmp_path):
    longer = contract.model_copy(update={"model": contract.model.model_copy(update={"chunk": 9})})
    with pytest.raises(InputError, match="the model predicts 9"):
        frame_cache(EpisodeList([draw_episode(0)]), longer, tmp_path, progress=False)


def test_latents_belong_to_their_autoencoder(cache):
    for seed in (0, 1):
        vae = tiny_vae(seed, base_dim=4)
        latents = latent_cache(cache, vae, progress=False, batch=50)
        expected = encode_first_frame(vae, np.array(cache.canvases[70:73]))[:, :, 0].numpy()
        np.testing.assert_allclose(latents[70:73].astype(np.float32), expected, atol=2e-3, rtol=2e-3)
    assert len(list(cache.folder.glob("latents-*.npy"))) == 2
    black = encode_first_frame(vae, np.zeros((1, 64, 96, 3), np.uint8))[0, :, 0].numpy()
    np.testing.assert_allclose(black_latents(vae, 64, 96).astype(np.float32), black, atol=2e-3)


def test_placement_cells(contract):
    cells = placement_cells(contract.model.canvas)
    assert cells.shape == (2, 4, 6)
    assert cells[0, :, :4].all() and cells[0].sum() == 16
    assert cells[1, :2, 4:].all() and cells[1].sum() == 4
