"""LlamaIndex's LlamaCPP, which makes its own `Llama` from a name it imported long before."""

import pytest
from clients.conftest import accepted

pytest.importorskip("llama_index.llms.llama_cpp", reason="install pyspec-llama[clients]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("call", ["complete", "stream_complete", "chat"])
def test_answers(both, tiny_ascii, call):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.llama_cpp import LlamaCPP

    def client():
        llm = LlamaCPP(
            model_path=str(tiny_ascii), temperature=0.0, max_new_tokens=60, context_window=512,
            model_kwargs={"flash_attn": True, "n_threads": 1}, verbose=False,
        )  # fmt: skip
        if call == "chat":
            text = llm.chat([ChatMessage(role="user", content="say abc")]).message.content
        elif call == "complete":
            text = llm.complete("abcabd").text
        else:
            text = list(llm.stream_complete("abcabd"))[-1].text
        return text, accepted(llm._model)

    theirs, ours = both(client)
    assert ours[0] == theirs[0] != ""
    assert ours[1] > 0
