"""Has a process stop itself within its work: nobody has to be quick to meet it there.

Python imports this at its start where the folder is on PYTHONPATH; a fork calls `halt`. What tests settle holds there as well.
"""

import os
import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any

VARIABLE = "PYSPEC_TEST_HALTS"
"""Names a module, a class, its method and the call of it before which the process stops."""


def settle_attention(put: Callable[[Any, str, Any], object]) -> None:
    """No measurement chooses how logits are rounded. put: how a name of a module gets another value."""
    from pyspec.engine import contexts, target

    for module in (contexts, target):
        put(module, "flash_pays", lambda *_given, **_more: True)


def halt(module: str, owner: str, name: str, calls: str) -> None:
    """That call begins when SIGCONT comes."""
    changed = getattr(import_module(module), owner)
    real, left = getattr(changed, name), [int(calls)]

    def counted(*given: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*given, **more)

    setattr(changed, name, counted)


if told := os.environ.get(VARIABLE):
    settle_attention(setattr)
    halt(*told.split())
