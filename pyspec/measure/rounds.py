"""Recorded rounds: what would be drafted from every position of a greedy answer, and the files that bench/replay.py reads.

A file is JSON lines, UTF-8. The first line says what was recorded:

    {"pyspec_rounds": 1, "target": NAME, "draft": NAME, "companion": NAME or "", "kmax": K}

Every other line is one draft chain: what a drafter would propose at position t of an answer, if
the answer's tokens before t were committed and token t-1 the last of them (for t = 0: the last
token of the prompt). Chains of one answer stand together, t ascending; a position may have a chain
of each source, or none.

    answer        id of the answer, text or number
    category      its category, text
    t             position, 0-based; 0 <= t < length
    length        number of tokens of the answer, the same on all its lines
    prompt        number of tokens of its prompt, likewise; absent for 64
    source        "model" or "lookup"
    match_length  tokens that matched, for "lookup"; else 0
    choices       how many different tokens had followed the match, for "lookup"; absent for 1
    p, h          per drafted token, up to K: the draft's full-softmax probability of it and the
                  entropy in nats; absent for "lookup"
    s, a, pc, agree  per drafted token: S, A, the companion's probability of it, whether it is the
                  companion's argmax (0 or 1); absent where no companion ran
    ok            per drafted token: 1 if it and all before it in the chain equal the answer's
                  tokens t, t+1, ..., else 0

Chains go on after the first mismatch as the drafter would (a policy sees those tokens' p before
it knows), and stop early only at the drafter's own end, e.g. an end-of-generation token. A recorder
writes them by drafting K tokens from every position of a finished answer. Round at position t that
accepts m tokens: the next round is at t + m + 1. So `ok` may be all that decides how far it goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from math import exp
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from pyspec.drafters import LookupDrafter
from pyspec.llama import SpeculativeLlama
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import LOOKUP, MODEL, Draft, Outcome, Place, Plan, logit
from pyspec.sampling import Sampling


class RoundsHeader(msgspec.Struct):
    """First line of a file of rounds."""

    pyspec_rounds: int
    target: str = ""
    draft: str = ""
    companion: str = ""
    kmax: int = 16


class Chain(msgspec.Struct, omit_defaults=True):
    """One draft chain; see the module's text."""

    answer: str | int
    category: str
    t: int
    length: int
    ok: list[int]
    source: str = MODEL
    match_length: int = 0
    choices: int = 1
    p: list[float] = []
    h: list[float] = []
    s: list[float] | None = None
    a: list[float] | None = None
    pc: list[float] | None = None
    agree: list[int] | None = None
    prompt: int = 64

    @property
    def matched(self) -> int:
        """Tokens from the start that the target would accept."""
        return self.ok.index(0) if 0 in self.ok else len(self.ok)

    def draft(self, n: int, seq: int = 0, companion: bool = True) -> Draft:
        """The first n tokens as a policy sees them."""
        if self.source == LOOKUP:
            return Draft(
                seq, n, source=LOOKUP, match_length=self.match_length, choices=self.choices
            )
        out = Draft(seq, n, self.p[:n], self.h[:n])
        if companion and self.s and self.a and self.pc and self.agree:
            out.s, out.a, out.pc = self.s[:n], self.a[:n], self.pc[:n]
            out.agree = [bool(x) for x in self.agree[:n]]
        return out


class Answer(msgspec.Struct):
    """All chains of one answer, by position."""

    name: str | int
    category: str
    length: int
    model: dict[int, Chain]
    lookup: dict[int, Chain]
    prompt: int = 64


def group(chains: Iterable[Chain]) -> list[Answer]:
    """Chains by answer."""
    answers: dict[str | int, Answer] = {}
    for c in chains:
        answer = answers.setdefault(
            c.answer, Answer(c.answer, c.category, c.length, {}, {}, c.prompt)
        )
        (answer.lookup if c.source == LOOKUP else answer.model)[c.t] = c
    return list(answers.values())


