"""Files on the Hugging Face hub, through `huggingface_hub` where it is installed."""

from __future__ import annotations

import errno
import importlib
import re
from pathlib import Path
from typing import Any

from pyspec.errors import FetchError
from pyspec.store.cursor import show
from pyspec.store.manifest import Entry, HuggingFace

__all__ = ["DISK_ERRNOS", "PREFIX", "fetch_hub", "parse_hub_name"]

PREFIX = "hf:"
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<path>[\w.-]+(?:/[\w.-]+)*\.gguf)(?:@(?P<revision>[\w.-]+))?"
)


def parse_hub_name(name: str) -> Entry | None:
    """Makes an entry of `hf:OWNER/REPO/FILE.gguf[@REVISION]`, or None for any other name.

    Its size and hash are not known beforehand; the hub's own hash is checked instead.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        return None
    revision = match["revision"] or "main"
    flat = "--".join([*match["repo"].split("/"), revision, *match["path"].split("/")])
    return Entry(
        name=name,
        role="target",
        file=flat,
        size=0,
        sha256="",
        licence="see the repository",
        source=HuggingFace(match["repo"], match["path"], revision),
    )


def fetch_hub(source: HuggingFace, work: Path) -> tuple[Path, str]:
    """Downloads one file into `work`; returns it and the sha256 the hub states, or "".

    Raises FetchError, also when `huggingface_hub` is not installed.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise FetchError(
            f"{source.repo} is on the Hugging Face hub and huggingface_hub is not installed",
            "pip install 'pyspec-llama[hub]'",
        ) from error
    try:
        url = hub.hf_hub_url(source.repo, source.path, revision=source.revision)
        etag = hub.get_hf_file_metadata(url).etag or ""
        got = hub.hf_hub_download(
            source.repo, source.path, revision=source.revision, local_dir=str(work)
        )
    except Exception as error:  # the hub's own classes are not ours to list
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise  # has one place, in fetch.py; the hub's network errors are OSErrors too
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"the hub did not give {source.repo}/{source.path}"
        raise FetchError(f"{what}: {show(reason, 200)}", "check name and network") from error
    return Path(got), etag if re.fullmatch(r"[0-9a-f]{64}", etag) else ""
