"""Opens the models that a command's options name, and lets signals end what they answer."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import TYPE_CHECKING, Any

import llama_cpp

from pyspec._lib import DROP
from pyspec.chat import TWICE_S
from pyspec.cli.command import tell
from pyspec.cli.options import DraftOptions, EngineOptions, ModelOptions
from pyspec.engine.contexts import longest_context
from pyspec.hub.locate import resolve
from pyspec.machine import AUTO
from pyspec.machine.devices import add_rpc_servers, lacking_devices, missed_card_once
from pyspec.screen import store_progress
from pyspec.text.parts import safe

if TYPE_CHECKING:
    from pyspec.llama.speculative import SpeculativeLlama

WORDS = ("none", "auto", "lookup", "mtp", "lookup+mtp")
_AS_IT_IS, _AS_USUAL = EngineOptions(), DraftOptions()


def find(options: ModelOptions, at_once: int = 1) -> tuple[Path, dict[str, Any]]:
    """Return the target's file, fetched if needed, and the arguments of `SpeculativeLlama` and `Batch` for these options.

    at_once: sequences with a whole context each. Raises OptionError and the like.
    """
    add_rpc_servers(options.rpc)
    asked = {options.n_gpu_layers, options.draft_ngl} - {None, 0, AUTO}
    if asked and (lacking := lacking_devices(options.devices)):
        for line in lacking:
            tell(line, err=True)
        return find(replace(options, n_gpu_layers=0, draft_ngl=None), at_once)
    if options.n_gpu_layers == AUTO and (missed := missed_card_once()):
        tell(missed, err=True)
    with store_progress() as progress:
        path = resolve(options.model, progress)
        draft, companion = (_found(each, progress) for each in (options.draft, options.companion))
    files, where = files_among(draft, companion), (options.n_gpu_layers, options.devices)
    n_ctx = options.ctx or longest_context(path, files, *where, at_once)
    arguments = {
        "draft": draft, "companion": companion, "draft_n_gpu_layers": options.draft_ngl,
        "n_ctx": n_ctx, "n_gpu_layers": options.n_gpu_layers, "n_threads": options.threads,
        "n_threads_batch": options.threads, "trust": options.trust_model, "extra_buffers": options.extra_buffers,
        "devices": options.devices, "draft_devices": options.draft_devices,
        "chat_template": options.chat_template, "template_args": dict(options.template_args),
        "n_cpu_moe": -1 if options.cpu_moe else options.n_cpu_moe,
    }  # fmt: skip
    return path, arguments


def files_among(*words: str) -> list[Path]:
    """Return the model files among resolved values of --draft and --companion."""
    paths = (Path(word.removeprefix("lookup+")) for word in words)
    return [path for path in paths if path.is_file()]


def _found(word: str, progress: Any) -> str:
    """Replace the model name in a value of --draft or --companion by its path."""
    if word in WORDS:
        return word
    name = word.removeprefix("lookup+")
    return word.removesuffix(name) + str(resolve(name, progress))


def open_model(
    options: ModelOptions,
    drafts: DraftOptions = _AS_USUAL,
    engine: EngineOptions = _AS_IT_IS,
    memory: bool = False,
) -> SpeculativeLlama:
    from pyspec.llama.speculative import SpeculativeLlama  # noqa: PLC0415 - it takes long to import

    drafting = {"verification": drafts.rule, "length": drafts.length, "memory": memory}
    own = drafting | engine.arguments
    path, arguments = find(options)
    hush_llama(engine.verbose)
    llm = SpeculativeLlama(path, **{**arguments, **own})
    if llm.placed:
        tell(llm.placed, err=True)
    return llm


def hush_llama(verbose: bool) -> None:
    """Show llama.cpp's log lines on stderr, or drop them: a cancelled answer makes it log errors, which would mislead."""
    llama_cpp.llama_log_set(_SHOWN if verbose else DROP, ctypes.c_void_p(0))


def _show(_level: int, text: bytes, _data: Any) -> None:
    sys.stderr.write(safe(text.decode("utf-8", "replace")))
    sys.stderr.flush()


_SHOWN = llama_cpp.llama_log_callback(_show)  # llama.cpp keeps its address


# -- signals -----------------------------------------------------------------------------------------------------------

BOTH = (signal.SIGINT, signal.SIGTERM)  # end an answer: Ctrl-C, or a supervisor's SIGTERM


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """In the body, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    If the main thread is stuck in a C call, the second signal ends the program. Yields the list of received signals.
    Python runs signal handlers only between bytecodes, and a decode may take seconds. Therefore the wakeup descriptor passes the
    signal's number to a thread, which can run because decodes release the GIL. Use it in the main thread only.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    last, heard = [float("-inf")], [float("-inf")]
    seen: list[int] = []
    watcher = threading.Thread(
        target=_watch, args=(reader, cancel, heard), name="pyspec-interrupt", daemon=True
    )

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        heard[0] = monotonic()
        if monotonic() - last[0] < TWICE_S:
            if number != signal.SIGINT:
                raise SystemExit(exit_code(seen))
            raise KeyboardInterrupt
        last[0] = monotonic()

    # watcher first, and undone in reverse: a signal handled while nobody watches would cancel nothing
    old_writer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher.start()
    old_handlers = {number: signal.signal(number, handle) for number in BOTH}
    try:
        yield seen
    finally:
        for number, old in old_handlers.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(old_writer)
        writer.close()
        watcher.join()
        reader.close()


def exit_code(seen: Sequence[int]) -> int:
    """Return the exit code after these signals: 130 if all were Ctrl-C, else 143."""
    return 130 if set(seen) <= {signal.SIGINT} else 143


_IN_C_S, _JUST_S = 1.0, 0.25  # time to handle a second signal; tolerance for one just handled


def _watch(reader: socket.socket, cancel: Callable[[], None], heard: Sequence[float]) -> None:
    """Cancel at each signal. End the program if the main thread does not handle a second one that came within 2 s."""
    last = float("-inf")
    while numbers := reader.recv(16):
        for number in (number for number in numbers if number in BOTH):
            cancel()
            came, before = monotonic(), last
            last = came
            while came - before < TWICE_S and heard[0] < came - _JUST_S:
                if monotonic() > came + _IN_C_S:
                    os._exit(exit_code([number]))
                sleep(0.01)
