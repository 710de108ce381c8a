"""What all prompts begin with: decoded once, in sequence 0, and copied to every other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.engine.handle import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspec.batch.contexts import Contexts

LEAST = 16
"""Shortest common prefix worth a sequence of its own, tokens."""


class SharedPrefix:
    """The common beginning of the first window's prompts. tokens: None until it has been looked for."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self.tokens: list[int] | None = None

    def __len__(self) -> int:
        return len(self.tokens or ())

    def common(self, prompt: Sequence[int]) -> int:
        """Tokens of it that a prompt begins with."""
        return common(self.tokens or [], prompt)

    def find(self, prompts: Sequence[Sequence[int]]) -> None:
        """Decode what the prompts have in common, where that is worth it."""
        self.tokens = []
        if len(prompts) < 2:
            return
        shared = min(common(prompts[0], prompt) for prompt in prompts[1:])
        # each has to decode a last token of its own
        shared = min(shared, min(map(len, prompts)) - 1)
        if shared < LEAST:
            return
        engine = self._contexts.engine
        engine.set_tokens(0, prompts[0][: shared + 1])
        for role in self._reading():
            held = -1
            while held < shared:
                held = engine.prefill(role, 0, shared, self._contexts.n_batch)
        self.tokens = list(prompts[0][:shared])

    def give(self, seq: int, prompt: Sequence[int]) -> tuple[int, int]:
        """Set a sequence's text and copy to it what it lacks; returns the tokens shared and the tokens its KV holds."""
        engine, shared = self._contexts.engine, self.common(prompt)
        kept = engine.set_tokens(seq, prompt)
        if kept < shared:
            engine.copy_prefix(0, seq, shared)
            kept = engine.set_tokens(seq, prompt)
        return shared, kept

    def drop(self, free: Iterable[int]) -> None:
        """Give its cells back, also those that free sequences keep of it."""
        self.tokens = []
        for seq in (0, *free):
            self._contexts.engine.set_tokens(seq, ())

    def _reading(self) -> list[Role]:
        """Roles whose contexts read prompts; a coupled draft reads states instead."""
        equipment = self._contexts.loop.equipment
        roles = [Role.TARGET]
        if equipment.draft_model and not self._contexts.reads_states:
            roles.append(Role.DRAFT)
        return [*roles, Role.COMPANION] if equipment.companion else roles


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike, at most all of b but its last."""
    most = min(len(a), len(b) - 1)
    if a[:most] == b[:most]:
        return max(0, most)
    return next(i for i in range(most) if a[i] != b[i])
