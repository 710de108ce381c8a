"""A measured profile of one pair of models on one machine, and its file in the cache.

The part of it that holds on any machine, what is known of a draft's acceptance, may lie beside the
draft as its prior. A file that is damaged or of other models raises ProfileError; callers measure again, or
learn from nothing.
"""

from __future__ import annotations

import hashlib
from math import isfinite
from pathlib import Path
from typing import TypeVar

import msgspec

from pyspec.errors import OptionError, ProfileError
from pyspec.files import write_whole
from pyspec.policy.acceptance import Calibration, Learned, Logistic
from pyspec.policy.cost import CostCurve, CurveState

FORMAT = 4
PRIOR_FORMAT = 1
_MAX_BYTES = 4 << 20
_HINT = "run `pyspec profile` to measure again"

T = TypeVar("T")


class ProfileKey(msgspec.Struct, frozen=True):
    """What a profile belongs to: sha256 of the files ("" for none), where and how they run."""

    target: str
    draft: str
    companion: str
    backend: str
    threads: int
    version: str


class Profile(msgspec.Struct, forbid_unknown_fields=True):
    """Everything measured, as written to the file.

    `acceptance` is conditional acceptance by draft position; `best_plan` names the best fixed
    plan ("do not speculate" included); `break_even` is the constant acceptance from which on
    drafting pays, above 1 where it never does; `gains` the log-loss (nats a token) the draft
    alone and draft with companion reach.
    """

    key: ProfileKey
    curve: CurveState
    learned: Learned
    acceptance: list[float] = []
    best_plan: str = ""
    break_even: float = 2.0
    loss_without_companion: float = 0.0
    loss_with_companion: float = 0.0
    format: int = FORMAT

    def policy_parts(self) -> tuple[CostCurve, Learned]:
        """What a policy begins with, and goes on to change."""
        return CostCurve.restore(self.curve), self.learned


class Prior(msgspec.Struct, forbid_unknown_fields=True):
    """What was learned of a draft's acceptance, whatever the machine: the file beside the draft.

    draft and companion are sha256 of the files; the companion's part is left out where another one, or none, is used. Of lookup
    it has nothing: that is no property of the draft, and what one kind of text taught did harm in others.
    """

    draft: str
    companion: str
    calibration: Calibration
    judged: Logistic
    format: int = PRIOR_FORMAT

    @classmethod
    def of(cls, draft: str, companion: str, learned: Learned) -> Prior:
        """What is to be kept of `learned`."""
        return cls(draft, companion, learned.calibration, learned.companion)

    def restore(self, draft: str, companion: str) -> Learned:
        """What a policy begins with, and goes on to change. Raises ProfileError for another draft."""
        if self.format != PRIOR_FORMAT or self.draft != draft:
            raise ProfileError("the draft's prior belongs to another draft", "install both again")
        judged = self.judged if self.companion == companion else Logistic()
        return Learned(self.calibration, judged)


def prior_path(draft: Path) -> Path:
    """Where a draft's prior lies."""
    return draft.with_suffix(".prior.json")


def save_prior(prior: Prior, draft: Path) -> Path:
    """Write it beside the draft, atomically, and return its path. Raises ProfileError where the folder refuses."""
    return _write(prior_path(draft), prior, "prior")


def load_prior(draft: Path) -> Prior | None:
    """The prior beside a draft, None where there is none. Raises ProfileError if it is damaged."""
    return _read(prior_path(draft), Prior, "install it again")


def profile_path(folder: Path, key: ProfileKey) -> Path:
    """Where the profile of `key` lies in the cache folder."""
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
    return folder / f"profile-{digest[:20]}.json"


def save_profile(profile: Profile, folder: Path) -> Path:
    """Write atomically and return the path. Raises ProfileError where the folder refuses."""
    return _write(profile_path(folder, profile.key), profile, "profile")


def load_profile(folder: Path, key: ProfileKey) -> Profile | None:
    """The stored profile, None where there is none. Raises ProfileError if corrupt or foreign."""
    path = profile_path(folder, key)
    profile = _read(path, Profile, _HINT)
    if profile is None:
        return None
    if profile.format != FORMAT:
        raise ProfileError(f"the profile {path} has format {profile.format}, not {FORMAT}", _HINT)
    if profile.key != key:
        raise ProfileError(f"the profile {path} belongs to other models or another machine", _HINT)
    if not all(isfinite(x) for x in (profile.break_even, *profile.acceptance)):
        raise ProfileError(f"the profile {path} is damaged", _HINT)
    return profile


def _write(path: Path, content: Profile | Prior, what: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [msgspec.json.encode(content)])
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ProfileError(f"the {what} cannot be written to {path.parent}: {reason}") from None
    return path


def _read(path: Path, kind: type[T], hint: str) -> T | None:
    """What a file holds, None where there is none."""
    what = kind.__name__.lower()
    try:
        if not path.exists():
            return None
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise ProfileError(f"{path} is not a {what}", hint)
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OptionError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(f"the {what} {path} is damaged: {error}", hint) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ProfileError(f"the {what} {path} cannot be read: {reason}", hint) from None
