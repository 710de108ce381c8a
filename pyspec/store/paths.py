"""Where fetched and converted models live: the platform's cache directory, or PYSPEC_CACHE."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from pyspec.errors import FetchError

__all__ = ["cache_dir", "make_dir", "models_dir"]


def cache_dir() -> Path:
    """The cache of pyspec; PYSPEC_CACHE overrides the platform's convention. Not created here."""
    override = os.environ.get("PYSPEC_CACHE")
    if override:
        return Path(override).expanduser().absolute()
    return platformdirs.user_cache_path("pyspec", appauthor=False)


def models_dir() -> Path:
    """The folder of fetched and converted models in the cache. Not created here."""
    return cache_dir() / "models"


def make_dir(path: Path) -> Path:
    """Creates a folder of the cache and returns it; FetchError when that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"cannot create the cache folder {path}: {error.strerror}",
            "set PYSPEC_CACHE to a folder that can be written",
        ) from error
    return path
