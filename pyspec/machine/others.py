"""Finds models on this machine: of ollama, LM Studio, the Hugging Face cache and llama.cpp's cache, and shipped ones.

Each program's own environment variables are followed first. Nothing is ever written there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import platformdirs

from pyspec.errors import ModelNotFound
from pyspec.machine.files import expanded, first_part, models_dir, parse, parts_of

_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|FP?16|FP?32|MXFP4\w*|NVFP4))(?=[-.]|$)",
    re.IGNORECASE,
)
PART = re.compile(r"-\d{5}-of-\d{5}(?=(\.gguf)?$)", re.IGNORECASE)  # the end of a part's name
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")  # types of a repository, best first
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DRAFT_LAYER = "application/vnd.ollama.image.draft"
_PARAMS_LAYER = "application/vnd.ollama.image.params"
_DRAFT_FILE = re.compile(
    r"^mtp[-_.]|[-_.]mtp(?=[-_.]|$)|draft|assistant|eagle-?3|dflash|dspark", re.IGNORECASE
)
"""Matches names of draft files kept beside a model."""
_SIZE = re.compile(r"(?<![0-9.x])(?:\d+x)?\d+(?:\.\d+)?[bm](?![a-z0-9])", re.IGNORECASE)
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_SNAPSHOT = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/[^/]+/(.+)$", re.DOTALL)
_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalModel:
    """A model's file."""

    name: str  # in the program that owns it
    path: Path
    origin: str  # that program
    aliases: tuple[str, ...] = ()
    home: str = ""  # the repository or manifest it belongs to; empty if unknown
    role: str = "target"  # what pyspec's list of models has it for, and says of it
    licence: str = ""
    summary: str = ""


def found_elsewhere() -> list[LocalModel]:
    """List all models of other programs, by program and name; an unreadable folder counts as empty."""
    finders = (ollama, lm_studio, hugging_face, llama_cpp)
    return [found for finder in finders for found in sorted(finder(), key=lambda f: f.name)]


def quant_of(file: str) -> str:
    """Return the type at the end of a file name, such as Q4_K_M, or the empty string."""
    found = _QUANT.findall(PART.sub("", file.removesuffix(".gguf")))
    return found[-1].upper() if found else ""


def sizes_of(name: str) -> set[str]:
    """Return the parameter counts in a name, such as 3b, 270m or 8x7b; also those after a letter, as in 30B-A3B and E4B."""
    return {size.lower() for size in _SIZE.findall(name)}


def is_draft_file(repo: str, file: str) -> bool:
    """Whether a file drafts for the model of its repository, judged by their names."""
    stem = PART.sub("", Path(file).name.removesuffix(".gguf"))
    return bool(_DRAFT_FILE.search(stem)) and not _DRAFT_FILE.search(repo.partition("/")[2])


def gguf_names(repo: str, file: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a repository's file, OWNER/REPO:TYPE, and its aliases.

    A draft beside the repository's model is named only by its file, since the repository's name means the model.
    """
    stem = PART.sub("", Path(file).name.removesuffix(".gguf"))
    full = f"{repo}/{file}"
    if is_draft_file(repo, file):
        return full, (stem, Path(file).name)
    name = f"{repo}:{quant}" if (quant := quant_of(file)) else full
    short = repo.partition("/")[2]
    plain = re.sub(r"-gguf$", "", short, flags=re.IGNORECASE)
    return name, (stem, Path(file).name, full, repo, short, plain)


def name_of(path: Path) -> str:
    """Return the name by which users know a model's file: its program's name if that differs, else the file's stem."""
    return owners_name(path) or PART.sub("", path.stem)


def file_name_of(path: Path) -> str:
    """Return the same for a sentence about the file, with the file's suffix."""
    return owners_name(path) or path.name


@lru_cache
def owners_name(path: Path) -> str:
    """Return the real name of a file named by a hash or kept in a hub cache, from its path; empty for others."""
    if _DIGEST.fullmatch(path.name):
        found = [each.name for each in _ollama_at(path.parent.parent) if each.path == path]
        return min(found, key=lambda name: (name.endswith(":latest"), name), default="")
    if path.parent == models_dir() and (ours := hub_file(path)) is not None:
        return gguf_names(*ours[:2])[0]
    if (theirs := _SNAPSHOT.search(path.as_posix())) is not None:
        return gguf_names(f"{theirs[1]}/{theirs[2]}", theirs[3])[0]
    return ""


def hub_file(path: Path) -> tuple[str, str, str] | None:
    """Return repository, file and revision of a hub file in our cache, OWNER--REPO--REVISION--FILE; None for others.

    In FILE, "--" stands for "/"; "==" stands for "--" everywhere.
    """
    parts = [part.replace("==", "--") for part in path.name.split("--")]
    if len(parts) < 4:
        return None
    owner, repo, revision, *file = parts
    return f"{owner}/{repo}", "/".join(file), revision


def of_repo(repo: str, file: str, path: Path, origin: str, *aliases: str) -> LocalModel:
    """Return the model of a repository's file, with more aliases than the repository gives it."""
    name, own = gguf_names(repo, file)
    return LocalModel(name, path, origin, (*own, *aliases), repo)


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable, "").strip()
    return expanded(value) if value else None


