"""Files out of other packages' sdists, fetched once and kept in a cache: chat templates, and JSON Schema's tests."""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import platformdirs
import pytest

SUITE = "4.26.0"
"""The version of jsonschema whose sdist has the suite."""
_SECONDS = 400


@cache
def templates() -> dict[str, str]:
    """The chat templates that llama.cpp's source brings, by their files' names."""
    wanted = f"llama-cpp-python=={llama_cpp.__version__}"
    found = _files("templates", wanted, "/vendor/llama.cpp/models/templates/", ".jinja")
    return {path.stem: path.read_text(encoding="utf-8") for path in found}


@cache
def schema_cases() -> dict[str, list[dict[str, Any]]]:
    """The cases of JSON Schema's own suite for the draft 2020-12, by their files' names."""
    found = _files("suite", f"jsonschema=={SUITE}", "/json/tests/draft2020-12/", ".json")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}


def _files(kind: str, wanted: str, inside: str, ending: str) -> list[Path]:
    """Files straight in a folder of an sdist; the test is skipped where they cannot be had, and fails in CI."""
    package, _, version = wanted.partition("==")
    folder = platformdirs.user_cache_path("pyspec-tests") / f"{kind}-{version}"
    if not folder.is_dir():
        try:
            _fetch(folder, wanted, inside, ending)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"the sdist of {package} cannot be had: {type(error).__name__}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return sorted(folder.glob(f"*{ending}"))


def _fetch(folder: Path, wanted: str, inside: str, ending: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        archive = _download(Path(work), wanted)
        found = Path(work) / "found"
        found.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:
                path, _, name = member.name.rpartition("/")
                data = tar.extractfile(member) if f"{path}/".endswith(inside) else None
                if data is not None and name.endswith(ending):
                    (found / name).write_bytes(data.read())
        found.rename(folder)


def _download(work: Path, wanted: str) -> Path:
    """The sdist, by pip; what pip has to build for its metadata is here already in an environment for development."""
    package = wanted.partition("==")[0]
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package, "-d",
    ]  # fmt: skip
    for more in (["--no-build-isolation"], []):
        done = subprocess.run(
            [*command, str(work), *more, wanted], check=False, timeout=_SECONDS, capture_output=True
        )
        if found := list(work.glob("*.tar.gz")):
            return found[0]
    raise subprocess.CalledProcessError(done.returncode, command)
