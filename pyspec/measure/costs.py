"""What decodes cost on this machine, by a target's own engine: of a pair by rows, and of a target's tensor types.

Types are measured as several files of the same weights, all loaded at once; the files take turns, so that a slow moment of the
machine does not fall on one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.engine.handle import MAX_DRAFT, Engine
from pyspec.engine.timing import ready, verify_ms
from pyspec.llama import SpeculativeLlama
from pyspec.measure.simulate import Costs, Times
from pyspec.measure.tasks import Report, load_questions
from pyspec.policy.cost import CostCurve
from pyspec.policy.shapes import N_MAX, expand
from pyspec.policy.types import Floats
from pyspec.store.fetch import CONVERSIONS, ORIGINAL, Progress, convert, fetch
from pyspec.store.sources import Entry
from pyspec.store.watch import Watch
from pyspec.tables import TextTable, table_of
from pyspec.tokens import TokenLogprobs

log = logging.getLogger("pyspec")


class MeasuredCosts(msgspec.Struct):
    """Medians. target_ms: by depth, then by rows; companion_ms: by rows; draft_step_ms: one token.

    spread: the widest (upper quartile - lower quartile) / median of the target's times. draft_ms: of the draft's rows, read at
    once, of which the first is a step.
    """

    target_ms: dict[int, dict[int, float]]
    draft_step_ms: float
    companion_ms: dict[int, float]
    spread: float
    draft_ms: dict[int, float] = {}

    @property
    def rows(self) -> list[float]:
        """The target's times by rows at the least depth, from 0 rows on."""
        return expand(self.target_ms[min(self.target_ms)])

    @property
    def times(self) -> Costs:
        """At the least depth. Where no rows of the draft were measured, they have the shape of the target's."""
        target = self.target_ms[min(self.target_ms)]
        draft = Times(target, (self.draft_step_ms or target[1]) / target[1])
        if len(self.draft_ms) > 1:
            draft = Times({1: self.draft_step_ms} | self.draft_ms)
        return Costs(Times(target), draft, Times(self.companion_ms) if self.companion_ms else draft)

    def curve(self) -> CostCurve:
        """As policies take it: measured points, and lines between them."""
        return self.times.curve({depth: expand(times) for depth, times in self.target_ms.items()})


