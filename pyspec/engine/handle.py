"""The C engine as a Python object: one method per call; C checks the arguments, and errors become exceptions."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._lib import check, ffi, lib
from pyspec.draft.types import Draft
from pyspec.gguf.kinds import ASSISTANT, DFLASH, DSPARK, EAGLE3, MTP, States
from pyspec.sampling.options import MAX_DRAFT, Coupling
from pyspec.sampling.verification import Margin, Verification
from pyspec.text.parts import Source, Token

PREFILL_CHUNK = 256
"""Prompt tokens per decode: few enough for progress and cancelling, enough for the matrix kernels."""

ALL_ROWS = -2
"""Stands for a draft's length; see `Engine.verify`."""

_READINGS = {
    EAGLE3: lib.PS_EAGLE3,
    MTP: lib.PS_MTP,
    ASSISTANT: lib.PS_ASSISTANT,
    DFLASH: lib.PS_DFLASH,
    DSPARK: lib.PS_DFLASH,
}


_SOURCES = tuple(Source)


class Role(IntEnum):
    """Which model a llama context belongs to; the values are the extension's."""

    TARGET = 0
    DRAFT = 1
    COMPANION = 2


class Gate:
    """The acceptance rule of one answer: C's gate, and how much of its budget is spent."""

    def __init__(self, rule: Verification, sampled: bool) -> None:
        self.gate = ffi.new("ps_gate *")
        self.state = ffi.new("ps_gate_state *")
        if isinstance(rule, Margin):
            gate = self.gate
            gate.theta, gate.gap, gate.budget = rule.limits
            gate.confirm = rule.confirm
        else:
            self.gate.theta = 1.0
        self.gate.sampled = sampled
        self._theta = float(self.gate.theta)
        self._relaxes_lookup = not isinstance(rule, Margin) or rule.lookup

    def judge(self, *, looked_up: bool) -> None:
        """Set the rule for the next draft. looked_up: it comes from lookup."""
        strict = looked_up and not self._relaxes_lookup
        self.gate.theta = 1.0 if strict else self._theta


