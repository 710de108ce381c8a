"""llama_cpp.server with the openai client: what a deployment that changed nothing but `pyspec.install()` sees."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.waiting import DEADLINE_S, wait

pytest.importorskip("openai", reason="install pyspec-llama[clients]")
pytest.importorskip("sse_starlette", reason="install pyspec-llama[clients]")
pytestmark = pytest.mark.filterwarnings("ignore")
CHAT = [{"role": "user", "content": "say abc abc"}]


@contextlib.contextmanager
def served(path):
    import openai
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    # the file has no template: llama-cpp-python would take these words for it, and ours plain ones
    settings = ModelSettings(
        model=str(path), n_ctx=512, n_threads=1, flash_attn=True, verbose=False, seed=1,
        chat_format="llama-2",
    )  # fmt: skip
    app = create_app(server_settings=ServerSettings(), model_settings=[settings])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait(lambda: server.started)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with openai.OpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S
        ) as client:
            yield client
        server.should_exit = True
        thread.join(30)


def use(client):
    chat = client.chat.completions
    plain = {"model": "m", "messages": CHAT, "max_tokens": 40, "temperature": 0.0}
    out = {"chat": chat.create(**plain).choices[0].message.content}
    chunks = list(chat.create(**plain, stream=True))
    out["stream"] = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    out["end"] = chunks[-1].choices[0].finish_reason
    sampled = {**plain, "temperature": 1.0}
    out["seeds"] = [chat.create(**sampled, seed=i).choices[0].message.content for i in (1, 2, 1)]
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    tool = chat.create(
        **{**plain, "max_tokens": 120},
        tools=[{"type": "function", "function": {"name": "answer", "parameters": schema}}],
        tool_choice={"type": "function", "function": {"name": "answer"}},
    )
    out["tool"] = tool.choices[0].message.tool_calls[0].function.arguments
    text = {"model": "m", "max_tokens": 30, "temperature": 0.0}
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda end: client.completions.create(prompt=f"abc{end}", **text), "abcd")
        out["parallel"] = [result.choices[0].text for result in found]
    stream = chat.create(**{**plain, "max_tokens": 400}, stream=True)
    for _ in range(5):
        next(iter(stream))
    stream.close()  # cancelled in mid-stream
    out["after"] = chat.create(**plain).choices[0].message.content
    return out


def test_the_server_answers_as_before(both, tiny_ascii):
    def client():
        with served(tiny_ascii) as api:
            return use(api)

    theirs, ours = both(client)
    assert ours == theirs
    assert ours["seeds"][0] == ours["seeds"][2] != ours["seeds"][1]
    assert ours["chat"] == ours["stream"] == ours["after"] != ""
