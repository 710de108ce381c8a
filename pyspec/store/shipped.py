"""Files that ship with pyspec: beside the manifest in a clone and what is built from one, else in a package of their own."""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata, resources
from pathlib import Path

from pyspec.errors import ModelNotFound
from pyspec.store.files import models_dir

DRAFTS = "pyspec-llama-drafts"
"""The distribution of the models that ship, `models/pyproject.toml`: a published wheel of pyspec holds none of them."""


def models_folder() -> Path:
    """The folder of the manifest: PYSPEC_MODELS, or the installed package `pyspec.models`."""
    override = os.environ.get("PYSPEC_MODELS")
    if override:
        return Path(override).expanduser().absolute()
    try:
        return Path(str(resources.files("pyspec.models")))
    except ModuleNotFoundError as error:
        raise ModelNotFound(
            "the list of known models (pyspec.models) is not installed",
            "install pyspec again, or set PYSPEC_MODELS to its models folder",
        ) from error


@cache
def drafts_folder() -> Path | None:
    """Where the models' own package lies; None where it is not installed."""
    try:
        found = metadata.distribution(DRAFTS).locate_file(DRAFTS.replace("-", "_"))
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found))


def shipped_folders() -> list[Path]:
    """The folders whose models ship with pyspec, the manifest's first."""
    return [folder for folder in (models_folder(), drafts_folder()) if folder is not None]


def shipped_file(name: str) -> Path | None:
    """A file that ships with pyspec, or was fetched because it does; None where it is not here."""
    places = [folder / name for folder in (*shipped_folders(), models_dir())]
    return next((path for path in places if path.is_file()), None)


def came_with(draft: Path, suffix: str) -> Path:
    """The file of this suffix that came with a draft: beside it, for a shipped one beside the manifest at last."""
    beside = draft.with_suffix(suffix)
    if beside.is_file() or draft.parent not in (*shipped_folders(), models_dir()):
        return beside
    return models_folder() / beside.name
