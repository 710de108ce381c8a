"""Files that ship with pyspec: beside the manifest in a clone or a build of it, else in a separate package."""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from pyspec.errors import ModelNotFound
from pyspec.machine.files import models_dir

DRAFTS = "pyspec-llama-drafts"
"""The distribution of the shipped models, `models/pyproject.toml`; a published wheel of pyspec has none of them."""


def models_folder() -> Path:
    """Return the manifest's folder: PYSPEC_MODELS, or the installed package `pyspec.models`."""
    override = os.environ.get("PYSPEC_MODELS")
    if override:
        return Path(override).expanduser().absolute()
    try:
        return Path(str(resources.files("pyspec.models")))
    except ModuleNotFoundError as error:
        raise ModelNotFound(
            "the list of known models (pyspec.models) is not installed",
            "reinstall pyspec, or set PYSPEC_MODELS to its models folder",
        ) from error


@cache
def drafts_folder() -> Path | None:
    """Return the folder of the models' own package; None if it is not installed."""
    try:
        found = metadata.distribution(DRAFTS).locate_file(DRAFTS.replace("-", "_"))
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found))


def shipped_folders() -> list[Path]:
    """Return the folders of shipped models, the manifest's first."""
    return [folder for folder in (models_folder(), drafts_folder()) if folder is not None]


def shipped_file(name: str) -> Path | None:
    """Return a file that ships with pyspec, or was fetched instead; None if it is not here."""
    places = [folder / name for folder in (*shipped_folders(), models_dir())]
    return next((path for path in places if path.is_file()), None)


def came_with(draft: Path, suffix: str) -> Path:
    """Return the file with this suffix that came with a draft: beside it, or for a shipped draft else beside the manifest."""
    beside = draft.with_suffix(suffix)
    if beside.is_file() or draft.parent not in (*shipped_folders(), models_dir()):
        return beside
    return models_folder() / beside.name
