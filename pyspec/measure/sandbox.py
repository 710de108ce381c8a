"""Running code that a model wrote: a child process that can compute and nothing else.

Before the code runs, the child gives up every system call but those of memory, time, and reading and writing what is open
already (seccomp, with no_new_privs): the kernel then refuses files, processes, signals to others and the network, whatever
the code does. What it may import is imported before. Time and memory have limits. A program has passed when the line after
its last check was reached; one that leaves early has not. Code that sets out to cheat may still claim to have passed: the
wall is around the machine, not around the score.

    sandbox.py CPU_SECONDS MEMORY_BYTES WALLED < (length, newline, program, status)

Ends with the status after the program's last line. Run by path, by questions.py; imports no pyspec.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import sys

# what answers to programming questions import: behind the wall nothing can be opened
LIBRARY = (
    "array bisect cmath collections collections.abc copy dataclasses datetime decimal enum fractions functools hashlib "
    "heapq itertools json math numbers operator random re statistics string textwrap time typing unicodedata"
)

# numbers of the system calls that are left, by machine and its audit number: read write close fstat lseek mmap mprotect
# munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 | sched_yield mremap madvise nanosleep getpid exit gettimeofday
# getrusage times sigaltstack time (x86) futex | sched_getaffinity clock_gettime clock_getres clock_nanosleep exit_group
# getrandom rseq
_X86 = "0 1 3 5 8 9 10 11 12 13 14 15 17 24 25 28 35 39 60 96 98 100 131 201 202 204 228 229 230 231 318 334"
_ARM = "63 64 57 80 62 222 226 215 214 134 135 139 67 124 216 233 101 172 93 169 165 153 132 98 123 113 114 115 94 278 293"
CALLS = {
    "x86_64": (0xC000003E, [*map(int, _X86.split())]),
    "aarch64": (0xC00000B7, [*map(int, _ARM.split())]),
}


def limits(cpu_s: int, memory: int) -> None:
    """Limits on time, memory and files, where the system has them."""
    with contextlib.suppress(ImportError):
        import resource  # noqa: PLC0415 - absent on Windows

        for name, value in {"CPU": cpu_s, "AS": memory, "FSIZE": 0, "CORE": 0}.items():
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def wall() -> None:
    """Give up all system calls but CALLS: the others fail with EPERM from here on. Raises OSError."""
    import ctypes  # noqa: PLC0415 - only where there is a wall

    arch, calls = CALLS[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    allow, refuse = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
    code = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, refuse), (load, 0, 0, 0)]
    code += [(equal, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    code += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    filters = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(filters, len(filters))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privs, set_seccomp, mode_filter = 38, 22, 2
    if libc.prctl(no_new_privs, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel has no seccomp filters")


def main(cpu_s: int, memory: int, walled: int) -> None:
    """Run the program from stdin; end by error where it fails."""
    stdin = sys.stdin.buffer
    source = stdin.read(int(stdin.readline()))
    code = compile(source, "answer", "exec")
    for name in LIBRARY.split():
        __import__(name)
    limits(cpu_s, memory)
    if walled:
        wall()
    exec(code, {"__name__": "answer"})  # noqa: S102 - what this process is for
    os._exit(int(stdin.read(8)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
