"""Known models, the cache of fetched files, and the checks before a file is trusted."""

from __future__ import annotations

from pyspec.store.cache import file_sha256
from pyspec.store.check import check_model
from pyspec.store.drafts import fitting
from pyspec.store.gguf import Header
from pyspec.store.header import read_header
from pyspec.store.locate import resolve
from pyspec.store.manifest import Entry, Manifest, load_manifest

__all__ = [
    "Entry",
    "Header",
    "Manifest",
    "check_model",
    "file_sha256",
    "fitting",
    "load_manifest",
    "read_header",
    "resolve",
]