# -- ollama ------------------------------------------------------------------------------------------------------------


def ollama() -> Iterator[LocalModel]:
    """Yield ollama's models: manifests HOST/NAMESPACE/MODEL/TAG name them, and blobs named by hash hold the weights."""
    shared = Path("/usr/share/ollama/.ollama/models")
    named = _folder("OLLAMA_MODELS")
    for root in [named] if named else [Path.home() / ".ollama/models", shared]:
        yield from _ollama_at(root)


def _ollama_at(root: Path) -> Iterator[LocalModel]:
    for manifest, name, aliases in _manifests(root):
        if (blob := _blob(root, manifest, _MODEL_LAYER)) is not None:
            yield LocalModel(name, blob, "ollama", aliases, name)
        if (blob := _blob(root, manifest, _DRAFT_LAYER)) is not None:
            yield LocalModel(f"{name}-draft", blob, "ollama", (), name)


def _manifests(root: Path) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Yield each manifest with its model's name and its other names."""
    with suppress(OSError):
        for path in sorted(root.glob("manifests/*/*/*/*")):
            yield (path, *_ollama_names(*path.parts[-4:]))


def _ollama_names(host: str, namespace: str, model: str, tag: str) -> tuple[str, tuple[str, ...]]:
    full = f"{host}/{namespace}/{model}"
    own = "ollama" in host
    short = full if not own else model if namespace == "library" else f"{namespace}/{model}"
    others = [short] if tag == "latest" else []
    if not own:
        others.append(f"{namespace}/{model}:{tag}")
    return f"{short}:{tag}", (f"{full}:{tag}", *others)


