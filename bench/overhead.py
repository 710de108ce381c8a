"""What a round costs beside llama.cpp's decodes: microseconds of choosing a length, of C's own work, and of Python.

    python bench/overhead.py [MODEL] [--modes none,plain,auto] [-n 128] [--runs 3] [--threads N]

The modes take turns: `none` has no draft, `plain` has one and is told not to use it, `auto` decides. `outside` is all the time
of an answer that is not in a decode, prompt aside, per round and as a share of the whole; choosing is the policy's three calls,
learning included; checking the extension's look at the verified rows; what remains is Python's. Medians over runs, but the mean
over an answer's rounds. Asked: choosing at most 50 us, outside at most 2 % of plain decoding.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspec import Speculation, SpeculativeLlama, Strict
from pyspec.sampling import Sampling
from pyspec.store import resolve
from pyspec.template import ChatTemplate, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = "Write a long letter from a traveller who has seen the sea for the first time."
GREEDY = Sampling(temperature=0.0)
PARTS = dict.fromkeys(("plan", "choose", "observe", "watch"), "choosing") | {"accept": "checking"}


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


class Timed:
    """One mode of answering, with a model of its own."""

    def __init__(self, name: str, model: str, threads: int) -> None:
        self.llm = SpeculativeLlama(
            model,
            draft="none" if name == "none" else "auto",
            n_ctx=2048,
            n_threads=threads or None,
            n_threads_batch=threads or None,
            verbose=False,
        )
        self._asked = Speculation(verification=Strict(), enabled=name != "plain")
        self._policy = self.llm.new_policy(self._asked)
        self._spent: dict[str, float] = defaultdict(float)
        for part in ("plan", "choose", "observe", "watch"):
            watch(self._policy, part, self._spent)
        watch(self.llm.assembly.session.engine, "accept", self._spent)
        self._prompt = ChatTemplate.of(self.llm).prompt([Message(role="user", content=TEXT)])

    def answer(self, n: int) -> list[float]:
        """Tokens a second; per round, in us: outside decodes, choosing, checking; and the share outside."""
        self._spent.clear()
        for _ in self.llm.steps(
            self._prompt, GREEDY, max_tokens=n, speculation=self._asked, policy=self._policy
        ):
            pass
        times, rounds = self.llm.last_timings, self.llm.last_speculation["rounds"]
        if rounds < n // 4:
            raise SystemExit(f"the answer ended after {rounds} rounds: nothing can be said")
        whole = times["total_ms"] - times["prefill_ms"]
        us = [1e3 * times["other_ms"], 1e6 * self._spent["choosing"], 1e6 * self._spent["checking"]]
        return [
            times["tokens_per_second"],
            *(part / rounds for part in us),
            times["other_ms"] / whole,
        ]


def main(argv: Sequence[str] | None = None) -> None:
    """Time the modes by turns, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", help="a file or a name; without it the default target")
    parser.add_argument("--modes", default="none,plain,auto")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=0, help="0 for llama-cpp-python's own choice"
    )
    args = parser.parse_args(argv)
    modes = {
        name: Timed(name, args.model or str(resolve()), args.threads)
        for name in args.modes.split(",")
    }
    runs: dict[str, list[list[float]]] = {name: [] for name in modes}
    for turn in range(args.runs + 1):
        for name, mode in modes.items():
            found = mode.answer(args.tokens)
            if turn:  # the first is not counted
                runs[name].append(found)
    print(
        "| draft | tokens/s | outside decodes us | choosing us | checking us | Python us | share outside |"
    )
    print("|" + " --- |" * 7)
    for name, found in runs.items():
        speed, outside, choosing, checking, share = (median(column) for column in zip(*found))
        rest = outside - choosing - checking
        print(
            f"| {name} | {speed:.1f} | {outside:.0f} | {choosing:.0f} | {checking:.0f} | {rest:.0f} | {100 * share:.1f} % |"
        )
    for mode in modes.values():
        mode.llm.close()


if __name__ == "__main__":
    main()
