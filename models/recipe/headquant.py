"""Q4_0 for the tied embedding, with the error of each column pushed into the later ones.

Rounding a matrix to 4 bits changes its products with the final hidden states. Those states are
strongly correlated, so most of that change can be undone: columns are rounded one after another
and each error is compensated in the columns that are still free, weighted by the states' second
moment (GPTQ, arXiv:2210.17323, with llama.cpp's Q4_0 blocks of 32 as groups).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
F32 = NDArray[np.float32]


def scales(block: F32) -> F32:
    """The Q4_0 scale of each row of `block` [rows, 32] with the least squared error, as float16.

    Tried: 16 sizes either side of the one that llama.cpp uses (the largest value at -8).
    """
    largest = np.take_along_axis(block, np.abs(block).argmax(1)[:, None], 1)[:, 0]
    best = np.full(len(block), np.inf, np.float32)
    found = np.zeros(len(block), np.float32)
    for step in range(-9, 7):
        scale = (largest / (-8.0 + 0.2 * step)).astype(np.float16).astype(np.float32)
        error = ((rounded(block, scale[:, None]) - block) ** 2).sum(1)
        better = error < best
        best, found = np.where(better, error, best), np.where(better, scale, found)
    return found


def rounded(values: F32, scale: F32) -> F32:
    """Nearest multiple -8..7 of `scale`, as a value."""
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.clip(np.rint(values * inverse), -8, 7) * scale


def compensated(matrix: F32, moment: NDArray[np.float64]) -> tuple[F32, F32]:
    """(values, scales [rows, width / 32]) of `matrix` [rows, width] rounded to Q4_0.

    `moment` [width, width] is the mean of h h^T over the states that the matrix multiplies.
    """
    width = matrix.shape[1]
    damp = 0.01 * np.trace(moment) / width
    inverse = np.linalg.inv(moment + damp * np.eye(width))
    upper = np.linalg.cholesky(inverse).T.astype(np.float32)
    left, out = matrix.copy(), np.empty_like(matrix)
    every = np.empty((len(matrix), width // BLOCK), np.float32)
    for start in range(0, width, BLOCK):
        stop = start + BLOCK
        every[:, start // BLOCK] = scale = scales(left[:, start:stop])
        errors = np.empty((len(matrix), BLOCK), np.float32)
        for column in range(start, stop):
            out[:, column] = rounded(left[:, column], scale)
            error = (left[:, column] - out[:, column]) / upper[column, column]
            errors[:, column - start] = error
            left[:, column + 1 : stop] -= error[:, None] * upper[column, column + 1 : stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return out, every


def packed(values: F32, scale: F32) -> NDArray[np.uint8]:
    """Q4_0 bytes [rows, width / 32 * 18] of values that are multiples of their block's scale."""
    rows, width = values.shape
    blocks = values.reshape(rows, width // BLOCK, BLOCK)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    quants = (np.rint(blocks * inverse[..., None]) + 8).astype(np.uint8)
    nibbles = quants[..., :16] | (quants[..., 16:] << 4)
    heads = scale.astype("<f2")[..., None].view(np.uint8)
    return np.concatenate([heads, nibbles], -1).reshape(rows, -1)
