"""Targets by name in the class, as on the command line."""

from pathlib import Path

import pytest

from pyspec.errors import ModelNotFound
from pyspec.hub.locate import add, resolve


def test_a_name_stands_for_its_file(open_llama, tiny_ascii, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path))
    add(tiny_ascii, "mine:1b")
    assert open_llama("mine:1b").model_path == str(tiny_ascii)


def test_known_names_are_fetched_or_found(open_llama):
    assert Path(open_llama("smollm2-135m-instruct").model_path).samefile(resolve())


def test_what_is_neither_is_one_sentence(open_llama):
    """A name that nobody has is answered with near ones."""
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m-instruct"):
        open_llama("smollm2-135m-instrukt")
