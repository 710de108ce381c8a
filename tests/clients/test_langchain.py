"""LangChain's LlamaCpp and ChatLlamaCpp, which make their own `Llama`, with a batch of 8 rows."""

import pytest
from clients.conftest import accepted, ours

pytest.importorskip("langchain_community", reason="install pyspec-llama[clients]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

OPTIONS = {"n_ctx": 512, "temperature": 0.0, "max_tokens": 60, "verbose": False, "n_threads": 1}
OPTIONS |= {"model_kwargs": {"flash_attn": True}}


@pytest.fixture
def llm(tiny_ascii):
    from langchain_community.llms import LlamaCpp

    return lambda: LlamaCpp(model_path=str(tiny_ascii), **OPTIONS)


def test_batch(llm):
    """Prompts on threads of LangChain's own take turns, and have the answers that they have one after another."""
    prompts = ["abcabd", "say abc", "x y z", "abab"]
    with ours(draft="lookup", companion="none"):
        model = llm()
        found, alone = model.batch(prompts), [model.invoke(prompt) for prompt in prompts]
    assert found == alone
    assert all(found)


def test_stream_and_stop(both, llm):
    def client():
        model = llm()
        assert model.n_batch == 8
        whole = model.invoke("abcabd")
        return "".join(model.stream("abcabd", stop=[whole[30:32]])), accepted(model.client)

    theirs, ours = both(client)
    assert ours[0] == theirs[0] != ""
    assert ours[1] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_chat(both, tiny_ascii, stream):
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_core.messages import HumanMessage, SystemMessage

    messages = [SystemMessage(content="be brief"), HumanMessage(content="say abc abc")]

    def client():
        more = {"model_kwargs": {"flash_attn": True, "chat_format": "llama-2"}}
        model = ChatLlamaCpp(model_path=str(tiny_ascii), **{**OPTIONS, **more})
        pieces = model.stream(messages) if stream else [model.invoke(messages)]
        return "".join(piece.content for piece in pieces), accepted(model.client)

    theirs, ours = both(client)
    assert ours[0] == theirs[0] != ""
    assert ours[1] > 0
