"""The `pyspec` command: its subcommands and its handling of errors."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from importlib import import_module
from traceback import walk_tb
from typing import Any

import click

from pyspec._version import NAME
from pyspec.cli.command import ENVIRONMENT, Subcommand, guard_log, tell
from pyspec.errors import PyspecError

_COMMANDS = {
    "generate": "Answer one prompt.",
    "chat": "Chat with a model.",
    "batch": "Answer many prompts from files.",
    "serve": "Serve OpenAI's and Anthropic's HTTP APIs, and a chat page.",
    "models": "List, fetch, remove and inspect models.",
    "draft": "Find a draft for a model.",
    "measure": "Say what drafts gain here, for your model.",
    "info": "Show versions, devices and folders.",
}

# of commands without their own
_MODULES = {"info": "pyspec.cli.main", "draft": "pyspec.cli.models"}

_COMPLETE = "_PYSPEC_COMPLETE"
_OF_WRITING = (errno.EBADF, errno.ENOSPC, errno.EIO, errno.EFBIG, getattr(errno, "EDQUOT", None))


class _Lazy(click.Group):
    """Imports a subcommand when it is called, so that `--help` needs no model library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = getattr(import_module(_MODULES.get(name, f"pyspec.cli.{name}")), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Environment"):
            formatter.write_dl(ENVIRONMENT, col_max=24)


@click.group(
    cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name=NAME, prog_name="pyspec")
def cli() -> None:
    """Faster answers from GGUF models by speculative decoding. Answers go to stdout, everything else to stderr.

    Each command has its own help: pyspec generate --help.
    """


@click.command(cls=Subcommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Print versions, devices, backends, and where models are kept."""
    import llama_cpp  # noqa: PLC0415 - --help needs none of these

    from pyspec._version import __version__  # noqa: PLC0415
    from pyspec.chat.dialogue import history_file, log_folder  # noqa: PLC0415
    from pyspec.machine.devices import devices, missed_card  # noqa: PLC0415
    from pyspec.machine.files import cache_dir  # noqa: PLC0415
    from pyspec.machine.machine import default_threads  # noqa: PLC0415
    from pyspec.screen import new_screen  # noqa: PLC0415

    facts: dict[str, Any] = {
        "pyspec": __version__,
        "llama-cpp-python": llama_cpp.__version__,
        "devices": [str(device) for device in devices() if device.kind != "CPU"],
        "backends": llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(),
        "threads": default_threads(),
        "cache": str(cache_dir()),
        "chats": str(log_folder() or "none"),
        "chat-history": str(history_file() or "none"),
    }
    if as_json:
        tell(json.dumps(facts))
        return
    facts["devices"] = ", ".join(facts["devices"]) or "none; everything runs on the CPU"
    new_screen().table((name, str(fact)) for name, fact in facts.items())
    if missed := missed_card():
        tell(missed, err=True)


# -- running it, whatever the streams are ------------------------------------------------------------------------------


def open_closed() -> None:
    """Reopen the descriptors 0 to 2 if the caller closed them.

    Otherwise the next opened file would become stdout, and llama.cpp would write into it. Reading stdin gives nothing;
    writing to stdout fails as on a full disk, so that no answer is lost silently; stderr goes nowhere.
    """
    names, flags = ("stdin", "stdout", "stderr"), (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
    for fd, (name, how) in enumerate(zip(names, flags)):
        try:
            os.fstat(fd)
        except OSError:
            new = os.open(os.devnull, how)
            if new != fd:
                os.dup2(new, fd)
                os.close(new)
        if getattr(sys, name) is None:
            mode = "r" if fd == 0 else "w"
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - lives as long as the process


def silence(*fds: int) -> None:
    """Redirect descriptors to the null device, so that Python does not write to them again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in fds:
        os.dup2(nowhere, fd)
    os.close(nowhere)


def write_failed(error: OSError) -> str:
    """Return a sentence for an OSError that no deeper layer handled."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return f"cannot write to stdout: {reason}" if error.errno in _OF_WRITING else reason


def not_loaded(error: BaseException) -> list[str]:
    """Return what to say if llama.cpp's library or our extension failed to import, with the remedy; else an empty list."""
    from pyspec.machine.devices import anew, pinned  # noqa: PLC0415 - only after a failure

    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    importing = [f.f_globals["__name__"] for f in frames if f.f_code.co_name == "<module>"]
    missing = isinstance(error, ModuleNotFoundError)
    importing.append(str(getattr(error, "name", "")))
    if any(name.startswith("llama_cpp") for name in importing):
        mend = f"pip install {pinned()}" if missing else anew()
        return [f"pyspec: llama-cpp-python cannot be loaded: {error}. To reinstall it:", mend]
    return [f"pyspec: {error}"] if "pyspec._lib" in importing else []


def sentences(error: PyspecError) -> list[str]:
    """Format an error as one line. A hint with pip commands gets its own lines, so that they can be copied."""
    message, *hint = (
        [error.message, *error.hint.splitlines()] if "pip install" in error.hint else [str(error)]
    )
    return [" ".join(line.splitlines()) for line in (f"pyspec: {message}", *hint)]


def refusal(error: click.ClickException) -> str:
    """Say in one line what click did not take, and which help has more unless the message names a command itself."""
    message = error.format_message().rstrip(".").replace(". (Did", " (did")
    message = message.replace(". Did you", "; did you")
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "pyspec"
    more = "" if "`pyspec" in message else f" (see `{path} --help`)"
    return f"pyspec: {message[:1].lower()}{message[1:]}{more}"


def main(args: list[str] | None = None, command: click.Command = cli, name: str = "pyspec") -> None:
    """Run a command line; every expected error is one sentence and an exit code."""
    open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: no character ends an answer
    guard_log()
    if _COMPLETE in os.environ:
        from click.shell_completion import shell_complete  # noqa: PLC0415 - only for shells

        sys.exit(shell_complete(cli, {}, "pyspec", _COMPLETE, os.environ[_COMPLETE]))
    try:
        code = _run(list(sys.argv[1:] if args is None else args), command, name)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader is gone: nothing more can be written, and Python must not try at exit
        silence(1, 2)
        code = 141
    except OSError as error:
        silence(1)
        tell(f"pyspec: {write_failed(error)}", err=True)
        code = 1
    sys.exit(code)


def _run(args: list[str], command: click.Command, name: str) -> int:
    try:
        # not cli.main(): that would answer a closed pipe itself
        with command.make_context(name, args) as context:
            answer = command.invoke(context)  # a command may return its exit code
        return answer if isinstance(answer, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        tell(refusal(error), err=True)
        return error.exit_code
    except PyspecError as error:
        for line in sentences(error):
            tell(line, err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort, EOFError):
        return 130
    except Exception as error:
        if not (lines := not_loaded(error)):
            raise
        for line in lines:
            tell(line, err=True)
        return 1
