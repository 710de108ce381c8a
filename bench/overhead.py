"""What speculation costs outside llama.cpp's decodes: a round in microseconds, and loading in milliseconds.

MODEL is a file or a name; without one, the default target. The modes take turns: `none` has no draft; `plain` has one and is told
not to use it; `auto` decides. `apart` is `auto` where llama.cpp draws, the baseline for coupled noise above temperature 0
(--temp). `confirmed` is `auto` with a margin rule that looks at what follows (`confirm`). It should take at most 1 % of a
round more outside decodes than `auto`.

`loading` is the time of `SpeculativeLlama(MODEL)` in a new process that has imported everything; drafts may take 200 ms more than
`none`. `outside` is all the time of an answer that is not in a decode, without the prompt, per round and as a share of the whole.
Choosing is the policy's three calls, learning included; checking is the extension's work on the verified rows; the rest is
Python's. Figures are medians over runs, and means over an answer's rounds. Goals: choosing at most 50 us, outside at most 2 % of
plain decoding.

A second table has prompts of --prompt tokens: the time of the chat template in addition to llama.cpp's tokenizer, for one
question, for a conversation of ten turns whose answers are known as tokens, and for one that quotes control words; goal: 2 ms.
After it: what the template adds to a new process until its first prompt, compared with the same text without one; goal: 50 ms.
With --out FOLDER both tables and their page are stored there.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

from common import Made, arguments, in_turns, keep, made_by, page_of
from measure.contenders import Ours
from measure.records import ModelFile, model_file
from measure.report import table
from measure.tasks import Options, parse_mode

from pyspec import SpeculativeLlama
from pyspec.store.locate import resolve
from pyspec.text.messages import Message
from pyspec.text.template import ChatTemplate

TEXT = "Write a long letter from a traveller who has seen the sea for the first time."
PARTS = dict.fromkeys(("plan", "choose", "observe", "watch"), "choosing") | {"accept": "checking"}
HEAD = ("draft", "tokens/s", "outside decodes us", "choosing us", "checking us", "Python us", "round us", "share outside",
        "loading ms")  # fmt: skip
MODES = {
    "none": "strict",
    "plain": "plain",
    "auto": "strict",
    "apart": "strict+apart",
    "confirmed": "margin/confirm=1",
}
LOADING = """
import sys
from pyspec import SpeculativeLlama
model, draft, threads = sys.argv[1:]
print(SpeculativeLlama(model, draft=draft, n_ctx=2048, n_threads=int(threads) or None).load_ms)
"""


STARTING = """
import sys
from time import perf_counter
import pyspec.engine.target
from pyspec import SpeculativeLlama
how, model, threads = sys.argv[1:]
if how == "bare":
    pyspec.engine.target.brings_template = lambda _path: False
begin = perf_counter()
llm = SpeculativeLlama(model, draft="none", n_ctx=2048, n_threads=int(threads) or None)
if how == "bare":
    llm.template.bare("Why is the sea salt?")
else:
    llm.template.prompt([{"role": "user", "content": "Why is the sea salt?"}])
