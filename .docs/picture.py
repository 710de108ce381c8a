"""Draws .docs/pages/tokens.svg, the README's picture: a real answer, each token coloured by its source.

Run it in the repository's root. It answers the README's first command with a fixed seed.
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pyspec import ChatTemplate, Sampling, SpeculativeLlama, stream_text
from pyspec.screen import TokenPaint, print_legend

PAGES = Path(__file__).with_name("pages")
TEXT = Path("tests/examples/lighthouse.txt")
ASKED = "List the facts of this text, one per line:"
SEED = 5
WIDTH = 100


def main() -> None:
    """Answer with the default model, and draw what `pyspec generate --tokens` shows."""
    prompt = f"{ASKED}\n\n{TEXT.read_text(encoding='utf-8')}"
    console = Console(record=True, file=io.StringIO(), width=WIDTH)
    console.print(
        f'$ pyspec generate --tokens --seed {SEED} \\\n    "{ASKED}" -f {TEXT}\n',
        style="dim",
        highlight=False,
    )
    with SpeculativeLlama("smollm2-135m-instruct", draft="auto", n_ctx=4096) as llm:
        template = ChatTemplate.of(llm)
        messages = template.prompt([{"role": "user", "content": prompt}])
        sampling = Sampling(temperature=0.8, seed=SEED)
        pieces = list(stream_text(llm, messages, sampling, stop=template.stop, chat=True))
        tokens = [token for piece in pieces for token in piece.tokens]
        paint = TokenPaint(llm.piece)
        paint.take(tokens)
        parts = paint("".join(piece.text for piece in pieces))
        console.print(Text.assemble(*parts))
        print_legend(console, tokens)
    console.save_svg(str(PAGES / "tokens.svg"), title="pyspec")


if __name__ == "__main__":
    main()
