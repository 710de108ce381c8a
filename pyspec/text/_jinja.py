"""A child process that renders chat templates under limits of time and memory, since a template is a program. Run by path.

    python -I -S _jinja.py SYS_PATH_JSON ROOM

jinja2 is its only third-party import, because the first request waits for the process to start. ROOM is how many bytes of
memory it may take beyond what it uses once started. Each line on stdin is one task in JSON:

    {"name", "source", "variables"}     a template, which it compiles; it says nothing
    {"name", "now", "arguments"}        a conversation, which it renders. It answers with a line on stdout: {"text"}, {"raised"}
                                        with the message that the template itself raised, {"failed"} with the error inside it,
                                        or {"error"}, which says why the template is unusable

A task that takes more than SECONDS of CPU time ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":  # the parent's import path, and never the working directory's files
    sys.path[:] = json.loads(sys.argv[1])

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

SECONDS = 2.0
MAX_TEXT = 1 << 20  # longest prompt in characters, beyond eight times the request's length


class Refusal(jinja2.TemplateError):  # type: ignore[misc, unused-ignore]  # without types where mypy runs
    """The template called `raise_exception`."""


class GenerationMarks(Extension):  # type: ignore[misc, unused-ignore]
    """`{% generation %}` marks what a model is trained on; for a prompt only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the statements between the marks."""
        next(parser.stream)
        return cast(
            "list[nodes.Node]", parser.parse_statements(("name:endgeneration",), drop_needle=True)
        )


class Attributes(Namespace):  # type: ignore[misc, unused-ignore]
    """`namespace` that refuses names with a leading underscore: those lead into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *positional = args
        named = dict(*positional, **kwargs)
        for name in named:
            _check(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check(name)
        super().__setitem__(name, value)


def _check(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"an attribute cannot be called {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict` as a plain function, so that templates cannot reach the class's attributes."""
    return dict(*args, **kwargs)


def _refuse(message: object) -> None:
    raise Refusal(str(message))


class Renderings:
    """Compiled templates by name, in the same environment as in `transformers`."""

    def __init__(self) -> None:
        self._environment = environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationMarks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._date
        environment.globals["dict"] = _make_dict
        environment.globals["namespace"] = Attributes
        self._sources: dict[str, tuple[str, dict[str, Any]]] = {}  # with their variables
        self._templates: dict[str, jinja2.Template] = {}
        self._now = 0.0

    def _date(self, form: str) -> str:
        return datetime.fromtimestamp(self._now).strftime(form)  # noqa: DTZ006 - local

    def add(self, name: str, source: str, variables: dict[str, Any]) -> None:
        """Compile a template before it is needed. What is wrong with it is said where it is."""
        self._sources[name] = source, variables
        self._templates.pop(name, None)
        with contextlib.suppress(Exception):
            self._compiled(name)

    def answer(self, line: str, name: str, now: float, arguments: dict[str, Any]) -> dict[str, str]:
        """Render a conversation and return the reply. line: its task."""
        self._now = now
        try:
            # Llama 3.1 and 3.3 have an old date otherwise
            given = {"date_string": self._date("%d %b %Y"), **arguments}
            text = str(self._compiled(name).render(given))
        except Refusal as error:
            return {"raised": str(error)[:1000]}
        except MemoryError:
            return {"error": "it needs too much memory"}
        except Exception as error:  # noqa: BLE001 - a template may raise anything, RecursionError too
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            return {"failed" if name in self._templates else "error": reason}
        if len(text) > MAX_TEXT + 8 * len(line):
            return {"error": "its text is too long"}
        return {"text": text}

    def _compiled(self, name: str) -> jinja2.Template:
        if name not in self._templates:
            self._templates[name] = self._environment.from_string(*self._sources[name])
        return self._templates[name]


def _limit(room: int) -> None:
    """Forbid core files and writing files, and limit memory to `room` bytes beyond what is in use."""
    with contextlib.suppress(ValueError, OSError):
        most = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
        with contextlib.suppress(OSError):  # other systems do not say what is in use
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
            most[resource.RLIMIT_AS] = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") + room
        for kind, size in most.items():
            _, hard = resource.getrlimit(kind)
            if hard == resource.RLIM_INFINITY or hard > size:
                resource.setrlimit(kind, (size, size))


def main(room: int) -> None:
    """Answer until the input ends."""
    # signals are for the parent, which may have answers to finish
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    renderings = Renderings()
    _limit(room)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the system ends this process behind that
        task = json.loads(line)
        if "source" in task:
            renderings.add(**task)
        else:
            out.write(json.dumps(renderings.answer(line, **task)) + "\n")
            out.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(int(sys.argv[2]))