def _blob(root: Path, manifest: Path, kind: str) -> Path | None:
    """Return the file of a manifest's first layer of this kind."""
    layers = _json(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if not isinstance(layer, dict) or layer.get("mediaType") != kind:
            continue
        digest = str(layer.get("digest", ""))
        path = root / "blobs" / digest.replace(":", "-")
        if _DIGEST.fullmatch(digest) and path.is_file():
            return path
    return None


def ollama_params(path: Path, name: str = "") -> dict[str, Any]:
    """Return the parameters, unchecked, that ollama keeps for a file, or for its model of this name; empty for other files."""
    if not _DIGEST.fullmatch(path.name):
        return {}
    root = path.parent.parent
    found = [
        (name not in (own, *others), own.endswith(":latest"), own, manifest)
        for manifest, own, others in _manifests(root)
        if _blob(root, manifest, _MODEL_LAYER) == path
    ]
    blob = _blob(root, min(found)[-1], _PARAMS_LAYER) if found else None
    return {} if blob is None else _json(blob)


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON object from an untrusted file; empty on failure."""
    try:
        with path.open("rb") as file:
            return parse(file.read(_MANIFEST_BYTES), dict[str, Any])
    except (OSError, ValueError):
        return {}


# -- LM Studio ---------------------------------------------------------------------------------------------------------


def lm_studio() -> Iterator[LocalModel]:
    """Yield LM Studio's models, files under PUBLISHER/REPOSITORY; its settings may move the folder."""
    for root in dict.fromkeys(_lm_studio_roots()):
        with suppress(OSError, ValueError):  # the settings may name what no path can be
            for path in sorted(root.glob("*/*/*.gguf")):
                if is_model(path):
                    repo = "/".join(path.parts[-3:-1])
                    yield of_repo(repo, path.name, path, "LM Studio")


def _lm_studio_roots() -> Iterator[Path]:
    homes = [Path.home() / ".lmstudio", Path.home() / ".cache/lm-studio"]
    with suppress(OSError, ValueError):
        homes.insert(0, Path((Path.home() / ".lmstudio-home-pointer").read_text("utf-8").strip()))
    for home in homes:
        moved = _json(home / "settings.json").get("downloadsFolder")
        if isinstance(moved, str) and moved:
            yield Path(moved)
        yield home / "models"


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def hugging_face() -> Iterator[LocalModel]:
    """Yield models in snapshots of repositories; the newest revision of a file counts."""
    root = _folder("HF_HUB_CACHE") or _folder("HUGGINGFACE_HUB_CACHE")
    if root is None:
        caches = _folder("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = (_folder("HF_HOME") or caches / "huggingface") / "hub"
    with suppress(OSError):
        for repository in sorted(root.glob("models--*--*")):
            owner, _, name = repository.name.removeprefix("models--").partition("--")
            yield from _snapshots(f"{owner}/{name}", repository / "snapshots")


def _snapshots(repo: str, folder: Path) -> Iterator[LocalModel]:
    seen: set[str] = set()
    revisions = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for revision in revisions:
        for path in sorted(revision.rglob("*.gguf")):
            file = path.relative_to(revision).as_posix()
            if file not in seen and is_model(path):
                seen.add(file)
                yield of_repo(repo, file, path, "Hugging Face")


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


def llama_cpp() -> Iterator[LocalModel]:
    """Yield llama.cpp's models, OWNER_REPO_FILE; manifests beside them say where the owner ends."""
    root = _folder("LLAMA_CACHE") or platformdirs.user_cache_path(
        "llama.cpp", appauthor=False, opinion=False
    )
    with suppress(OSError):
        named = (path.name.split("=") for path in root.glob("manifest=*=*=*.json"))
        repos = {f"{owner}_{repo}_": f"{owner}/{repo}" for _, owner, repo, *_ in named}
        for path in filter(is_model, sorted(root.glob("*.gguf"))):
            repo = next((r for p, r in repos.items() if path.name.startswith(p)), None)
            if repo is None:
                yield LocalModel(PART.sub("", path.stem), path, "llama.cpp", (path.name,))
                continue
            file = path.name[len(repo) + 1 :]
            yield of_repo(repo, file, path, "llama.cpp", path.stem, path.name)


def is_model(path: Path) -> bool:
    """Whether a file is a model's first or only part, with all others beside it, and not an image projector."""
    known = not path.name.lower().startswith("mmproj") and first_part(path) == path
    return known and all(part.is_file() for part in parts_of(path))


# -- models that ship with pyspec --------------------------------------------------------------------------------------

DRAFTS = "pyspec-llama-drafts"  # the distribution of the shipped models, `models/pyproject.toml`


def models_folder() -> Path:
    """Return the manifest's folder: PYSPEC_MODELS, or the installed package `pyspec.models`."""
    if override := _folder("PYSPEC_MODELS"):
        return override.absolute()
    try:
        return Path(str(resources.files("pyspec.models")))
    except ModuleNotFoundError as error:
        what = "the list of known models (pyspec.models) is not installed"
        hint = "reinstall pyspec, or set PYSPEC_MODELS to its models folder"
        raise ModelNotFound(what, hint) from error


@cache
def drafts_folder() -> Path | None:
    """Return the folder of the models' own package; None if it is not installed."""
    try:
        found = metadata.distribution(DRAFTS).locate_file(DRAFTS.replace("-", "_"))
    except metadata.PackageNotFoundError:
        return None
    return Path(str(found))


def shipped_folders() -> list[Path]:
    """Return the folders of shipped models, the manifest's first."""
    return [folder for folder in (models_folder(), drafts_folder()) if folder is not None]


def came_with(draft: Path, suffix: str) -> Path:
    """Return the file with this suffix that came with a draft: beside it, or for a shipped draft else beside the manifest."""
    beside = draft.with_suffix(suffix)
    if beside.is_file() or draft.parent not in (*shipped_folders(), models_dir()):
        return beside
    return models_folder() / beside.name
