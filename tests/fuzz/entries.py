"""Ways into the package that a damaged file takes: each loads it and answers, or raises one of pyspec's own exceptions.

The trial of a file is a few decodes; what comes behind it here is more than that, and of every kind that a user asks for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from helpers.make_gguf import read

from pyspec.errors import PyspecError

TEXT = "a b \0 é \ufffd"
LONG = "abcdefgh " * 12
SMALL: dict[str, Any] = {"n_threads": 1, "n_batch": 32, "companion": "none"}


def _class(path: Path, **options: Any) -> Any:
    from pyspec.llama.speculative import SpeculativeLlama

    return SpeculativeLlama(str(path), **{"n_ctx": 64, "draft": "lookup", **SMALL, **options})


def _tolerate(call: Callable[[], object]) -> None:
    with contextlib.suppress(PyspecError):
        call()


def by_class(path: Path) -> str:
    with _class(path) as llm:
        llm.create_completion("a", max_tokens=2)
        _tolerate(lambda: llm.create_completion(TEXT, max_tokens=2))
        _tolerate(
            lambda: llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2)
        )
    return "answered"


def by_side(path: Path) -> str:
    with _class(path.with_name("target"), draft=str(path), length="fixed:3") as llm:
        llm.create_completion("abcab", max_tokens=6, temperature=0.0)
    return "answered"


def by_batch(path: Path, **options: Any) -> str:
    """Some records at once; one that fails is its own failure."""
    from pyspec.batch import Batch, Settings

    made = {"draft": "lookup", "n_ctx": 128, "parallel": 3, "length": "fixed:3", **SMALL, **options}
    with Batch(str(path), settings=Settings(max_tokens=8, raw=True), **made) as batch:
        results = list(batch.run(["abcab", LONG, TEXT, "", "b" * 200]))
    return "answered" if any(result.error is None for result in results) else "refused"


def _drafted(path: Path, draft: Path | str) -> str:
    """Answers with drafts that read states: greedy and drawn, short texts and one beyond the window, one after another."""
    with _class(path, n_ctx=192, draft=str(draft), length="fixed:5") as llm:
        for text, temperature in (("abcab", 0.0), (LONG, 0.0), ("b", 1.0), (LONG + "b", 0.9)):
            llm.create_completion(text, max_tokens=12, temperature=temperature)
        _tolerate(lambda: llm.create_completion(TEXT, max_tokens=4))
    return "answered"


def as_adapter(path: Path) -> str:
    with _class(path.with_name("target"), lora_path=str(path), n_ctx=128) as llm:
        llm.create_completion(LONG, max_tokens=8)
        llm.create_completion("abcab", max_tokens=8, temperature=0.0)
    return "answered"


def with_overrides(path: Path) -> str:
    """A sound model, of whose header the file replaces values."""
    with _class(path.with_name("target"), kv_overrides=json.loads(path.read_bytes())) as llm:
        llm.create_completion("abcab", max_tokens=4, temperature=0.0)
        _tolerate(lambda: llm.create_completion(TEXT, max_tokens=4))
    return "answered"


TEXTS = (
    "a", "aaaaaaa a", "\u00e9a\u00e9", "\u00c3", "\u00e8 \u4e16\u754c", " ", "\n", "a\0b", "\U0010ffff\u0301\u200d",
    "".join(map(chr, range(1, 0x250))), "\u00e9" * 3000,
)  # fmt: skip
BYTES = (b"\xc3", b"a\xc3\xa9\xe9", b"\xff\xfe\xfd", b"\xf7\xbf\xbf\xbf", bytes(range(256)))


def by_texts(path: Path) -> str:
    with _class(path) as llm:
        for text in (*(text.encode() for text in TEXTS), *BYTES):
            for special in (False, True):
                tokens = llm.tokenize(text, add_bos=False, special=special)
                llm.detokenize(tokens)
        for text in ("a", TEXT):
            _tolerate(lambda text=text: llm.create_completion(text, max_tokens=4))  # type: ignore[misc]
    return "answered"


def as_vocabulary(path: Path) -> str:
    from pyspec.engine.target import TargetLlama

    _, text = read(path).kv["general.description"]
    llm = TargetLlama(str(path), vocab_only=True, verbose=False)
    try:
        for special in (False, True):
            llm.detokenize(llm.tokenize(text.encode(), add_bos=special, special=special))
    finally:
        llm.close()
    return "answered"


Entry = Callable[[Path], str]

FIRST: dict[str, dict[str, Entry]] = {
    "target": {"class": by_class},
    "head": {"head": lambda path: _drafted(path.with_name("beside_head"), path)},
    "mtp": {"mtp": partial(_drafted, draft="mtp"), "auto": partial(_drafted, draft="auto")},
    "lora": {"lora": as_adapter},
    "charsmap": {"texts": by_texts},
    "override": {"override": with_overrides},
    "words": {"words": as_vocabulary},
}
"""What each file goes through, by its kind."""

THEN: dict[str, dict[str, Entry]] = {
    "target": {"draft": by_side, "batch": by_batch},
    "head": {"batch": lambda path: by_batch(path.with_name("beside_head"), draft=str(path))},
    "mtp": {"batch": partial(by_batch, draft="mtp")},
}
"""What those that were answered go through as well: what is refused is refused by the same lines everywhere."""
