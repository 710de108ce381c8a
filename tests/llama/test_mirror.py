"""The few kept rows that stand for a whole score buffer."""

import numpy as np
import pytest

from pyspec.llama.mirror import ScoreRows


@pytest.fixture
def rows():
    return [np.full(4, float(i), dtype=np.float32) for i in (1, 2, 3)]


@pytest.fixture
def scores(rows):
    """Three rows of four scores, the first at position 5: the array they stand for is [8, 4]."""
    return ScoreRows(5, rows, 4)


@pytest.mark.parametrize(
    ("position", "row"), [(5, 0), (6, 1), (7, 2), (np.int64(6), 1), (-1, 2), (-3, 0)]
)
def test_kept_rows_are_found_by_position(scores, rows, position, row):
    assert scores[position] is rows[row]
    assert scores[position, :] is rows[row]


@pytest.mark.parametrize("position", [0, 4, 8, 100, -4, -8])
def test_rows_not_kept_are_zero(scores, position):
    assert scores[position].tolist() == [0.0] * 4


def test_the_array_has_positions_up_to_the_last_kept_row(scores, rows):
    whole = np.asarray(scores)
    assert whole.shape == scores.shape == (len(scores), 4) == (8, 4)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole[5:], rows)
    assert not whole[:5].any()
    assert np.asarray(scores, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(scores[4:7], whole[4:7])
    np.testing.assert_array_equal(scores[:3, :], np.zeros((3, 4)))


def test_new_rows_appear(scores, rows):
    """The list is shared with the engine, which goes on to fill it."""
    rows.append(np.full(4, 9.0, dtype=np.float32))
    assert scores.shape == (9, 4)
    assert scores[8][0] == 9.0


def test_copy_is_one_row_of_zeros():
    """A saved state keeps no logits; one row is taken by a `llama_cpp.Llama` for any number of them."""
    assert ScoreRows(3, [], 4).copy().tolist() == [[0.0] * 4]
