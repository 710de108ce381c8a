"""A target small enough to write text in a second, prompts for it, and what it wrote."""

import json

import pytest
from helpers.make_target import write_target


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target") / "tiny.gguf")


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"source": f"s{i % 2}", "prompt": f"say hello {i} times"} for i in range(12)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture(scope="session")
def recording(tiny_target, tmp_path_factory):
    from models.recipe import write

    folder = tmp_path_factory.mktemp("recording") / "rec"
    queue = [(i, f"say hello {i} times") for i in range(1, 13)]
    options = write.Options(
        slots=4, answer=12, longest_prompt=64, top=16, warm=0.5, layers=(0, 1, 2)
    )
    write.write(tiny_target, folder, queue, 100_000, options, threads=1)
    return folder
