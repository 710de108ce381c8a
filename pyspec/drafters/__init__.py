"""Drafters that live in Python; draft models live in the engine, where they are drafted in lock-step."""

from pyspec.drafters.base import NOTHING, Drafter, ForeignDrafter, Proposal
from pyspec.drafters.lookup import LookupDrafter
from pyspec.drafters.translated import TranslatedDrafter

__all__ = [
    "NOTHING",
    "Drafter",
    "ForeignDrafter",
    "LookupDrafter",
    "Proposal",
    "TranslatedDrafter",
]
