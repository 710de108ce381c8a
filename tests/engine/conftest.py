"""Models that several tests of draws read, and what the tiny target says."""

import pytest
from helpers import tiny


@pytest.fixture(scope="session")
def near_draft(tiny_folder):
    """A draft that is nearer to the tiny target than `tiny_draft`, so that most of what it draws is accepted."""
    return tiny.write(tiny_folder / "near-draft.gguf", noise=0.1)


@pytest.fixture(scope="session")
def headed(tiny_folder):
    """A target with a next-token head of its own."""
    return tiny.write(tiny_folder / "headed.gguf", arch="qwen35", n_layer=4, n_heads=1)


@pytest.fixture
def reference(open_plain, tiny_target):
    """40 tokens of plain greedy decoding by llama-cpp-python itself behind the first three letters."""
    stream = open_plain(tiny_target).generate([tiny.A, tiny.A + 1, tiny.A + 2], temp=0.0)
    return [next(stream) for _ in range(40)]