def read_answers(lines: Iterable[str | bytes]) -> list[Answer]:
    """Parse a file of rounds. Raises ValueError with the line number where it is not one."""
    chains: list[Chain] = []
    decode = msgspec.json.Decoder(Chain).decode
    for number, line in enumerate(lines, 1):
        try:
            if number == 1:
                if msgspec.json.decode(line, type=RoundsHeader).pyspec_rounds != 1:
                    raise ValueError("not a file of rounds, version 1")
                continue
            if not line.strip():
                continue
            chains.append(decode(line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: {error}") from None
    return group(chains)


def write_rounds(path: Path, header: RoundsHeader, chains: Iterable[Chain]) -> int:
    """Write a file of rounds, packed where its name ends in .npz; returns how many chains."""
    chains = list(chains)
    if path.suffix == ".npz":
        pack(path, header, chains)
        return len(chains)
    with path.open("wb") as out:
        out.write(msgspec.json.encode(header) + b"\n")
        for chain in chains:
            out.write(msgspec.json.encode(chain) + b"\n")
    return len(chains)


_LOGIT_STEP = 16.0 / 255.0
_COLUMNS = ("answer", "t", "n", "matched", "match_length", "choices")


def pack(path: Path, header: RoundsHeader, chains: Sequence[Chain]) -> None:
    """Write rounds in a tenth of the space: one byte for each of p, h, s, a, pc and agree.

    Probabilities are kept as logits in steps of 0.06, entropies and S and A in steps of 1/255 of their range.
    """
    answers = {c.answer: (str(c.answer), c.category, c.length, c.prompt) for c in chains}
    place = {name: i for i, name in enumerate(answers)}
    rows = [(place[c.answer], c.t, len(c.ok), c.matched, c.match_length, c.choices) for c in chains]
    model = [c for c in chains if c.source == MODEL]
    columns = {
        "p": _bytes([_squeezed(x) for c in model for x in c.p]),
        "h": _bytes([min(x, 12.0) / 12.0 for c in model for x in c.h]),
    }
    if all(c.s and c.a and c.pc and c.agree for c in model):
        columns |= {
            "s": _bytes([x for c in model for x in c.s or ()]),
            "a": _bytes([x for c in model for x in c.a or ()]),
            "pc": _bytes([_squeezed(x) for c in model for x in c.pc or ()]),
            "agree": _bytes([float(x) for c in model for x in c.agree or ()]),
        }
    meta = msgspec.json.encode({"header": header, "answers": list(answers.values())})
    table = np.array(rows, dtype=np.int16).T
    with path.open("wb") as out:
        np.savez_compressed(
            out,
            meta=np.frombuffer(meta, dtype=np.uint8),
            **dict(zip(_COLUMNS, table, strict=True)),
            **columns,
        )


def unpack(path: Path) -> list[Answer]:
    """Read what `pack` wrote."""
    with np.load(path) as file:
        data: dict[str, Any] = {name: file[name] for name in file.files}
    answers = msgspec.json.decode(data["meta"].tobytes())["answers"]
    p, h = _logistic(data["p"]), (data["h"] * (12.0 / 255.0)).tolist()
    seen = [(data[x] / 255.0).tolist() for x in ("s", "a")] if "s" in data else []
    pc, agree = (_logistic(data["pc"]), (data["agree"] > 0).tolist()) if seen else ([], [])
    chains, at = [], 0
    for k, t, n, matched, match, choices in zip(*(data[c].tolist() for c in _COLUMNS), strict=True):
        name, category, length, prompt = answers[k]
        ok = [1] * matched + [0] * (n - matched)
        chain = Chain(name, category, t, length, ok, prompt=prompt, choices=choices)
        if match:
            chain.source, chain.match_length = LOOKUP, match
        else:
            chain.p, chain.h = p[at : at + n], h[at : at + n]
            if seen:
                chain.s, chain.a = seen[0][at : at + n], seen[1][at : at + n]
                chain.pc, chain.agree = pc[at : at + n], [int(x) for x in agree[at : at + n]]
            at += n
        chains.append(chain)
    return group(chains)


def _squeezed(p: float) -> float:
    return (logit(p) + 8.0) / 16.0


def _bytes(values: Sequence[float]) -> Any:
    return np.clip(np.rint(np.asarray(values) * 255.0), 0, 255).astype(np.uint8)


def _logistic(squeezed: Any) -> list[float]:
    return [1.0 / (1.0 + exp(8.0 - _LOGIT_STEP * int(x))) for x in squeezed]


# -- recording ---------------------------------------------------------------------------------------------------------


class _Recording(LengthPolicy):
    """Drafts kmax tokens each round, keeps them, and verifies none."""

    def __init__(self, engine: Any, kmax: int) -> None:
        super().__init__()
        self._engine, self._kmax = engine, kmax
        self.drafts: dict[int, tuple[list[int], Draft]] = {}
        self.round = 0

    def plan(self, places: Sequence[Place]) -> Plan:
        """The longest drafts there may be, judged by the companion."""
        return Plan([min(self._kmax, place.room) for place in places], use_companion=True)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Keep the draft; verify nothing of it."""
        (draft,) = drafts
        view = self._engine.drafted(0)
        self.drafts[self.round] = [int(view.token[i]) for i in range(draft.n)], draft
        return [0]

    def observe(self, outcome: Outcome) -> None:
        """Count the round."""
        self.round += 1
        self.counts.add(outcome)

    def watch(self, n_seq: int, t_verify: float, t_round: float, depth: int) -> None:
        """Count the round."""
        self.round += 1


def record_answer(
    llm: SpeculativeLlama,
    prompt: Sequence[int],
    *,
    name: str | int,
    category: str,
    max_tokens: int = 128,
    kmax: int = 16,
    until: float = math.inf,
) -> list[Chain]:
    """The chains of one greedy answer, model and lookup, by position; the answer ends at `until` on `perf_counter`.

    Chains near the end are shorter, as in the loop: the token after the draft must fit, too.
    """
    recording = _Recording(llm.assembly.session.engine, kmax)
    tokens: list[int] = []
    steps = llm.steps(
        prompt,
        Sampling(temperature=0.0),
        max_tokens=max_tokens,
        policy=recording,
        drafting="model",
    )
    for step in steps:
        tokens += [token.id for token in step.tokens]
        if perf_counter() > until:
            break
    steps.close()
    chains: list[Chain] = []
    index = LookupDrafter()
    for t in range(len(tokens)):
        if t in recording.drafts:
            drafted, draft = recording.drafts[t]
            chains += _chain(tokens, t, drafted, draft, name, category)
        found = index.propose(0, [*prompt, *tokens[:t]], min(kmax, len(tokens) - t - 1))
        if found.tokens:
            draft = Draft(0, len(found.tokens), source=LOOKUP)
            draft.match_length, draft.choices = found.match_length, found.choices
            chains += _chain(tokens, t, list(found.tokens), draft, name, category)
    for chain in chains:
        chain.prompt = len(prompt)
    return chains


def _chain(
    tokens: Sequence[int],
    t: int,
    drafted: list[int],
    draft: Draft,
    name: str | int,
    category: str,
) -> Iterable[Chain]:
    """The chain of one position, cut where the answer ends: what came after is not known."""
    n = min(len(drafted), len(tokens) - t)
    if n < 1:
        return
    same = next((i for i in range(n) if drafted[i] != tokens[t + i]), n)
    chain = Chain(name, category, t, len(tokens), [int(i < same) for i in range(n)])
    chain.source = draft.source
    chain.match_length, chain.choices = draft.match_length, draft.choices
    if draft.source == MODEL:
        chain.p = [round(x, 6) for x in draft.p[:n]]
        chain.h = [round(x, 5) for x in draft.entropy[:n]]
        if draft.s and draft.a and draft.pc and draft.agree:
            chain.s = [round(x, 5) for x in draft.s[:n]]
            chain.a = [round(x, 5) for x in draft.a[:n]]
            chain.pc = [round(x, 6) for x in draft.pc[:n]]
            chain.agree = [int(x) for x in draft.agree[:n]]
    yield chain
