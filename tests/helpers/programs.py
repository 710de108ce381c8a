"""Folders as other programs lay them out."""

import hashlib
import json
from pathlib import Path


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
