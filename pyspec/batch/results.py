"""Results of a batch: what an answered record is, and what of it a file shows."""

from __future__ import annotations

from typing import Any

import msgspec

from pyspec.batch.records import Failure


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one record."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class Result(msgspec.Struct, kw_only=True):
    """One record answered, or failed.

    index: place of the record among the inputs, from 0. finish_reason: "stop", "length",
    "context", or None where it failed. speculation: the verification rule and the counts of
    `pyspec.stats.Tally`.
    """

    index: int
    id: str
    prompt_sha256: str
    text: str = ""
    finish_reason: str | None = None
    usage: Usage = Usage()
    speculation: dict[str, Any] = {}
    error: Failure | None = None


ABOUT_THE_TEXT = ("verification", "relaxed", "relaxed_nats")
"""What of `speculation` tells about the text. The rest tells how it was computed: rounds and drafted
tokens depend on the clock, on the neighbours in a batch and on where a run was interrupted."""


def public(result: Result, run: str, *, counts: bool = False) -> bytes:
    """The line of a result in the output file, newline included; `run` names models and options.

    counts: with all counts of speculation, which makes two runs' files differ.
    """
    block = result.speculation
    if not counts:
        block = {key: block[key] for key in ABOUT_THE_TEXT if key in block}
    line = {
        "id": result.id,
        "prompt_sha256": result.prompt_sha256,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "usage": result.usage,
        "speculation": block,
        "error": result.error,
        "run": run,
    }
    return msgspec.json.encode(line) + b"\n"
