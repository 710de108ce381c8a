"""Models that several tests of draws read."""

import pytest
from helpers import tiny


@pytest.fixture(scope="session")
def near_draft(tiny_folder):
    """A draft that is nearer to the tiny target than `tiny_draft`, so that most of what it draws is accepted."""
    return tiny.write(tiny_folder / "near-draft.gguf", noise=0.1)


@pytest.fixture(scope="session")
def headed(tiny_folder):
    """A target with a next-token head of its own."""
    return tiny.write(tiny_folder / "drawing-headed.gguf", arch="qwen35", n_layer=4, n_heads=1)
