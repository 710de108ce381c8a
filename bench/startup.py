"""What looking for drafts adds to a start: models of other programs on the machine, and none.

    python bench/startup.py MODEL [--files 60] [--runs 7]

MODEL is one that no draft ships for. In a home of its own the script lays out files for ollama, LM Studio, the hub's cache and
llama.cpp's, each with the header and vocabulary of `--like` and holes for weights; none may draft for MODEL, so all are read.
Fresh processes load MODEL with `--draft auto`, with and without them in turns; the first start with the files, which reads their
headers, is told apart from those after it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspec.store.gguf import parse_header
from pyspec.store.locate import resolve

START = """
import sys, time
from pyspec import SpeculativeLlama
imported = time.perf_counter()
llm = SpeculativeLlama(sys.argv[1], n_ctx=512, draft="auto", verbose=False)
print(1e3 * (time.perf_counter() - imported))
"""


def lay_out(home: Path, like: Path, n_files: int) -> None:
    """Files of the four programs in turn, of different sizes."""
    header = parse_header(like)
    first = min(tensor.offset for tensor in header.tensors)
    size = max(tensor.offset + tensor.nbytes for tensor in header.tensors)
    with like.open("rb") as file:
        head = file.read(first)
    for i in range(n_files):
        path = _place(home, i)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(size + i)


def _place(home: Path, i: int) -> Path:
    name = f"model-{i}-Q4_K_M.gguf"
    if i % 4 == 0:
        return home / ".lmstudio/models/owner" / f"repo-{i}-GGUF" / name
    if i % 4 == 1:
        return home / f".cache/huggingface/hub/models--owner--repo-{i}-GGUF/snapshots/0" / name
    if i % 4 == 2:
        return home / ".cache/llama.cpp" / f"owner_repo-{i}_{name}"
    return _ollama(home / ".ollama/models", i)


def _ollama(root: Path, i: int) -> Path:
    digest = f"{i:064x}"
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest = root / "manifests/registry.ollama.ai/library" / f"model-{i}" / "latest"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": [layer]}))
    return root / "blobs" / f"sha256-{digest}"


def start(home: Path, model: Path) -> float:
    """Milliseconds of a load in a fresh process."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "OLLAMA", "LLAMA_", "XDG_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", START, str(model)], check=True, capture_output=True, text=True,
        env=kept | {"HOME": str(home), "PYSPEC_CACHE": str(home / "pyspec")},
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def main(argv: Sequence[str] | None = None) -> None:
    """Lay out, start in turns, and say what the files add."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument(
        "--like", default="smollm2-companion", help="whose header; small enough to draft for MODEL"
    )
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--runs", type=int, default=7)
    asked = parser.parse_args(argv)
    model, like = resolve(asked.model), resolve(asked.like)
    folder = Path(tempfile.mkdtemp())
    try:
        homes = {"none": folder / "none", "files": folder / "files"}
        for home in homes.values():
            home.mkdir()
        lay_out(homes["files"], like, asked.files)
        first = {name: start(home, model) for name, home in homes.items()}
        times: dict[str, list[float]] = {name: [] for name in homes}
        for _ in range(asked.runs):
            for name, home in homes.items():
                times[name].append(start(home, model))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, found in times.items():
        middle = statistics.median(found)
        print(
            f"{name:<6} first {first[name]:7.0f} ms, later {middle:7.0f} ms ({min(found):.0f} to {max(found):.0f})"
        )
    added = statistics.median(b - a for a, b in zip(times["none"], times["files"], strict=True))
    print(f"{asked.files} files add {added:.0f} ms to a later start")


if __name__ == "__main__":
    main()
