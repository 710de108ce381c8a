"""The base of all subcommands: grouped help, examples, completion, and option names of other programs."""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, fields, is_dataclass
from functools import wraps
from math import isnan
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, get_type_hints

import click

from pyspec.errors import InputEncoding, OptionError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_RANGE = re.compile(r" *\[[-\d.<=]*x[-\d.<>=]*\]|; [-\d.<=]*x[-\d.<>=]*(?=\])")
"""The allowed range that click appends to an option's help; it is removed, since errors state it."""

ENVIRONMENT = (
    ("PYSPEC_CACHE", "folder of downloaded models and of facts about files"),
    ("PYSPEC_MODELS", "folder of another manifest of known models"),
    ("PYSPEC_CHATS", "folder of the log of chats and answers; empty for no log"),
    ("PYSPEC_CHAT_HISTORY", "file of lines typed in chats; empty for no history"),
    ("OLLAMA_MODELS, HF_HOME, HF_HUB_CACHE, LLAMA_CACHE", "where other programs keep models"),
    ("HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE", "access to the Hugging Face hub"),
    ("PYSPEC_API_KEY", "key that clients of `pyspec serve` must send"),
    ("NO_COLOR, FORCE_COLOR", "no colours, or colours in pipes too"),
)
"""Environment variables, as `pyspec --help` names them."""


class Option(click.Option):
    """An option of a group. aliases: names from other programs, which work but are not listed."""

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        group: str,
        aliases: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        settings.setdefault("show_default", settings.get("default") not in (None, ""))
        super().__init__([name, *names, *aliases], **settings)
        if self.metavar is None and isinstance(self.type, (type(click.INT), type(click.FLOAT))):
            self.metavar = "N" if isinstance(self.type, type(click.INT)) else "X"
        self.group = group
        self.aliases = frozenset(aliases)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        found = super().type_cast_value(ctx, value)
        if isinstance(found, float) and isnan(found):  # which is in every range of click's
            raise click.BadParameter("nan is not a number", ctx, self)
        return found

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy.copy(self)
        shown.opts = [name for name in self.opts if name not in self.aliases]
        record = super(Option, shown).get_help_record(ctx)
        if record is None:
            return None
        return record[0], _RANGE.sub("", record[1]).rstrip()


def option(group: str, *names: str, **settings: Any) -> Any:
    """Return a dataclass field that becomes an `Option` of this group, with the field's name and default."""
    empty = False if settings.get("is_flag") else () if settings.get("multiple") else None
    metadata = {"names": names, "group": group, **settings}
    return field(default=settings.get("default", empty), metadata=metadata)


def command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a subcommand. Each argument typed as a dataclass of options is built from the given options."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        hints = get_type_hints(function).items()
        kinds: dict[str, Any] = {name: kind for name, kind in hints if is_dataclass(kind)}

        @wraps(function)
        def call(**given: Any) -> Any:
            for name, kind in kinds.items():
                given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            return function(**given)

        made = click.command(cls=Subcommand, **settings)(call)
        for kind in kinds.values():
            made.params += [Option(each.name, **each.metadata) for each in fields(kind)]
        return made

    return decorate


class Subcommand(click.Command):
    """A subcommand with groups and examples in `--help`."""

    def __init__(
        self, *args: Any, examples: Sequence[tuple[str, str]] = (), **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, in order of first appearance; those without a sentence last, by name alone."""
        groups: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
        params = self.get_params(ctx)
        outputs = any(getattr(each, "group", "") == "Output" for each in params)
        others = "Output" if outputs else "Other options"
        for each in params:
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None:
                said, named = groups.setdefault(getattr(each, "group", others), ([], []))
                said.append(record) if record[1] else named.append(record[0].rpartition(", ")[2])
        for name, (said, named) in groups.items():
            with formatter.section(name):
                if said:
                    formatter.write_dl(said)
                if named:
                    formatter.write(_in_lines(named, formatter.current_indent, formatter.width))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line, what in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}$ {line}   # {what}\n")


def _in_lines(names: Sequence[str], indent: int, width: int) -> str:
    """Names of options, broken between two of them."""
    whole = "as in llama.cpp: " + ", ".join(name.replace(" ", "\xa0") for name in names)
    wrapper = TextWrapper(width, " " * indent, " " * indent, break_on_hyphens=False)
    return wrapper.fill(whole).replace("\xa0", " ") + "\n"


class _Text(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.4 on
    """Text of the command line, which must be UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Raises InputEncoding if the shell passed bytes that are not UTF-8."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            what = param.opts[-1] if isinstance(param, click.Option) else "the prompt"
            hint = "check the terminal's encoding, or give the text by a file (-f)"
            raise InputEncoding(f"{what} is not UTF-8 at character {error.start}", hint) from None
        return str(value)


def layers(text: str) -> int | str:
    """How many layers go to devices: `auto`, -1 for `all`, or the number. Raises OptionError."""
    if text in ("auto", "all"):
        return text if text == "auto" else -1
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{text} is neither a number nor `all` or `auto`") from None
    if number < -1:
        raise OptionError(f"{number} is no number of layers; -1 means all")
    return number


TEXT = _Text()


def model_names(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of local and known models, and files; for `-m` and `--draft`."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only when a shell asks

    from pyspec.hub.locate import names  # noqa: PLC0415 - as above

    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]


# -- output ------------------------------------------------------------------------------------------------------------


def tell(text: str | bytes, *, err: bool = False) -> None:
    """Print a line, but nothing that could control a terminal or forge a line of a log; a file or pipe gets all of it."""
    if err or sys.stdout.isatty():
        text = _safe(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
    click.echo(text, err=err)


def _safe(text: str) -> str:
    from pyspec.text.parts import safe  # noqa: PLC0415 - takes time that --help need not

    return safe(text)


class _LogLine(logging.Formatter):
    """Formats log lines as `tell` prints them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return _safe(super().formatMessage(record)).replace("\n", " ")

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return _safe(super().formatException(ei))


def guard_log() -> None:
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LogLine())
