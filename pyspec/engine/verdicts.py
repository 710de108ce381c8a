"""What a pair of models has shown under the margin rule: a verdict stored with the pair's profile, or shipped beside its draft.

A verdict allows one rule, or none, for greedy answers or for drawn ones. It depends on the models' files, not on the machine.
`verification="auto"` follows it, and is strict without one. A damaged file gives a warning and strict.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyspec.engine.profiles import SideFile, profiles_dir, read_struct
from pyspec.errors import OptionError, PyspecError
from pyspec.sampling.verification import Margin, PairRule, Strict, Verification
from pyspec.store.files import file_sha256
from pyspec.store.shipped import came_with

log = logging.getLogger("pyspec")


class PairVerdict(msgspec.Struct, forbid_unknown_fields=True):
    """What one experiment says about a pair, identified by the sha256 of its files.

    drawn: for answers above temperature 0. rule: the numbers of the `Margin` that it allows, None for strict. tried: the rule
    that was tested. gain: its tokens per verify, as a multiple of strict's. losses: for each figure the upper end of the observed
    loss, then its bound. answers: per rule.
    """

    target: str
    draft: str
    drawn: bool
    rule: dict[str, Any] | None
    tried: str
    gain: float
    answers: int
    losses: dict[str, tuple[float, float]]
    day: str

    @property
    def allowed(self) -> Strict | Margin:
        """The rule that it allows. Raises OptionError for invalid numbers."""
        try:
            members = (self.rule or {}).items()
            numbers: dict[str, Any] = {n: math.inf if v == "inf" else v for n, v in members}
            return Strict() if self.rule is None else Margin(**numbers)
        except TypeError:
            raise OptionError("a verdict names an unknown setting") from None


class PairVerdicts(msgspec.Struct, forbid_unknown_fields=True):
    """The file: verdicts on one draft's pairs."""

    verdicts: list[PairVerdict]
    format: Literal[1] = 1


def stored_path(target: str, draft: str) -> Path:
    """The file for verdicts on a pair with these sha256, beside its profile."""
    digest = hashlib.sha256(f"{target} {draft}".encode()).hexdigest()
    return profiles_dir() / f"verdict-{digest[:20]}.json"


def followed(rule: Verification, target: str, sides: Sequence[SideFile]) -> Verification:
    """The rule asked for; a `PairRule` is filled with what is known of the target file and the draft among `sides`."""
    return pair_rule(Path(target), sides) if isinstance(rule, PairRule) else rule


def pair_rule(target: Path, sides: Sequence[SideFile]) -> PairRule:
    """The rules allowed by a pair's stored verdicts, or by those shipped with its draft; strict if nothing is known."""
    if not sides:
        return PairRule()
    try:
        found = _verdicts(target, sides[0].path)
        rules = {verdict.drawn: verdict.allowed for verdict in found}
    except PyspecError as error:
        log.warning("no verdict is used: %s", error)
        return PairRule()
    return PairRule(rules.get(False, Strict()), rules.get(True, Strict()))


def _verdicts(target: Path, draft: Path) -> list[PairVerdict]:
    """The verdicts on a pair; stored ones come after shipped ones. Files are hashed only if there may be a verdict."""
    shipped = read_verdicts(came_with(draft, ".verdict.json"))
    if not shipped and not any(profiles_dir().glob("verdict-*.json")):
        return []
    names = file_sha256(target), file_sha256(draft)
    found = [*shipped, *read_verdicts(stored_path(*names))]
    return [each for each in found if (each.target, each.draft) == names]


def read_verdicts(path: Path) -> list[PairVerdict]:
    """Return the verdicts of a file, none if there is no file. Raises ProfileError if it is damaged."""
    found = read_struct(path, PairVerdicts, "remove it")
    return found.verdicts if found is not None else []
