"""What llama-cpp-python's calls add to the options of an answer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import isfunction, signature
from threading import local
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import ref

from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.sampling.options import Sampling

IdStream: TypeAlias = Generator[int, "Sequence[int] | None", None]
"""What `generate` returns."""

MORE_SAMPLERS = tuple(
    each.name for each in fields(Sampling) if each.name.startswith(("dry_", "xtc_", "dynatemp_"))
)
"""Names of the `Sampling` fields that llama-cpp-python has no arguments for."""

_RETIRED = {"f16_kv", "low_vram", "mul_mat_q", "n_gqa", "n_parts", "rms_norm_eps"}
"""Arguments of earlier llama-cpp-pythons, which libraries still pass; they are ignored, as llama-cpp-python does."""


def refuse_unknown(kind: type, names: Iterable[str]) -> None:
    """Raise TypeError for a name that no constructor among a class and its bases takes; it would be ignored."""
    known = {name for each in kind.__mro__ for name in _parameters(each)}
    for name in names:
        if name not in known | _RETIRED:
            near = get_close_matches(name, known, n=1)
            more = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{more}")


def _parameters(kind: type) -> Iterable[str]:
    init: Any = vars(kind).get("__init__")
    return signature(init).parameters if isfunction(init) else ()


@dataclass
class Completion:
    """What a llama-cpp-python completion needs beyond what its loop passes to `generate`.

    If a generator ends before that loop asked for the end, the loop throws its text away, unless a stopping criterion stops
    there. So this object stands in for the call's own `criteria`, and stops where the answer ended by itself. on_token: gets each
    token, and returns whether the answer ends with it.
    """

    options: AnswerOptions
    criteria: Any
    on_token: Callable[[int], bool] | None = None
    reason: str | None = None
    """Why the answer ended; None if llama-cpp-python knows."""
    answer: ref[IdStream] | None = None
    """What its `generate` returned, None before; as a weak reference, since it ends when that loop lets go of it."""

    def close(self) -> None:
        """Put the answer away, whoever still holds it."""
        if self.answer is not None and (answer := self.answer()) is not None:
            answer.close()

    def ends(self, token: int, ids: Any, logits: Any) -> bool:
        """Whether the answer ends with this token, which follows the tokens `ids`."""
        if self.on_token is not None and self.on_token(token):
            self.reason = "stop"
            return True
        return self.criteria is not None and bool(self.criteria(ids, logits))

    def __call__(self, ids: Any, logits: Any) -> bool:
        """Whether to stop here."""
        wanted = self.criteria is not None and self.criteria(ids, logits)
        return bool(wanted) or self.reason is not None


class ThreadOptions(local):
    """What applies to the call that this thread is in."""

    speculation = Speculation()
    samplers: Mapping[str, Any] = MappingProxyType({})  # the requested ones of `MORE_SAMPLERS`
    on_token: Callable[[int], bool] | None = None
    completion: Completion | None = None  # the one whose loop runs
