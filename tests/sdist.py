"""The chat templates that llama.cpp's source brings, out of llama-cpp-python's sdist: fetched once, kept in a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import llama_cpp
import platformdirs
import pytest

_INSIDE = "/vendor/llama.cpp/models/templates/"
_SECONDS = 400


@cache
def templates() -> dict[str, str]:
    """Templates by their files' names; the test is skipped where they cannot be had, and fails in CI."""
    folder = platformdirs.user_cache_path("pyspec-tests") / f"templates-{llama_cpp.__version__}"
    if not folder.is_dir():
        try:
            _fetch(folder)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"the sdist of llama-cpp-python cannot be had: {type(error).__name__}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        archive = _download(Path(work))
        found = Path(work) / "found"
        found.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                data = tar.extractfile(member) if _INSIDE in member.name else None
                if data is not None and name.endswith(".jinja"):
                    (found / name).write_bytes(data.read())
        found.rename(folder)


def _download(work: Path) -> Path:
    """The sdist, by pip; what pip has to build for its metadata is here already in an environment for development."""
    wanted = f"llama-cpp-python=={llama_cpp.__version__}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "-d",
    ]
    for more in (["--no-build-isolation"], []):
        done = subprocess.run(
            [*command, str(work), *more, wanted], check=False, timeout=_SECONDS, capture_output=True
        )
        if found := list(work.glob("*.tar.gz")):
            return found[0]
    raise subprocess.CalledProcessError(done.returncode, command)
