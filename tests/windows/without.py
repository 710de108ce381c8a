"""What Windows lacks, taken away: `python without.py COMMAND...` is `pyspec COMMAND...` on a system that is as poor.

No fcntl, resource, termios, os.fork, os.sysconf and the like; `select` takes sockets alone, no open file is deleted or
replaced, locks are msvcrt's, stdout has the code page that PYTHONIOENCODING names, and CTRL_BREAK is SIGUSR1 here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ABSENT = ("fcntl", "resource", "termios", "tty", "pty", "grp", "pwd")
LACKING = {
    os: ("set_blocking", "fork", "sysconf", "sched_getaffinity", "killpg", "O_NOFOLLOW"),
    signal: ("setitimer", "SIGHUP", "SIGPROF", "SIGBUS", "SIGCHLD"),
    select: ("poll",),
}  # fmt: skip


class Absent(MetaPathFinder):
    """Finds nothing of that name, and says so."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise ImportError for what Windows has not."""
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def sockets_only(*lists: Any) -> Any:
    """`select.select` as Winsock has it."""
    for each in [*lists[0], *lists[1], *lists[2]]:
        if not isinstance(each, socket.socket):
            raise OSError(10038, "An operation was attempted on something that is not a socket")
    return _select(*lists)


_select = select.select


def refuse_open(act: Any) -> Any:
    """A deletion or a move that Windows would not do: of a file that this process has open."""

    def do(path: Any, *more: Any, **named: Any) -> Any:
        for place in (path, *more[:1]):
            here = (
                os.path.realpath(os.fsdecode(place))
                if isinstance(place, (str, bytes, Path))
                else None
            )
            for fd in os.listdir("/proc/self/fd"):
                try:
                    held = os.readlink(f"/proc/self/fd/{fd}") == here
                except OSError:
                    continue
                if held:
                    raise PermissionError(errno.EACCES, "The process cannot access the file", here)
        return act(path, *more, **named)

    return do


def make_msvcrt() -> ModuleType:
    made: Any = ModuleType("msvcrt")
    made.LK_NBLCK = 2
    made.locking = lambda fd, _mode, n: fcntl.lockf(
        fd, fcntl.LOCK_EX | fcntl.LOCK_NB, n, os.SEEK_CUR
    )
    return made  # type: ignore[no-any-return]


def take_away() -> None:
    """For the rest of this process. What others import themselves is there already: only pyspec is looked at."""
    import psutil  # noqa: F401 - Windows has a build of its own
    import uvicorn.server

    import pyspec.cli.main  # noqa: F401

    for module in [name for name in sys.modules if name.partition(".")[0] == "pyspec"]:
        if module not in ("pyspec._native", "pyspec._lib"):
            del sys.modules[module]
    for name in ABSENT:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())
    signal.SIGBREAK = signal.SIGUSR1  # type: ignore[attr-defined]
    uvicorn.server.HANDLED_SIGNALS += (signal.SIGUSR1,)  # type: ignore[assignment]  # it asks for the system's name
    for holder, names in LACKING.items():
        for name in names:
            if hasattr(holder, name):
                delattr(holder, name)
    select.select = sockets_only
    subprocess._PopenSelector = selectors.SelectSelector  # type: ignore[attr-defined]  # it has threads there
    os.unlink, os.remove, os.replace = (
        refuse_open(each) for each in (os.unlink, os.remove, os.replace)
    )
    sys.modules["msvcrt"] = make_msvcrt()


if __name__ == "__main__":
    take_away()
    from pyspec.cli.main import main

    main(sys.argv[1:])
