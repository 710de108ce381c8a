"""Child process: renders the chat template of a model file, one conversation a line.

    _render.py

Reads JSON lines: first {"template", "eos_token", "bos_token", "room": bytes of memory it may take}, then the arguments of
one rendering each. Answers each line by one: {"text"} or {"error"}. Run by path; imports no pyspec.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

MOST_TEXT = 1 << 20
"""Characters of a rendered prompt."""


def limit(room: int) -> None:
    """No files, no processes, no core file, and `room` bytes more than what is in use."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits to set
        import resource  # noqa: PLC0415 - absent on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
        used = int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def answer(formatter: Any, line: str) -> dict[str, str]:
    """One rendering."""
    try:
        text = str(formatter(**json.loads(line)).prompt)
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"text": text} if len(text) <= MOST_TEXT else {"error": "its text is too long"}


def main() -> None:
    """Answer until the input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library's own prints are no answers
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter  # noqa: PLC0415 - after the dup

    first = json.loads(sys.stdin.readline())
    limit(first["room"])
    formatter: Any = None
    try:
        formatter = Jinja2ChatFormatter(first["template"], first["eos_token"], first["bos_token"])
        reply = {"text": ""}
    except MemoryError:
        reply = {"error": "it needs too much memory"}
    except Exception as error:  # noqa: BLE001 - a template may raise anything, RecursionError too
        reply = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    while True:
        out.write(json.dumps(reply) + "\n")
        out.flush()
        line = sys.stdin.readline()
        if not line or formatter is None:
            return
        reply = answer(formatter, line)


if __name__ == "__main__":
    main()
