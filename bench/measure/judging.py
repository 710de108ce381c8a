"""Scores answers by a model that did not write them: their likelihood under a judge of another size or family."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.profiling.logits import nats_of, rows_after
from pyspec.profiling.questions import Question
from pyspec.text.template import ChatTemplate

_READ = 512


class TextJudge:
    """Reads questions and answers as text, with its own template and tokens. kwargs: as for `SpeculativeLlama`."""

    def __init__(self, model: Path, **kwargs: Any) -> None:
        self.path = model
        given = {"n_batch": _READ, "n_ubatch": _READ, "verbose": False} | kwargs
        self._llm = SpeculativeLlama(str(model), draft="none", companion="none", **given)
        self._template = ChatTemplate.of(self._llm)

    def nats(self, question: Question, text: str) -> float:
        """Nats per token (the judge's own) of the answer to a question's first turn; 0 for an empty one.

        If both exceed its context, the prompt loses its beginning and the answer its end.
        """
        answer = self._llm.tokenize(text.encode(), add_bos=False)[: self._llm.n_ctx() // 2]
        if not answer:
            return 0.0
        prompt = question.prompt(self._template)[len(answer) - self._llm.n_ctx() :]
        rows = rows_after(self._llm, prompt, answer)
        return fmean(nats_of(row, token) for row, token in zip(rows, answer, strict=True))

    def close(self) -> None:
        """Free the model."""
        self._llm.close()
