"""Whether a long batch keeps its memory: resident set while 2,000 short prompts are answered.

    python bench/soak.py MODEL.gguf OUT.svg [--records 2000] [--tokens 8] [--parallel 16] [--threads 2]

Prints the resident set after every hundredth record, as Markdown, and draws it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from pyspec.batch import Batch, Settings
from pyspec.measure.plots import new_axes, save_figure
from pyspec.measure.usage import resident_now

WORDS = ("river", "stone", "lamp", "garden", "winter", "letter", "music", "bread", "paper", "train")


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the prompts, print and draw the curve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    for name, value in {"records": 2000, "tokens": 8, "parallel": 16, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments)
    curve = soak(options)
    print("| records | resident MB |\n| ---: | ---: |")
    for done, size in curve:
        print(f"| {done} | {size:.1f} |")
    figure, axes = new_axes("resident set of a batch", "records done", "MB")
    axes.plot(*zip(*curve, strict=True))
    axes.set_ylim(bottom=0)
    save_figure(figure, options.out)


def soak(options: argparse.Namespace) -> list[tuple[int, float]]:
    """(records done, resident MB) after every hundredth record."""
    rng = random.Random(1)  # noqa: S311 - reproducible, not secret
    prompts = (
        f"A sentence on {' and '.join(rng.sample(WORDS, 3))}." for _ in range(options.records)
    )
    curve = []
    with Batch(
        options.model,
        parallel=options.parallel,
        n_ctx=256,
        settings=Settings(max_tokens=options.tokens),
        n_threads=options.threads,
        n_threads_batch=options.threads,
    ) as batch:
        for done, result in enumerate(batch.run(prompts), 1):
            if result.error:
                raise SystemExit(result.error)
            if done % 100 == 0:
                curve.append((done, resident_now()))
    return curve


if __name__ == "__main__":
    main()
