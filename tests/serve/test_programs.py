"""A program that asks any server, by OpenAI's interface or Anthropic's: litellm."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of what they import


@pytest.mark.parametrize(("provider", "base"), [("openai", "/v1"), ("anthropic", "")])
def test_litellm_asks_by_either_interface(serve, monkeypatch, provider, base):
    # or it asks another server for prices
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm", reason="install pyspec-llama[clients]")
    asked = {
        "model": f"{provider}/tiny", "messages": [{"role": "user", "content": "hello there"}], "api_key": "none",
        "api_base": serve().url + base, "temperature": 0, "max_tokens": 12,
    }  # fmt: skip
    whole = litellm.completion(**asked)
    text = whole.choices[0].message.content
    assert (bool(text), whole.usage.completion_tokens) == (True, 12)
    assert whole.choices[0].finish_reason == "length"
    chunks = list(litellm.completion(**asked, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": "a" * 5000}]})
