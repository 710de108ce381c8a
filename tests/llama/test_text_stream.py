"""Answers as text."""

from pyspec.llama.generation import stream_text
from pyspec.sampling.options import Sampling

GREEDY = Sampling(temperature=0.0)


def test_pieces_join_to_the_answer(open_llama, tiny_target):
    llm = open_llama(tiny_target)
    prompt = llm.tokenize(b"abc", add_bos=False)
    pieces = list(stream_text(llm, prompt, GREEDY, max_tokens=9))
    ids = [token.id for piece in pieces for token in piece.tokens]
    assert "".join(p.text for p in pieces) == b"".join(map(llm.piece, ids)).decode()
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]


def test_a_cancel_ends_with_what_there_is(open_llama, tiny_target):
    llm = open_llama(tiny_target)
    prompt = llm.tokenize(b"abc", add_bos=False)
    stream = stream_text(llm, prompt, GREEDY, max_tokens=40)
    next(stream)
    llm.cancel()
    assert list(stream)[-1].finish_reason == "cancelled"
    again = list(stream_text(llm, prompt, GREEDY, max_tokens=5))
    assert sum(len(p.tokens) for p in again) == 5
