"""What the search for drafts adds to startup: with models of other programs on the machine, and without any.

    python bench/startup.py MODEL [--files 60] [--repeat 7] [--out FOLDER]

MODEL is one that no draft ships for. In a home folder of its own the script lays out files for ollama, LM Studio, the hub's cache
and llama.cpp's, each with the header and vocabulary of `--like`, small enough to draft for MODEL, and with holes for weights.
None of them may match MODEL's vocabulary, so all are read. Fresh processes load MODEL with `--draft auto`, with and without these
files in turns. The first start, which tries the model and reads headers for as long as a start may, is reported separately from
those after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from common import Made, arguments, in_turns, keep, made_by, page_of

from pyspec.measure.records import ModelFile, model_file
from pyspec.measure.report import table
from pyspec.store.gguf import parse_header
from pyspec.store.locate import resolve

NONE, FILES = "none", "files"
HEAD = ("files of other programs", "first start, ms", "later, median", "range")
OPTIONS = {"like": "smollm2-companion", "files": 60, "repeat": 7, "out": None}

START = """
import sys, time
from pyspec import SpeculativeLlama
imported = time.perf_counter()
llm = SpeculativeLlama(sys.argv[1], n_ctx=512, draft="auto", verbose=False)
print(1e3 * (time.perf_counter() - imported))
"""


def lay_out(home: Path, like: Path, n_files: int) -> None:
    """Write files for the four programs in turn, with different sizes."""
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


def measure(model: Path, like: Path, n_files: int, repeat: int) -> dict[str, list[float]]:
    """Milliseconds of every start, beginning with the first, without files and with them in turns."""
    with TemporaryDirectory() as folder:
        homes = {name: Path(folder, name) for name in (NONE, FILES)}
        for home in homes.values():
            home.mkdir()
        lay_out(homes[FILES], like, n_files)
        return in_turns(homes, repeat + 1, lambda name: start(homes[name], model))


class Startup(Made):
    """Milliseconds of every start, beginning with the first, by whether there were files."""

    target: ModelFile
    like: str
    files: int
    starts: dict[str, list[float]]

    @property
    def added(self) -> float:
        """Milliseconds that the files add to a later start: the median over neighbouring pairs."""
        pairs = zip(self.starts[NONE][1:], self.starts[FILES][1:], strict=True)
        return median(with_files - without for without, with_files in pairs)

    def table(self) -> str:
        """The first and the later starts, without files and with them."""
        rows = []
        for name, (first, *later) in self.starts.items():
            middle, least, most = (f"{of(later):.0f}" for of in (median, min, max))
            rows.append([name, f"{first:.0f}", middle, f"{least} to {most}"])
        return table(HEAD, rows)

    def page(self) -> str:
        """The title, a description, the table, and what the files add."""
        made = (
            f"{self.made} Target {self.target.name}, sha256 {self.target.sha256}; "
            f"{self.files} files like {self.like}, {len(self.starts[NONE]) - 1} later starts each way."
        )
        said = f"{self.files} files add {self.added:.0f} ms to a later start (median of pairs)."
        about = (__doc__ or "").rpartition("\n\n")[2]
        return page_of("Starts beside other programs' files", about, made, self.table(), said)


def main(words: Sequence[str] | None = None) -> None:
    """Lay out the files, start in turns, and print the page; with --out, also store it."""
    options = arguments(__doc__, words, "model", **OPTIONS)
    model, like = resolve(options.model), resolve(options.like)
    starts = measure(model, like, options.files, options.repeat)
    found = Startup(*made_by("startup", words), model_file(model), like.name, options.files, starts)
    print(found.page())
    if options.out:
        keep(found, options.out / "startup.json")


if __name__ == "__main__":
    main()
