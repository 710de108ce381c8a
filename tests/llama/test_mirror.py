"""The few kept rows that stand for a whole score buffer."""

import numpy as np

from pyspec.llama.mirror import ScoreRows


def test_kept_rows_are_found_by_position_and_all_others_are_zero():
    """Three rows of four scores, the first at position 5: the array they stand for is [8, 4]."""
    rows = [np.full(4, float(i), dtype=np.float32) for i in (1, 2, 3)]
    scores = ScoreRows(5, rows, 4)
    for position, row in ((5, 0), (6, 1), (np.int64(7), 2), (-1, 2), (-3, 0)):
        assert scores[position] is scores[position, :] is rows[row]
    for position in (0, 4, 8, 100, -4, -8):
        assert scores[position].tolist() == [0.0] * 4
    whole = np.asarray(scores)
    assert whole.shape == scores.shape == (len(scores), 4) == (8, 4)
    assert (whole.dtype, np.asarray(scores, dtype=np.float64).dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(whole, [*np.zeros((5, 4)), *rows])
    np.testing.assert_array_equal(scores[4:7], whole[4:7])
    rows.append(np.full(4, 9.0, dtype=np.float32))  # the engine goes on to fill the list
    assert (scores.shape, scores[8][0]) == ((9, 4), 9.0)


def test_copy_is_one_row_of_zeros():
    """A saved state keeps no logits; one row is taken by a `llama_cpp.Llama` for any number of them."""
    assert ScoreRows(3, [], 4).copy().tolist() == [[0.0] * 4]
