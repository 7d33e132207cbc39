"""Masks of saturated tiles: how they are kept, stored and read back."""

import numpy as np
import pytest
from scenes import axis_camera

from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.visibility.masks import (
    STEPS, Masks, saturated_tiles, transmittance_of, tree_id,
)

CAMERAS = [axis_camera([0, 0, 0], 97, 61), axis_camera([0, 0, 0], 33, 49)]  # 28 and 12 tiles
COUNT = CAMERAS[0].tile_count


def some_masks():
    masks = Masks()
    masks.add(0, 3, np.array([27, 2]), np.array([9, 7], np.uint8), COUNT, live=True)
    masks.add(1, 4, np.arange(12), np.full(12, 255, np.uint8), 12, live=False)
    return masks


def test_levels_are_transmittances_rounded_up():
    passed = np.concatenate([[0.0, 1.0, 0.5, 1e-4], np.geomspace(2.0**-31, 1, 1000)])
    tiles, saturated = np.arange(3, 3 + len(passed), dtype=np.int32), np.arange(len(passed)) != 3
    few = np.array([9, 5, 7], np.int32), np.array([True, False, True]), np.array([0.25, 0, 1.0])
    (chosen, levels), nothing, (rest, others) = saturated_tiles(
        *zip((tiles, saturated, passed), (tiles[:0], saturated[:0], passed[:0]), few)
    )
    assert chosen.tolist() == tiles[saturated].tolist() and not len(nothing[0])
    assert rest.tolist() == [9, 7] and transmittance_of(others).tolist() == [0.25, 1.0]
    passed, back = passed[saturated], transmittance_of(levels)
    assert levels.dtype == np.uint8 and back[1] == 1.0 and back[2] == 0.5
    assert saturated_tiles([], [], []) == []
    # one step, and the roundings of logarithm and power
    assert (back >= passed * (1 - 1e-12)).all()
    assert (back[1:] <= passed[1:] * 2 ** (1 / STEPS) * (1 + 1e-12)).all()


def test_tiles_are_masked_and_come_back():
    masks = some_masks()
    masked, levels = masks.get(0, 3).rows(COUNT)
    assert np.flatnonzero(masked).tolist() == [2, 27]
    assert levels[[2, 27]].tolist() == [7, 9] and levels.sum() == 16
    masks.add(0, 3, np.array([2, 5]), np.array([1, 3], np.uint8), COUNT, live=False)
    masked, levels = masks.get(0, 3).rows(COUNT)
    assert np.flatnonzero(masked).tolist() == [2, 5, 27]
    assert levels[[2, 5, 27]].tolist() == [1, 3, 9]
    masks.remove(0, 3, [2, 4])
    assert np.flatnonzero(masks.get(0, 3).rows(COUNT)[0]).tolist() == [5, 27]
    masks.remove(0, 3, [5, 27])
    masks.remove(5, 5, [1])
    assert masks.get(0, 3) is None and masks.get(1, 3) is None


def test_a_cell_is_idle_until_a_tile_comes_back():
    masks = some_masks()
    assert masks.idle == {(1, 4)}
    masks.remove(1, 4, [3])
    assert not masks.idle
    masks.add(1, 4, np.zeros(0, int), np.zeros(0, np.uint8), 12, live=False)
    assert masks.idle == {(1, 4)}
    masks.clear()
    assert not masks.idle and not masks.kept


def test_a_bit_and_a_byte_a_tile():
    mask = some_masks().get(0, 3)
    assert mask.bits.nbytes == -(-COUNT // 8) and mask.levels.nbytes == 2


def test_state_comes_back():
    masks, other = some_masks(), Masks()
    state = masks.state()
    assert other.restore(state, [3, 4], CAMERAS)
    assert other.idle == masks.idle and other.kept.keys() == masks.kept.keys()
    for name, array in state.items():
        assert array.tobytes() == other.state()[name].tobytes(), name
    empty = Masks()
    assert empty.restore(Masks().state(), [3], CAMERAS) and not empty.kept


@pytest.mark.parametrize("change", [
    lambda s: s.update(mask_bits=s["mask_bits"][:-1]),
    lambda s: s.update(mask_levels=np.append(s["mask_levels"], np.uint8(1))),
    lambda s: s["mask_bits"].__setitem__(0, 255),
    lambda s: s["mask_bits"].__setitem__(-1, s["mask_bits"][-1] | 1),  # behind the last tile
    lambda s: s.update(mask_bits=s["mask_bits"].astype(np.int64)),
    lambda s: s.update(mask_levels=s["mask_levels"].astype(float)),
    lambda s: s.update(mask_entries=s["mask_entries"].astype(float)),
    lambda s: s["mask_entries"].__setitem__((0, 0), 7),
    lambda s: s["mask_entries"].__setitem__((0, 1), 5),
    lambda s: s["mask_entries"].__setitem__((0, 2), -1),
    lambda s: s.update(mask_entries=s["mask_entries"][:, :4]),
])
def test_what_does_not_fit_is_left(change):
    state, other = some_masks().state(), some_masks()
    change(state)
    assert not other.restore(state, [3, 4], CAMERAS)
    assert not other.kept and not other.idle


def test_trees_are_told_apart():
    def tree(split):
        return Tree(np.zeros(1, np.int32), np.array([split]), *np.array([[-1], [-2]], np.int32))

    assert tree_id(tree(0.5)) == tree_id(tree(0.5)) != tree_id(tree(0.25)) != tree_id(Tree.single())
