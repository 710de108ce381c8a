"""Whether texts follow a language, at the level of masks."""

from collections.abc import Iterable
from typing import Any

from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.masks import Masks


def follows(llama: Any, language: Language, tokens: Iterable[int]) -> bool:
    """Whether an answer of these tokens may be given, and may end."""
    masks = Masks(Constraint(language), llama)
    for token in tokens:
        if not may_come(masks, token):
            return False
        masks.accept(token)
    assert masks.error == ""
    return may_come(masks, llama.token_eos())


def reads(llama: Any, language: Language, tokens: list[int]) -> bool:
    """What `follows` says, without masks: several times as fast."""
    masks = Masks(Constraint(language), llama)
    return masks.allows([*tokens, llama.token_eos()]) == len(tokens) + 1


def may_come(masks: Masks, token: int) -> bool:
    allowed = masks.permitted()
    return allowed is None or bool(allowed[token])