class Engine:
    """Sequences over the contexts of a target and, if there are any, a draft model and a companion.

    It owns no model or context, but keeps their owners from being collected before it is closed. Only one thread may be inside at
    a time; a second gets EngineBusy.
    """

    def __init__(self, n_seq: int, n_vocab: int) -> None:
        out = ffi.new("ps_engine **")
        check(lib.ps_engine_open(n_seq, n_vocab, out), "opening the engine")
        # freed with its last user: another thread may be in a call, such as a cancel, during `close`
        self._engine: Any = ffi.gc(out[0], lib.ps_engine_close)
        self._owners: list[object] = []
        self.detach = weakref.finalize(self, _detach, self._engine, self._owners)
        """Lets go of models and contexts, once. Their owners may be freed in any order, so this has to come first."""
        self.detach.atexit = False
        self._spent_us = (0, 0, 0)
        self.n_vocab = n_vocab
        self._seqs = ffi.new("int32_t[]", n_seq)
        self._lens = ffi.new("int32_t[]", n_seq)
        self._work = ffi.new("ps_work[]", n_seq)
        self._stop = ffi.new("ps_stop *")
        self._stop.table = [1.0] * len(self._stop.table)
        self._view = ffi.new("ps_draft **")
        self._views: dict[int, Any] = {}
        self._couplings: list[Coupling | None] = [None] * n_seq
        self._row = ffi.new("float **")
        self._count = ffi.new("int32_t *")
        self._counters = ffi.new("ps_counters *")
        self._verdict = ffi.new("ps_verdict *")
        self.window = 0
        """How far back a draft that reads the target's states begins; 0 for any other draft."""

    def attach(self, role: Role, context: int, model: int, *owners: object) -> None:
        """Give a role its llama_context and llama_model, as addresses; 0 empties the role. owners: the objects that free them."""
        self._owners += owners
        pointers = ffi.cast("void *", context), ffi.cast("void *", model)
        check(
            lib.ps_engine_attach(self._engine, role, *pointers),
            f"attaching the {role.name.lower()}",
        )

    def read_states(self, states: States) -> None:
        """Make the attached draft one that reads the target's states."""
        struct = ffi.new("ps_reading *")
        struct.kind = _READINGS[states.kind]
        struct.n_hidden, struct.width, struct.window = states.n_hidden, states.width, states.window
        struct.n_layers, struct.layer = len(states.layers), list(states.layers)
        struct.heads = states.heads
        if (block := states.block) is not None:
            struct.block, struct.mask = block.rows, block.mask
            struct.first, struct.sure = block.first, block.sure
        check(lib.ps_engine_read_states(self._engine, struct), "showing the draft the states")
        self.window = states.window

    def set_tokens(self, seq: int, tokens: Sequence[int], held: int = -1) -> int:
        """Set the committed tokens of a sequence; every KV keeps the common prefix.

        held: if others used the target's context, how many of these tokens its KV begins with; -1 if nobody did. Returns how many
        tokens the target's KV holds.
        """
        buffer = ffi.new("int32_t[]", tokens)
        check(
            lib.ps_seq_set(self._engine, seq, buffer, len(tokens), held, self._count),
            "setting the text",
        )
        return int(self._count[0])

    def couple(self, seq: int, coupling: Coupling | None) -> None:
        """Draw a sequence's tokens with this noise from now on. None: draft greedily, and let the sampler choose."""
        if coupling == self._couplings[seq]:
            return
        how = ffi.NULL if coupling is None else ffi.new("ps_coupling *", coupling)
        check(lib.ps_seq_couple(self._engine, seq, how), "sharing noise")
        self._couplings[seq] = coupling

    def copy_prefix(self, source: int, to: int, n: int) -> None:
        """Give sequence `to` the first n committed tokens of `source`, KV included, without decoding."""
        check(lib.ps_seq_copy(self._engine, source, to, n), "sharing a prefix")

    def put_back(self, role: Role, seq: int, n: int) -> None:
        """Note that another role's KV than the target's was restored; at most n of the sequence's tokens stay in it."""
        check(lib.ps_seq_put_back(self._engine, role, seq, n), "putting a text back")

    def held(self, role: Role, seq: int) -> int:
        """Tokens of a sequence in a role's KV."""
        check(lib.ps_seq_state(self._engine, role, seq, self._count, ffi.NULL))
        return int(self._count[0])

    def lag(self, role: Role, seq: int, n_tokens: int) -> int:
        """Tokens that a role has to read before its next draft, of a sequence of `n_tokens`; the last one does not count.

        A draft that reads states reads no further back than the states kept for it.
        """
        behind = max(0, n_tokens - 1 - self.held(role, seq))
        return min(behind, self.window) if self.window and role == Role.DRAFT else behind

    def set_stop(self, floors: Sequence[float], table: Sequence[float] | None) -> None:
        """Set when drafting stops: after token i, if survival is under floors[i]; the last floor holds for the rest."""
        last = floors[-1] if floors else 0.0
        self._stop.floors = [*floors, *[last] * (MAX_DRAFT - len(floors))]
        self._stop.table = table if table is not None else [1.0] * len(self._stop.table)

    def draft(self, seqs: Sequence[int], limits: Sequence[int], keep_rows: bool = False) -> None:
        """Draft in lock-step, at most limits[i] tokens on seqs[i]; stops as `set_stop` said."""
        n = len(seqs)
        self._seqs[0:n], self._lens[0:n] = seqs, limits
        check(
            lib.ps_draft_run(self._engine, n, self._seqs, self._lens, self._stop, keep_rows),
            "drafting",
        )

    def put_draft(self, seq: int, tokens: Sequence[int]) -> None:
        """Set a draft from elsewhere; an empty one clears the sequence's draft."""
        buffer = ffi.new("int32_t[]", list(tokens))
        check(lib.ps_draft_put(self._engine, seq, buffer, len(tokens)), "taking a draft")

    def drafted(self, seq: int) -> Any:
        """The sequence's `ps_draft`, valid until the next call."""
        if seq not in self._views:  # its address never changes
            check(lib.ps_draft_get(self._engine, seq, self._view))
            self._views[seq] = self._view[0]
        return self._views[seq]

    def score(self, seqs: Sequence[int]) -> None:
        """Have the companion score the drafts of these sequences."""
        n = len(seqs)
        self._seqs[0:n] = seqs
        check(lib.ps_score(self._engine, n, self._seqs), "scoring the draft")

    def verify(self, work: Sequence[tuple[int, int, int]]) -> None:
        """Do one decode on the target over (seq, n_prefill, n_draft) items; n_draft -1 only fills the KV.

        ALL_ROWS decodes the committed tokens that the KV lacks; the row of each can be read, but nothing can be accepted.
        """
        n = len(work)
        self._work[0:n] = work
        check(lib.ps_verify(self._engine, n, self._work), "verifying")

    def rows_behind(
        self, seq: int, tokens: Sequence[int], held: int
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Read tokens, of which the sequence holds the first `held`, in one decode; the logits behind each, [n_vocab]."""
        self.set_tokens(seq, tokens, held)
        self.verify([(seq, 0, ALL_ROWS)])
        return (self.row(seq, i) for i in range(len(tokens) - held))

    def accept(self, seq: int, sampler: int, gate: Gate) -> Any:
        """Accept, commit and roll back; returns the `ps_verdict`, valid until the next accept. sampler 0 is argmax."""
        pointer = ffi.cast("void *", sampler)
        check(
            lib.ps_accept(self._engine, seq, pointer, gate.gate, gate.state, self._verdict),
            "accepting",
        )
        return self._verdict

    def row(self, seq: int, i: int) -> npt.NDArray[np.float32]:
        """A copy of the logits of row i of the sequence's last verify, [n_vocab]. Only between verify and accept."""
        check(lib.ps_target_row(self._engine, seq, i, self._row))
        memory = ffi.buffer(self._row[0], 4 * self.n_vocab)
        return np.array(np.frombuffer(memory, dtype=np.float32))

    def temper(self, which: int = -1) -> int:
        """Which factor of the target's temperature a draft draws at, by its place in the list of native/ps_temper.c.

        which: the one from now on; -1 keeps it.
        """
        check(lib.ps_engine_temper(self._engine, which, self._count), "the draft's temperature")
        return int(self._count[0])

    def decode_us(self) -> tuple[int, int, int]:
        """Microseconds spent in llama.cpp's decodes so far, by role; frozen after `close`."""
        if lib.ps_counters_get(self._engine, self._counters) == lib.PS_OK:
            us = self._counters.us
            self._spent_us = us[0], us[1], us[2]
        return self._spent_us

    def cancel(self, raised: bool = True) -> None:
        """Raise or clear the cancel flag; safe from any thread."""
        lib.ps_engine_cancel(self._engine, raised)

    def close(self) -> None:
        """Let go of models and contexts; may be called twice. Only `cancel` and `decode_us` may run at the same time."""
        self.decode_us()
        self._engine = ffi.NULL
        self._views.clear()
        self.detach()


def _detach(engine: Any, owners: list[object]) -> None:
    for role in Role:
        lib.ps_engine_attach(engine, role, ffi.NULL, ffi.NULL)
    owners.clear()


# -- C's structs as objects -------------------------------------------------------------------------------------------


def emitted(verdict: Any, *, confirming: bool = False) -> tuple[Token, ...]:
    """The tokens of a `ps_verdict`; confirming: whether a relaxed token had to be confirmed by those after it."""
    n = verdict.n
    ids, sources = ffi.unpack(verdict.token, n), ffi.unpack(verdict.source, n)
    preferred, gaps = ffi.unpack(verdict.preferred, n), ffi.unpack(verdict.gap, n)
    return tuple(
        Token(
            id_,
            _SOURCES[source],
            gap,
            wanted,
            seen.behind if confirming and source == Source.RELAXED else None,
        )
        for id_, source, gap, wanted, seen in zip(ids, sources, gaps, preferred, verdict.seen)
    )


def draft_of(seq: int, view: Any) -> Draft:
    n = view.n
    draft = Draft(seq, n, p=ffi.unpack(view.p, n)) if n else Draft(seq, 0)
    if n and view.scored:
        seen = ffi.unpack(view.agreement, n)
        draft.s, draft.a, draft.pc = [x.s for x in seen], [x.a for x in seen], [x.pc for x in seen]
        draft.agree = [x.top == token for x, token in zip(seen, ffi.unpack(view.token, n))]
    return draft
