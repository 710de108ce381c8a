"""A model's chat templates, the choice among them, and the child process that renders them (`_jinja.py`)."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspec.errors import InputError, OptionError, TemplateError
from pyspec.machine.files import read_named
from pyspec.text.messages import SYSTEM_ROLES, TemplateInput

KEY = "tokenizer.chat_template"
NONE = "none"
DEFAULT, TOOL_USE = "default", "tool_use"

PLAIN = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}"
    "{%- elif message.role == 'user' -%}{{ 'User: ' + message.content + '\n' }}"
    "{%- elif message.role == 'assistant' -%}{{ 'Assistant: ' + message.content | trim + '\n' }}"
    "{%- else -%}{{ raise_exception('a ' + message.role + ' turn has no place here') }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"
)
"""For models without a template: a dialogue in plain text."""

PLAIN_STOP = ("\nUser:",)
"""Ends an answer under the plain template, where the model would go on to write the user's turn."""

MAX_BYTES = 1 << 20  # largest file of a template; a header's longest text has as many

_SPECIAL = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
"""Template variables, and the names of their token ids in GGUF keys."""


def templates_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a file's templates by name; the unnamed one is `default` and comes first."""
    named = {
        key.removeprefix(f"{KEY}."): text
        for key, text in metadata.items()
        if key.startswith(f"{KEY}.")
    }
    return {DEFAULT: metadata[KEY], **named} if KEY in metadata else named


def choose(found: Mapping[str, str], choice: str | None) -> tuple[dict[str, str], str]:
    """Return the templates in force and their name. Raises OptionError if `choice` is neither a template's name nor a file."""
    if choice == NONE or (choice is None and not found):
        return {NONE: PLAIN}, NONE
    if choice is None:
        return dict(found), next(iter(found))
    if choice in found:
        return {choice: found[choice]}, choice
    try:
        return {choice: read_named(Path(choice), MAX_BYTES).decode()}, choice
    except (OSError, UnicodeError, ValueError) as error:
        names = ", ".join([*found, NONE])
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise OptionError(
            f"there is no chat template {choice[:80]!r}: {reason}",
            f"name a file, or one of: {names}",
        ) from None


def variables_of(llm: Any) -> dict[str, str]:
    """Return the texts of special tokens by the names that templates use."""
    found, text = {}, llm._model.token_get_text
    for name, key in _SPECIAL.items():
        id_ = llm.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if id_ is not None and 0 <= int(id_) < llm.n_vocab():
            found[name] = text(int(id_))
    for name, token in (("bos_token", llm.token_bos()), ("eos_token", llm.token_eos())):
        found.setdefault(name, text(token) if token >= 0 else "")
    return found


_SCRIPT = Path(__file__).with_name("_jinja.py")

ROOM = 256 << 20  # memory limit of the child for rendering, bytes
TIMEOUT_S = 20.0
"""How long to wait for a reply. The child limits its own CPU time, so this matters only on an overloaded machine."""


class Renderer:
    """A child process that renders templates. `start` or the first rendering starts it; `close` or collection ends it.

    If it dies, the next rendering starts another. Safe from any thread.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._lines: dict[str, str] = {}  # of the templates

    def start(self) -> None:
        """Start the child without waiting for it."""
        with self._lock:
            self._started()

    def add(self, name: str, source: str, variables: Mapping[str, str]) -> None:
        """Add a template under a name. Whether it works is known only when it is rendered."""
        line = json.dumps({"name": name, "source": source, "variables": dict(variables)})
        with self._lock:
            self._lines[name] = line
            if self._child is not None:
                self._send(self._child, line)

    def render(self, name: str, arguments: Mapping[str, Any], now: float) -> str:
        """Return a conversation's text. now: the time for `strftime_now`, in seconds since 1970.

        Raises InputError if the template refuses the conversation or fails at it, TemplateError if the template is unusable.
        """
        try:
            line = json.dumps({"name": name, "now": now, "arguments": arguments})
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the conversation cannot be written as JSON: {error}") from None
        with self._lock:
            child = self._started()
            self._send(child, line)
            reply = self._reply(child)
        if isinstance(reply.get("text"), str):
            return str(reply["text"])
        for key, does in (("raised", "refuses"), ("failed", "fails at")):
            if key in reply:
                raise InputError(
                    f"the model's chat template {does} this conversation: {reply[key]}",
                    "change the order of its turns, or name another --chat-template",
                )
        raise TemplateError(
            f"the model's own chat template cannot be used: {reply.get('error') or _SLOW}",
            "name another with --chat-template FILE, or use --chat-template none for plain text",
        )

    def close(self) -> None:
        with self._lock:
            self._end()

    # -- with the lock held ------------------------------------------------------------------------

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        path = json.dumps([p or str(Path.cwd()) for p in sys.path])
        self._child = child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), path, str(ROOM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=Path(sys.executable).anchor,
        )  # fmt: skip
        self._ended = weakref.finalize(self, _end, child)
        for line in self._lines.values():
            self._send(child, line)
        return child

    @staticmethod
    def _send(child: subprocess.Popen[bytes], line: str) -> None:
        """Send the child a line. It reads unless it is at work, and it limits the time of that itself."""
        # if it has died, its reply will be missing
        with contextlib.suppress(OSError), _deadline(child):
            if child.stdin is not None:
                child.stdin.write(line.encode() + b"\n")
                child.stdin.flush()

    def _reply(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Read a line from the child; end the child if none comes."""
        try:
            with _deadline(child):
                reply = json.loads(child.stdout.readline() if child.stdout else b"")
        except (OSError, ValueError, RecursionError):
            reply = None
        if isinstance(reply, dict):
            return reply
        self._end()
        return {}

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            self._ended()


@contextlib.contextmanager
def _deadline(child: subprocess.Popen[bytes]) -> Iterator[None]:
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_SLOW = "it takes too long or too much memory"


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError), child:
        child.kill()


# -- completeness of a rendering -----------------------------------------------------------------------------------------

_INPUT_ROLES = ("user", "tool", "function", *SYSTEM_ROLES)
_SWITCH = re.compile(r"/(?:no_?)?think\b")  # templates read these switches and remove them


def missing(text: str, inputs: TemplateInput) -> int:
    """Count what a rendering lacks or distorts of its conversation: 0 if it is complete.

    This is exact for a conversation with a word of its own in each place; in others, words may stand elsewhere too.
    """
    messages = inputs["messages"]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    tools = [tool.get("function", tool) for tool in inputs.get("tools") or ()]
    wanted = [function["name"] for function in calls]
    wanted += [tool.get(key) for tool in tools for key in ("name", "description")]
    wanted += [m["content"] for m in messages if m["role"] in _INPUT_ROLES or m.get("tool_calls")]
    arguments = [function["arguments"] for function in calls]
    lost = sum(not _is_in(text, want) for want in wanted if isinstance(want, str))
    lost += sum(str(each) in text for each in arguments if each and isinstance(each, dict))
    # the last two find values that the template wrote as Python does
    return lost + (text.count("None") if any(m["content"] is None for m in messages) else 0)


def _is_in(text: str, wanted: str) -> bool:
    pieces = [piece.strip() for piece in _SWITCH.split(wanted)]
    return all(
        piece in text or json.dumps(piece, ensure_ascii=False)[1:-1] in text for piece in pieces
    )
