"""Folders as other programs lay them out."""

import hashlib
import json
import os
from pathlib import Path

import platformdirs


def put(path: Path, raw: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def pulled(
    root: Path, name: str, where: str = "registry.ollama.ai/library", **layers: bytes
) -> Path:
    """What `ollama pull NAME:TAG` leaves: a manifest, and a blob for each layer. Returns that of `model`."""
    told, blobs = [], {}
    for kind, raw in layers.items():
        digest, media = hashlib.sha256(raw).hexdigest(), f"application/vnd.ollama.image.{kind}"
        told.append({"mediaType": media, "digest": f"sha256:{digest}", "size": len(raw)})
        blobs[kind] = put(root / "blobs" / f"sha256-{digest}", raw)
    manifest = json.dumps({"schemaVersion": 2, "layers": told}).encode()
    put(root / "manifests" / where / name.replace(":", "/"), manifest)
    return blobs["model"]


def snapshot(root: Path, repo: str, **files: bytes) -> Path:
    """What the hub's client leaves of files by stem: blobs, and a snapshot that links to them. Returns the first's link."""
    folder = root / f"models--{repo.replace('/', '--')}"
    put(folder / "refs/main", b"f" * 40)
    made = []
    for stem, raw in files.items():
        blob = put(folder / "blobs" / hashlib.sha256(raw).hexdigest(), raw)
        made.append(folder / "snapshots" / ("f" * 40) / f"{stem}.gguf")
        made[-1].parent.mkdir(parents=True, exist_ok=True)
        made[-1].symlink_to(os.path.relpath(blob, made[-1].parent))
    return made[0]


def named(path: Path) -> Path:
    """Move a file to where llama.cpp has models, by which its stem is a name. Returns the new path."""
    folder = platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)
    folder.mkdir(parents=True, exist_ok=True)
    return path.rename(folder / path.name)
