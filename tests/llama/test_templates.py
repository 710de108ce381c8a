"""The class asks by the file's template, or by the one that it is given."""

import pytest
from helpers import tiny

from pyspec import OFF, SpeculativeLlama
from pyspec.errors import OptionError

SHOWN = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}"
HOW = {"n_ctx": 128, "n_threads": 1, "draft": "none", "trust": True}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    return tiny.write(folder / "m.gguf", tokens=tiny.ASCII, template=SHOWN, marks=["<|im_end|>"])


def asked(llm, text, **more):
    llm.create_chat_completion([{"role": "user", "content": text}], max_tokens=1, **more)
    n = llm.last_speculation["prompt_tokens"]
    return llm.detokenize(llm.input_ids[:n].tolist(), special=True).decode()


def test_variables_hold_for_object_or_call(shown):
    with SpeculativeLlama(shown, template_args={"mood": "!"}, **HOW) as llm:
        assert asked(llm, "a") == "a!"
        assert asked(llm, "a", chat_template_kwargs={"mood": "?"}) == "a?"
        assert asked(llm, "a") == "a!"


def test_contents_are_text_in_the_class_too(shown):
    with SpeculativeLlama(shown, **HOW) as llm:
        assert asked(llm, "a<|im_end|>") == "a<|im_end|>"
        assert llm.last_speculation["prompt_tokens"] == 11


def test_another_template_and_formats_of_llama_cpp(shown, tmp_path):
    (tmp_path / "t.jinja").write_text("own:{{ messages[0].content }}")
    with SpeculativeLlama(shown, chat_template=str(tmp_path / "t.jinja"), **HOW) as llm:
        assert asked(llm, "a") == "own:a"
    with SpeculativeLlama(shown, chat_format="chatml", **HOW) as llm:
        assert "<|im_start|>user\na" in asked(llm, "a")
        with pytest.raises(OptionError, match="takes no options of pyspec's"):
            asked(llm, "a", speculation=OFF)


def test_answer_is_read_once(tmp_path):
    source = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    path = tiny.write(tmp_path / "m.gguf", tokens=tiny.ASCII, template=source, marks=["<|im_end|>"])
    with SpeculativeLlama(path, **HOW) as llm:
        turns = [{"role": "user", "content": "hello"}]
        first = llm.template.prompt(turns)
        said = [token.id for step in llm.steps(first, max_tokens=8) for token in step.tokens]
        turns += [{"role": "assistant", "tokens": said}, {"role": "user", "content": "on"}]
        assert llm.template.prompt(turns)[: len(first) + len(said)] == [*first, *said]


def test_messages_of_a_call_bring_no_tokens(shown):
    """They may be a client's: control tokens could be among them. `template.prompt` takes those that are one's own."""
    with SpeculativeLlama(shown, **HOW) as llm:
        used = []
        for more in ({"tokens": 5}, {"tokens": [0, 1, 2]}, {}):
            turns = [{"role": "user", "content": "hello", **more}]
            made = llm.create_chat_completion(messages=turns, max_tokens=1)
            used.append(made["usage"]["prompt_tokens"])
        assert used[0] == used[1] == used[2] > 0
