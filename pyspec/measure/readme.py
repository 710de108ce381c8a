"""The README's table of results, made from `bench/results/*/results.json`.

    python -m pyspec.measure.readme [--check]    in the repository's root

What stands between `<!-- results -->` and `<!-- /results -->` is replaced; with --check it is
compared instead, and a difference ends with exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from pyspec.errors import InputError
from pyspec.measure.report import Results, speed_table

START, END = "<!-- results -->", "<!-- /results -->"
_SHOWN = 12


def results_block(folder: Path, link: str = "bench/results") -> str:
    """The tables of all results under `folder`, by name; empty where there are none."""
    parts = []
    for path in sorted(folder.glob("*/results.json")):
        try:
            results = msgspec.json.decode(path.read_bytes(), type=Results)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: {error}") from None
        setup = results.setup
        target = setup.files["target"].name
        parts.append(
            f"{results.title}: {target}, {setup.machine}, {setup.threads} threads, "
            f"{setup.max_tokens} tokens, temperature {setup.temperature:g}, {setup.day}. Speed-up "
            f"over plain decoding ([page]({link}/{path.parent.name}/README.md)).\n\n"
            + speed_table(results.summaries[:_SHOWN])
        )
    return "\n\n".join(parts)


def replaced(text: str, block: str) -> str:
    """`text` with the block between the marks replaced. Raises InputError without the marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InputError(f"the README has no {START} ... {END}")
    inside = f"\n{block}\n" if block else "\n"
    return f"{before}{START}{inside}{END}{after}"


def main(arguments: list[str]) -> int:
    """Replace or check; the exit code."""
    readme = Path("README.md")
    text = readme.read_text(encoding="utf-8")
    new = replaced(text, results_block(Path("bench/results")))
    if "--check" in arguments:
        return int(new != text)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
