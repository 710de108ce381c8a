"""The speed of the best draft lengths in hindsight: an upper bound for every policy."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.draft.types import LONGEST

from .simulate import NOTHING, Answer, Costs


def oracle_speed(texts: Sequence[Answer], costs: Costs) -> float:
    """Tokens per ms of the best lengths in hindsight, one answer at a time.

    Correct tokens are verified, and wrong ones after them where a decode of more rows is cheaper. Each answer is solved backward
    over positions: best[t] is the least time from t committed tokens to the end. The draft model reads the prompt before its
    first token and then what each round makes it read again (`reread_ms`), or is not used for that answer at all.
    """
    ms = tokens = 0.0
    for text in texts:
        with_model = reading_ms(text, costs) + _least_ms(text, costs, model=True)
        ms += min(with_model, _least_ms(text, costs, model=False))
        tokens += text.length
    return tokens / ms


def _least_ms(text: Answer, costs: Costs, *, model: bool) -> float:
    n, step = text.length, costs.draft(1)
    verify = [costs.target(k + 1) for k in range(LONGEST + 1)]
    again = [reread_ms(text, costs, k) for k in range(LONGEST + 1)]
    best = [0.0] * (n + 1)
    for t in range(n - 1, 0, -1):
        best[t] = verify[0] + best[t + 1]
        for chain in (text.model(t) if model else NOTHING, text.lookup(t)):
            most = min(chain.n, LONGEST, n - t - 1)
            for k in range(1, most + 1):  # one wrong token more may be cheaper than none
                right, after = min(k, chain.matched), 0.0
                if not chain.match_length:
                    after = k * step + (again[right] if t + right + 1 < n else 0.0)
                best[t] = min(best[t], verify[k] + after + best[t + right + 1])
    return verify[0] + best[1]


def reading_ms(text: Answer, costs: Costs) -> float:
    """Milliseconds that the draft model takes to read the prompt, beyond a step."""
    return costs.draft(1 + text.unread(text.prompt - 1)) - costs.draft(1)


def reread_ms(text: Answer, costs: Costs, accepted: int) -> float:
    """Milliseconds that the draft model takes to read this many accepted tokens again."""
    return costs.draft(1 + accepted) - costs.draft(1) if text.window else 0.0
