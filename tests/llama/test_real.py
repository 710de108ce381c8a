"""`SpeculativeLlama` on the default target: that it is useful, not only right."""

from helpers.answers import ask

from pyspec.sampling.verification import Margin


def test_chat_answers(open_llama, smollm2):
    """With everything a user gets by default but the companion."""
    llm = open_llama(smollm2, draft="lookup", verification=Margin(), length="auto", n_ctx=1024)
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    result = llm.create_chat_completion(messages, temperature=0.0, max_tokens=24)
    assert "Paris" in result["choices"][0]["message"]["content"]
    assert result["speculation"]["verification"] == "margin"


def test_copying_is_drafted(open_llama, smollm2):
    """A text that repeats itself is mostly accepted drafts; whether they pay on this machine is not asked."""
    llm = open_llama(smollm2, draft="lookup", length="fixed:8", n_ctx=1024)
    prompt = llm.tokenize(("The sea is blue, the sun is hot, the sand is warm. " * 6).encode())
    answer = ask(llm, prompt, 48)
    assert answer.flags.count("a") > 20
    assert llm.last_speculation["mean_length"] > 1.5
