"""A tiny model of eight layers, and devices with little memory."""

import pytest
from helpers.running import run_python


@pytest.fixture(scope="session")
def eight_layers(tiny_folder):
    from helpers import tiny

    return tiny.write(tiny_folder / "eight.gguf", n_layer=8)


@pytest.fixture(scope="session")
def eight_mixtures(tiny_folder):
    """The same with four experts in each layer, and a wide one: experts are most of the weights."""
    from helpers import tiny

    return tiny.write(tiny_folder / "mixture.gguf", arch="mixture", n_layer=8, n_experts=48)


@pytest.fixture(scope="session", autouse=True)
def knows_rpc():
    """Only a llama-cpp-python built with GGML_RPC has devices here; `.ci/run` has one for these tests."""
    import llama_cpp

    if not llama_cpp.llama_supports_rpc():
        pytest.skip("this llama-cpp-python is built without RPC")


@pytest.fixture(scope="session")
def in_child():
    """Runs Python in a process of its own, as devices of one stay; gives back what it printed."""

    def run(code, *arguments):
        done = run_python("-c", code, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
