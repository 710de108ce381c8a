"""The sampling that a model's publisher suggests: `general.sampling.*` of a GGUF file, or the parameters that ollama keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspec.errors import OptionError
from pyspec.gguf.header import facts_of
from pyspec.machine.others import ollama_params
from pyspec.sampling.options import NUMBERS, SUGGESTED, check_numbers

_OF_FILE = {"temp": "temperature", "penalty_repeat": "repeat_penalty"}
"""Keys of files whose names are not ours."""

_MEANINGLESS = {"penalty_last_n": 64, "repeat_last_n": 64, "mirostat": 0, "sequence": ""}
"""What is not followed, and the value at which nothing is lost by that."""


@dataclass(frozen=True)
class SuggestedSampling:
    """How a model's publisher would have it sampled."""

    values: Mapping[str, float] = field(default_factory=dict)
    """By the names of `Sampling`'s fields."""
    left: tuple[str, ...] = ()
    """What is suggested too, and not followed."""

    def sentence(self, set_by_user: Collection[str] = ()) -> str:
        """Say what holds because the model suggests it; empty if nothing does. set_by_user: fields that the user has set."""
        named = [
            f"--{NUMBERS[name].word} {self.values[name]:.6g}"
            for name in SUGGESTED
            if name in self.values and name not in set_by_user
        ]
        parts = [f"sampling as the model suggests: {' '.join(named)}"] if named else []
        parts += [f"its {' and '.join(self.left)} cannot be followed"] if self.left else []
        return "; ".join(parts)


def suggested_by(path: Path, name: str = "") -> SuggestedSampling:
    """Return what a model's file suggests; name: how the user called it, since several of ollama's models may share a file.

    Values that are no numbers, or outside the range of their option, are named among those not followed.
    """
    facts = facts_of(path)
    own = {} if facts is None else facts.sampling
    kept = ollama_params(path, name)
    found = {_OF_FILE.get(key, key): value for key, value in {**own, **kept}.items()}
    values, left = dict[str, float](), list[str]()
    for key, value in found.items():
        if key in SUGGESTED and _is_usable(key, value):
            values[key] = value
        elif key in SUGGESTED or (key in _MEANINGLESS and value != _MEANINGLESS[key]):
            left.append(key)
    return SuggestedSampling(values, tuple(left))


def _is_usable(name: str, value: Any) -> bool:
    """Whether a value can be used; 0 for top_p is how some files say that it is off, which is not what it does here."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if (name == "temperature" and value < 0) or (name == "top_p" and value == 0):
        return False
    try:
        check_numbers({name: value})
    except OptionError:
        return False
    return True