print(1e3 * (perf_counter() - begin))
"""


class Overhead(Made):
    """The results. modes: a row each; prompts: the second table, and the line after it."""

    target: ModelFile
    modes: list[list[str]]
    prompts: str

    def page(self) -> str:
        """The title, a description and the tables."""
        made = f"{self.made} Target {self.target.name}, sha256 {self.target.sha256}."
        return page_of("Beside decodes", __doc__, made, table(HEAD, self.modes), self.prompts)


def watch(thing: Any, name: str, spent: dict[str, float]) -> None:
    """Add the seconds that a method takes to `spent`."""
    method, part = getattr(thing, name), PARTS[name]

    def timed(*args: Any) -> Any:
        start = perf_counter()
        try:
            return method(*args)
        finally:
            spent[part] += perf_counter() - start

    setattr(thing, name, timed)


class TimedMode:
    """One mode of answering, with its own model."""

    def __init__(self, name: str, model: str, threads: int, temperature: float = 0.0) -> None:
        draft = "none" if name == "none" else "auto"
        self._loading = [sys.executable, "-c", LOADING, model, draft, str(threads)]
        self.llm = SpeculativeLlama(
            model, draft=draft, n_ctx=2048, n_threads=threads or None, verbose=False
        )
        self._asked = Options(temperature=temperature)
        self._mode = Ours(self.llm, parse_mode(MODES[name]), temperature)
        self._spent: dict[str, float] = defaultdict(float)
        for part in ("plan", "choose", "observe", "watch"):
            watch(self._mode.policy, part, self._spent)
        watch(self.llm.assembly.engine, "accept", self._spent)
        self._prompt = ChatTemplate.of(self.llm).prompt([Message(role="user", content=TEXT)])

    def answer(self, n: int) -> dict[str, float]:
        """Tokens a second; per round, in us: outside decodes, choosing, checking; the share outside; ms of loading."""
        loaded = subprocess.run(self._loading, check=True, capture_output=True, text=True)
        self._spent.clear()
        self._mode.answer(self._prompt, n, self._asked)
        times, rounds = self.llm.last_timings, self.llm.last_speculation["rounds"]
        if rounds < n // 4:
            raise SystemExit(f"the answer ended after {rounds} rounds: nothing can be said")
        whole = times["total_ms"] - times["prefill_ms"]
        us = {"outside": 1e3 * times["other_ms"]}
        us |= {part: 1e6 * self._spent[part] for part in ("choosing", "checking")}
        return {
            "rate": times["tokens_per_second"],
            **{f"us {name}": part / rounds for name, part in us.items()},
            "us round": 1e3 * whole / rounds,
            "share": times["other_ms"] / whole,
            "loading": float(loaded.stdout.split()[0]),
        }


def conversations(llm: SpeculativeLlama, n: int) -> dict[str, list[dict[str, Any]]]:
    """Conversations of about n tokens, by what they contain."""
    piece = TEXT + " "
    ids = llm.tokenize(piece.encode(), add_bos=False)

    def text(share: int) -> str:
        return piece * max(1, n // (share * len(ids)))

    turns: list[dict[str, Any]] = []
    for _ in range(5):
        said = llm.tokenize(text(10).encode(), add_bos=False)
        turns.append({"role": "user", "content": text(10)})
        answer = llm.detokenize(said).decode()
        turns.append({"role": "assistant", "content": answer, "tokens": said})
    return {
        "one question": [{"role": "user", "content": text(1)}],
        "ten turns": [*turns, {"role": "user", "content": "Go on."}],
        "control words": [{"role": "user", "content": text(1) + "<|im_end|><|im_start|>"}],
    }


def beyond(llm: SpeculativeLlama, messages: list[dict[str, Any]], runs: int) -> list[str]:
    """A prompt's tokens, ms of the tokenizer for its text, ms of the whole prompt, and the difference; medians."""
    shown = llm.template.render(messages).encode()
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs + 1):
        begin = perf_counter()
        llm.tokenize(shown, add_bos=False, special=True)
        middle = perf_counter()
        tokens = llm.template.prompt(messages)
        times["tokenizer"].append(1e3 * (middle - begin))
        times["prompt"].append(1e3 * (perf_counter() - middle))
    tokenizer, prompt = (median(each[1:]) for each in times.values())  # the first is not counted
    return [str(len(tokens)), f"{tokenizer:.2f}", f"{prompt:.2f}", f"{prompt - tokenizer:.2f}"]


def starting(model: str, threads: int, runs: int) -> dict[str, float]:
    """Ms until the first prompt of a new process, with the template and without; medians."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for how in ("template", "bare"):
            command = [sys.executable, "-c", STARTING, how, model, str(threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[how].append(float(done.stdout.split()[-1]))
    return {how: median(times) for how, times in found.items()}


def show_prompts(model: str, n: int, runs: int, threads: int) -> str:
    """Print and return what prompts cost in addition to the tokenizer."""
    llm = SpeculativeLlama(model, draft="none", n_ctx=2048, n_threads=threads or None)
    talks = conversations(llm, n)
    rows = [[name, *beyond(llm, messages, 5 * runs)] for name, messages in talks.items()]
    llm.close()
    ms = starting(model, threads, runs)
    text = (
        f"{table(('prompt', 'tokens', 'tokenizer ms', 'prompt ms', 'beyond ms'), rows)}\n\n"
        f"until the first prompt: {ms['template']:.0f} ms with its template, {ms['bare']:.0f} ms for the text alone"
    )
    print(text)
    return text


def main(words: Sequence[str] | None = None) -> None:
    """Time the modes in turns, and print the tables; with --out, also store them."""
    how = {
        "modes": "none,plain,auto",
        "temp": 0.0,
        "tokens": 128,
        "prompt": 4000,
        "runs": 3,
        "threads": 0,
        "out": None,
    }
    options = arguments(__doc__, words, "model?", **how)
    model, names = options.model or str(resolve()), options.modes.split(",")
    modes = {name: TimedMode(name, model, options.threads, options.temp) for name in names}
    runs = in_turns(modes, options.runs + 1, lambda name: modes[name].answer(options.tokens))
    rows = []
    for name, (_, *found) in runs.items():  # the first is not counted
        speed, outside, choosing, checking, whole, share, ms = (
            median(run[key] for run in found) for key in found[0]
        )
        us = [
            f"{x:.0f}" for x in (outside, choosing, checking, outside - choosing - checking, whole)
        ]
        rows.append([name, f"{speed:.1f}", *us, f"{100 * share:.1f} %", f"{ms:.0f}"])
    print(table(HEAD, rows))
    for mode in modes.values():
        mode.llm.close()
    prompts = ""
    if options.prompt:
        prompts = show_prompts(model, options.prompt, options.runs, options.threads)
    if options.out:
        found = Overhead(*made_by("overhead", words), model_file(resolve(model)), rows, prompts)
        keep(found, options.out / "overhead.json")


if __name__ == "__main__":
    main()
