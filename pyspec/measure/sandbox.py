"""Running code that a model wrote: in a child process, with limits, without network or files.

The child has a temporary folder, no environment, limits on time, memory and file size, and an audit
hook that refuses sockets, processes and writing. It guards against what a small model writes by
accident; it is no wall against an attacker.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile

TIMEOUT_S = 5.0
_MEMORY = 1 << 30

_PRELUDE = """
import sys
def _limits():
    try:
        import resource
    except ImportError:
        return
    limits = dict(CPU={cpu}, AS={memory}, FSIZE=0, CORE=0, NOFILE=32)
    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None:
            try:
                resource.setrlimit(kind, (value, value))
            except (ValueError, OSError):
                pass
def _refuse(event, args):
    first = event.partition(".")[0]
    if first in ("socket", "subprocess", "shutil", "ctypes", "ftplib", "smtplib", "urllib", "http"):
        raise PermissionError(event)
    if event in ("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
                 "os.kill", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.link",
                 "os.symlink", "os.truncate", "os.putenv", "pty.spawn"):
        raise PermissionError(event)
    if event == "open" and isinstance(args[2], int) and args[2] & 3:
        raise PermissionError(event)  # O_WRONLY or O_RDWR
_limits()
_code = compile(sys.stdin.read(), "answer", "exec")
sys.addaudithook(_refuse)
exec(_code, {{"__name__": "answer"}})
"""


def passes(program: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a Python program ends without an error within the limits."""
    prelude = _PRELUDE.format(cpu=max(1, round(timeout_s)), memory=_MEMORY)
    with tempfile.TemporaryDirectory(prefix="pyspec-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", prelude],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=folder, env=_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
    return process.returncode == 0


def _environment() -> dict[str, str]:
    # Windows' Python does not start without it
    return {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