def measure_costs(
    llm: SpeculativeLlama,
    text: Sequence[int],
    *,
    kmax: int = 16,
    depths: Sequence[int] = (128, 1024),
    budget_s: float = 20.0,
    report: Callable[[float], None] = lambda _share: None,
) -> MeasuredCosts:
    """Measure within about `budget_s` seconds; `text` is repeated as far as the depths need.

    Row counts take turns, so that a slow moment of the machine does not fall on one of them.
    """
    assembly = llm.assembly
    engine: Engine = assembly.engine
    full = assembly.loop
    engine.cancel(raised=False)
    depths = [d for d in depths if d + kmax + 1 < llm.n_ctx()] or [max(1, llm.n_ctx() // 2)]
    long = (list(text) * (1 + (max(depths) + N_MAX) // max(1, len(text))))[: max(depths) + N_MAX]
    rows = range(1, min(kmax, full.longest) + 2)
    seen: dict[int, dict[int, list[float]]] = {}
    start = perf_counter()
    ready(engine, long, depths[0])
    reading = (perf_counter() - start) / depths[0]
    for i, depth in enumerate(depths):
        left = budget_s - (perf_counter() - start)
        if i and reading * depth > left:
            break  # reading so far would take more than all measuring may
        seen[depth] = _target(engine, long, depth, rows, 0.8 * budget_s / len(depths))
        report(0.8 * (i + 1) / len(depths))
    step = 0.0
    companion: dict[int, float] = {}
    draft: dict[int, float] = {}
    if full.draft_model:
        step, companion = _side(engine, long, depths[0], kmax, full.companion, 0.15 * budget_s)
        draft = _reading(engine, long, depths[0], 0.05 * budget_s)
    report(1.0)
    engine.set_tokens(0, [])
    llm.reset()
    medians = {d: {n: median(times) for n, times in s.items()} for d, s in seen.items()}
    return MeasuredCosts(medians, step, companion, _spread(seen), draft)


def _spread(seen: dict[int, dict[int, list[float]]]) -> float:
    all_times = [times for by_rows in seen.values() for times in by_rows.values()]
    quarters = [np.percentile(times, (25, 50, 75)) for times in all_times]
    return max(float((high - low) / middle) for low, middle, high in quarters)


def _target(
    engine: Engine, text: Sequence[int], depth: int, rows: Sequence[int], budget_s: float
) -> dict[int, list[float]]:
    """Times by rows, ms; those of one row and of two in any case."""
    found: dict[int, list[float]] = {n: [] for n in rows}
    end = perf_counter() + budget_s
    for _, n in product(range(41), rows):
        if perf_counter() > end and found[2 if 2 in found else 1]:
            break
        found[n].append(verify_ms(engine, text, depth, n))
    return _warm(found)


def _warm(found: dict[int, list[float]]) -> dict[int, list[float]]:
    """Without first times, which warmed caches and built graphs, but where the budget had no second one for."""
    return {n: times[1:] or times for n, times in found.items() if times}


def _side(
    engine: Engine, text: Sequence[int], depth: int, kmax: int, companion: bool, budget_s: float
) -> tuple[float, dict[int, float]]:
    """Milliseconds of a draft's step, and of the companion's look at so many rows."""
    widths = sorted({1, 2, 4, 8, kmax})
    steps, scores = ({n: list[float]() for n in widths} for _ in range(2))
    engine.set_stop([0.0], None)
    # read anew: a draft that reads states needs the states of what was read last
    engine.set_tokens(0, [])
    ready(engine, text, depth)
    engine.put_draft(0, [])
    engine.draft([0], [1])  # reads the text: of a large model that takes longer than all steps
    end = perf_counter() + budget_s
    for again, n in product(range(1, 32), widths):
        if steps[widths[-1]] and perf_counter() > end:
            break
        # from other places each time: at some the draft ends the text and goes no further
        ready(engine, text, depth - again % 8)
        engine.put_draft(0, [])
        start = perf_counter()
        engine.draft([0], [n], keep_rows=companion)
        middle = perf_counter()
        drafted = engine.drafted(0).n
        if companion and drafted:
            engine.score([0])
        # a draft that ended the text took one step more than it has tokens
        steps[n].append(1e3 * (middle - start) / min(n, drafted + 1))
        if drafted == n:
            scores[n].append(1e3 * (perf_counter() - middle))
    rows = {n: median(times) for n, times in _warm(scores).items()} if companion else {}
    return median(chain.from_iterable(_warm(steps).values())), rows


def _reading(engine: Engine, text: Sequence[int], depth: int, budget_s: float) -> dict[int, float]:
    """Milliseconds in which the draft reads so many tokens of the text at once and drafts one."""
    found: dict[int, list[float]] = {2: [], 4: [], 8: []}
    end = perf_counter() + budget_s
    for again, n in product(range(21), found):
        if again > 1 and perf_counter() > end:
            break
        at = depth // 2 + again % 8
        ready(engine, text, at)
        engine.draft([0], [1])
        ready(engine, text, at + n - 1)
        start = perf_counter()
        engine.draft([0], [1])
        found[n].append(1e3 * (perf_counter() - start))
    return {n: median(times) for n, times in _warm(found).items()}


def rows_after(
    llm: SpeculativeLlama, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[npt.NDArray[np.float32]]:
    """The target's logits [n_vocab] for each token of `answer`, given everything before it.

    By teacher forcing through the very engine, up to 64 tokens a decode.
    """
    engine = llm.session.engine
    engine.cancel(raised=False)
    llm.reset()  # the KV is no longer what it was; what is common to two calls is not read twice
    most = min(MAX_DRAFT, llm.session.loop.longest + 1)
    rows = [len(answer[i : i + most]) for i in range(0, len(answer), most)]
    yield from replay(engine, prompt, answer, [(n, n) for n in rows])


def replay(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], rounds: Iterable[tuple[int, int]]
) -> Iterator[npt.NDArray[np.float32]]:
    """The logits behind which each token of an answer came, its rounds decoded anew.

    rounds: rows of each decode, and tokens that came of it. The rows beyond those held drafts
    that were refused: another token stands in their place.
    """
    text, done, held = list(prompt), 0, -1
    for rows, emitted in rounds:
        ready(engine, text, len(text), held=held)
        part = list(answer[done : done + emitted])
        # the last token's row is the one before it: nothing follows that had to be decoded
        refused = [_other(engine, part[-1])] * (rows - emitted)
        engine.put_draft(0, [*part[:-1], *refused])
        engine.verify([(0, 0, rows - 1)])
        yield from (engine.row(0, i) for i in range(emitted))
        text += part
        done += emitted
        held = len(text) - 1  # as that decode left them, not read again in another one


def _other(engine: Engine, token: int) -> int:
    """A token that is not this one."""
    return token - 1 if token else engine.n_vocab - 1


def nats_of(row: npt.NDArray[np.float32], token: int) -> float:
    """-log of the target's probability of a token, by its logits."""
    return -TokenLogprobs.of(row, token).value


# -- which tensor type a target should have -----------------------------------------------------------------------------


ROWS = (1, 4, 8)
PREFILL = 512
LOSS_BOUND, SLOWER_BOUND = 0.01, 1.03
_DEPTH = 128
_TURNS, _REPEATS = 5, 5
_READ = 2048
"""Most tokens that the nats are measured on."""


class TypeFigures(msgspec.Struct):
    """One file. Times in ms, medians over turns.

    rows: of a decode of so many rows with logits; prefill: of 512 tokens. nats: a token of the text; loss:
    over the first file's; same: share of places with the first file's first choice. pays_from: drafted
    tokens of 3 that must be accepted before a verify of 4 rows is cheaper than decoding one by one.
    """

    kind: str
    size: int
    rows: dict[int, float]
    prefill: float
    nats: float
    loss: float
    same: float

    @property
    def pays_from(self) -> float:
        """Accepted tokens a verify of 4 rows must bring."""
        return self.rows[4] / self.rows[1] - 1.0


def measure_types(
    files: Mapping[str, Path], text: bytes, threads: int, report: Report = lambda *_: None
) -> list[TypeFigures]:
    """Figures of files of the same weights, by type; the first one is what the others are compared with.

    text: what the nats are measured on; 2,000 tokens or more tell types apart. Raises ModelInvalid.
    """
    with ExitStack() as opened:
        models = {kind: opened.enter_context(_open(path, threads)) for kind, path in files.items()}
        tokens = next(iter(models.values())).tokenize(text)
        tokens *= 1 + (PREFILL + 64) // max(1, len(tokens))
        steps = _TURNS + 1 + len(models)
        times: dict[str, list[dict[int, float]]] = {kind: [] for kind in models}
        for turn in range(_TURNS + 1):
            report(turn, steps, "times of decodes")
            for kind, llm in models.items():
                times[kind].append(_times(llm, tokens))
        read = {}
        for i, (kind, llm) in enumerate(models.items(), _TURNS + 1):
            report(i, steps, f"nats of {kind}")
            read[kind] = _read(llm, tokens[:_READ])
    first_nats, first_choices = next(iter(read.values()))
    found = []
    for kind, path in files.items():
        _, *turns = times[kind]  # the first one warms up
        medians = {n: median(turn[n] for turn in turns) for n in turns[0]}
        prefill = medians.pop(PREFILL)
        nats, choices = read[kind]
        loss, same = nats.mean() - first_nats.mean(), (choices == first_choices).mean()
        figures = (float(value) for value in (nats.mean(), loss, same))
        found.append(TypeFigures(kind, path.stat().st_size, medians, prefill, *figures))
    return found


def _open(path: Path, threads: int) -> SpeculativeLlama:
    return SpeculativeLlama(
        str(path), draft="none", companion="none", n_ctx=1024, n_batch=PREFILL, n_ubatch=PREFILL,
        n_threads=threads, verbose=False,
    )  # fmt: skip


def _times(llm: SpeculativeLlama, tokens: Sequence[int]) -> dict[int, float]:
    """Milliseconds of one prefill, and of a few verifies of each width behind its first tokens."""
    engine = llm.assembly.engine
    engine.set_tokens(0, ())
    start = perf_counter()
    ready(engine, tokens, PREFILL + 1, chunk=PREFILL)
    found = {PREFILL: 1e3 * (perf_counter() - start)}
    for n in ROWS:
        found[n] = median(verify_ms(engine, tokens, _DEPTH, n) for _ in range(_REPEATS))
    return found


def _read(llm: SpeculativeLlama, tokens: Sequence[int]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Nats of each token given those before it in its block of 512, and the first choices."""
    nats, choices = [], []
    for start in range(0, len(tokens) - 1, PREFILL):
        first, *rest = tokens[start : start + PREFILL]
        for token, row in zip(rest, rows_after(llm, [first], rest), strict=True):
            nats.append(nats_of(row, token))
            choices.append(row.argmax())
    return np.array(nats), np.array(choices)


def best_type(found: Sequence[TypeFigures]) -> TypeFigures:
    """The type to have: the fastest of those that lose at most 0.01 nats and do not decode slower plainly.

    Fastest by the geometric mean of its times; the first file where no other fulfils both.
    """
    first = found[0]
    fine = [f for f in found if f.loss <= LOSS_BOUND and f.rows[1] <= SLOWER_BOUND * first.rows[1]]
    return min(fine, key=lambda f: float(np.mean(np.log([*f.rows.values(), f.prefill]))))


def type_table(found: Sequence[TypeFigures]) -> TextTable:
    """The figures, the best type marked."""
    best = best_type(found)
    return table_of(found, {
        "": lambda f: f"{f.kind} (best here)" if f is best else f.kind,
        "MB": lambda f: f"{f.size / 1e6:.0f}",
        **{f"{n} rows ms" if n > 1 else "1 row ms": partial(_ms, rows=n) for n in ROWS},
        f"prefill {PREFILL} ms": lambda f: f"{f.prefill:.0f}",
        "nats a token": lambda f: f"{f.nats:.3f} ({f.loss:+.3f})",
        "same first choice": lambda f: f"{100 * f.same:.1f} %",
        "of 3 drafted must be accepted": lambda f: f"{f.pays_from:.2f}" + ": never pays" * (f.pays_from >= 3),
    })  # fmt: skip


def _ms(found: TypeFigures, rows: int) -> str:
    return f"{found.rows[rows]:.1f}"


def all_types(entry: Entry, threads: int, progress: Progress, report: Report) -> list[TypeFigures]:
    """Figures of a known model as it comes and as each type it can be converted to.

    The files made for this stay in the cache. Times of a machine that others used meanwhile are given with a warning. Raises
    FetchError.
    """
    files = {ORIGINAL: fetch(entry, progress)}
    files |= {kind: convert(entry, kind, progress) for kind in CONVERSIONS}
    text = "\n\n".join("\n".join(question.turns) for question in load_questions())
    watch = Watch()
    found = measure_types(files, text.encode(), threads, report)
    if watch.busy(threads):
        log.warning(
            "other programs took %.1f processors meanwhile, so these times say little: run it again when the machine is quiet",
            watch.others(),
        )
    return found
