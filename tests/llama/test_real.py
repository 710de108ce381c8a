"""`SpeculativeLlama` on the default target: that it is useful, not only right."""

from pyspec.sampling.verification import Margin


def test_chat_answers(open_llama, smollm2):
    """With everything a user gets by default but the companion."""
    llm = open_llama(smollm2, draft="lookup", verification=Margin(), length="auto", n_ctx=1024)
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    result = llm.create_chat_completion(messages, temperature=0.0, max_tokens=24)
    assert "Paris" in result["choices"][0]["message"]["content"]
    assert result["speculation"]["verification"] == "margin"
