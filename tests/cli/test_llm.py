"""The plugin in the real program `llm`: models, options, conversations, schemas and the log."""

import gc
import json
import warnings

import pytest
from helpers import tiny
from helpers.running import run

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.text.parts import Source, Step, Token

pytest.importorskip("llm", reason="the extra `llm` is not installed")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "llm"


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """The plugin keeps its model while this file is tested, and no longer."""
    from pyspec.llm_plugin import _held

    yield
    while _held:
        _held.popitem()[1].close()


def llm(home, *arguments):
    from llm.cli import cli

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of files that it leaves open
        done = run(*arguments, begin=cli, LLM_USER_PATH=str(home))
        gc.collect()
    return done


GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "16", "-o", "threads", "1", "-o", "draft", "lookup")  # fmt: skip


def test_models_and_options_are_listed(home):
    listed = llm(home, "models", "--options", "-q", "pyspec").stdout
    assert "pyspec: pyspec\n" in listed
    assert "pyspec: pyspec/smollm2-135m-instruct" in listed
    assert "verify" in listed


def test_an_answer_is_streamed_and_logged(home, smollm2):
    done = llm(home, "-m", "pyspec", "Say hello.", *GREEDY)
    assert done.returncode == 0, done.stderr
    again = llm(home, "-c", "And again?", *GREEDY)
    assert again.returncode == 0, again.stderr
    first, second = json.loads(llm(home, "logs", "-n", "0", "--json").stdout)
    assert [first["prompt"], second["prompt"]] == ["Say hello.", "And again?"]
    assert first["response"].strip() == done.stdout.strip() != ""
    # the first turn is part of the second prompt
    assert second["input_tokens"] > first["input_tokens"] + first["output_tokens"] - 2
    assert first["response_json"]["speculation"]["draft"] == "lookup"
    assert first["conversation_id"] == second["conversation_id"]


def test_samplers_and_noise_are_options(home, smollm2):
    from pyspec.llm_plugin import SpeculativeModel

    more = {
        "temperature": "0.8", "sampling": "llama.cpp", "seed": "5", "dry_multiplier": "0.8", "dry_sequence_breakers": '["\\n"]',
        "xtc_probability": "0.5", "dynatemp_range": "0.3",
    }  # fmt: skip
    options = [word for name, value in more.items() for word in ("-o", name, value)]
    done = llm(home, "-m", "pyspec", "Say hello.", *GREEDY, *options)
    assert done.returncode == 0, done.stderr
    (logged,) = json.loads(llm(home, "logs", "-n", "0", "--json").stdout)
    block = logged["response_json"]["speculation"]
    assert (block["sampling"], block["seed"]) == ("llama.cpp", 5)
    wrong = llm(home, "-m", "pyspec", "x", *GREEDY, "-o", "dry_sequence_breakers", "{}")
    assert wrong.returncode == 1
    with pytest.raises(ValueError, match="dry_sequence_breakers"):
        SpeculativeModel.Options(dry_sequence_breakers="[1]")


def test_a_schema_is_followed(home, smollm2):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    done = llm(home, "-m", "pyspec", "A dog.", "--schema", json.dumps(schema), "-o", "temperature", "0", "-o", "threads", "1",
               "-o", "max_tokens", "60")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"age"}


def test_errors_are_one_sentence(home, smollm2):
    done = llm(home, "-m", "pyspec", "x", "-o", "draft", "no-such-model")
    assert done.returncode == 1
    assert "there is no model 'no-such-model'" in done.stderr
    assert "Traceback" not in done.stderr
    assert llm(home, "-m", "pyspec", "x", "-o", "top_p", "7").returncode == 1


TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} Answer with <tool_call>{JSON}</tool_call>.{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}\n{% endfor %}"
)


def test_tools_are_called(monkeypatch, tmp_path):
    import llm as program

    from pyspec import llm_plugin
    from pyspec.text.template import ChatTemplate

    path = tiny.write(tmp_path / "chats.gguf", tokens=tiny.ASCII, template=TEMPLATE)
    said = iter(['<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>', "5"])
    asked = []
    prompt = ChatTemplate.prompt

    def hear(self, messages, *args, tools=None, **kwargs):
        asked.append((messages, tools))
        return prompt(self, messages, *args, tools=tools, **kwargs)

    with SpeculativeLlama(str(path), draft="none", n_ctx=2048, n_threads=1) as loaded:

        def answer(self, tokens, *args, **kwargs):
            ids = loaded.tokenize(next(said).encode(), add_bos=False, special=True)
            yield Step(tuple(Token(i, Source.TARGET, 0.0, i) for i in ids), "stop")

        monkeypatch.setattr(ChatTemplate, "prompt", hear)
        monkeypatch.setattr(type(loaded), "steps", answer)
        monkeypatch.setattr(llm_plugin, "_load", lambda *_: loaded)
        model = llm_plugin.SpeculativeModel("pyspec", None)

        def add(a: int, b: int) -> int:
            return a + b

        chain = model.chain("2 + 3?", tools=[program.Tool.function(add)], stream=True)
        assert "".join(chain) == "5"
    (first, offered), (second, _) = asked
    assert [turn["role"] for turn in first] == ["user"]
    assert offered[0]["function"]["name"] == "add"
    assert [turn["role"] for turn in second] == ["user", "assistant", "tool"]
    (call,) = second[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 2, "b": 3}
    assert (second[2]["content"], second[2]["tool_call_id"]) == ("5", call["id"])
