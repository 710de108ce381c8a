"""Q4_0 with compensation: exact bytes, and a smaller error where it counts."""

import gguf
import numpy as np

from models.recipe import gguf_io


def correlated_states(count, width):
    rng = np.random.default_rng(1)
    mix = rng.standard_normal((width // 4, width))
    noise = 0.1 * rng.standard_normal((count, width))
    return (rng.standard_normal((count, width // 4)) @ mix + noise).astype(np.float32)


def test_bytes_read_back_as_the_values():
    matrix = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    values, scale = gguf_io.compensated(matrix, np.eye(64))
    raw = gguf_io.packed(values, scale)
    back = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    np.testing.assert_array_equal(back, values)


def test_products_are_closer_than_with_plain_rounding():
    """On correlated states the outputs move less than half as far as with ggml's rounding."""
    matrix = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    states = correlated_states(2000, 64)
    moment = (states.T @ states / len(states)).astype(np.float64)
    values, _ = gguf_io.compensated(matrix, moment)
    kind = gguf.GGMLQuantizationType.Q4_0
    plain = gguf.dequantize(gguf.quantize(matrix, kind), kind)
    error = [np.square(states @ (m - matrix).T).mean() for m in (values, plain)]
    assert error[0] < 0.5 * error[1]


def test_a_block_of_zeros_stays_zero():
    values, scale = gguf_io.compensated(np.zeros((3, 32), np.float32), np.eye(32))
    raw = gguf_io.packed(values, scale)
    assert not gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_0).any()
