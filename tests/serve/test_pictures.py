"""Pictures in requests: answered as by llama-cpp-python's handler, beside other answers; what cannot be read gets a sentence."""

import base64
import json
import threading

import llama_cpp
import pytest
from helpers import tiny, tiny_mmproj
from helpers.asking import post
from helpers.server_here import opening
from helpers.tiny_mmproj import png
from llama_cpp.llama_chat_format import MTMDChatHandler

_CONTENT = "m.content if m.content is string else m.content|map(attribute='text')|join"
TEXTS = "{% for m in messages %}[{{ m.role }}]{{ " + _CONTENT + " }}\n{% endfor %}[assistant]"
EXACT = {"n_threads": 1, "flash_attn": False}


@pytest.fixture(scope="module")
def files(tiny_folder):
    target = tiny_folder / "serves-pictures.gguf"
    tiny.write(target, tokens=tiny.ASCII, n_layer=4, template=TEXTS)
    return target, tiny_mmproj.write(tiny_folder / "serves-mmproj.gguf")


@pytest.fixture(scope="module")
def server(files, tiny_ascii):
    target, projector = files
    with opening(tiny_ascii) as start:
        yield start(target, mmproj=projector, trust=True, **EXACT)


def chat(*pictures, text="what is it?"):
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def ask(server, messages, **more):
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, **more}
    return post(server, json.dumps(body).encode())


def text_of(server, messages):
    status, told = ask(server, messages)
    assert status == 200, told
    return told["choices"][0]["message"]["content"]


def handlers(target, projector):
    """What a `llama_cpp.Llama` with the handler answers to pictures."""
    handler = MTMDChatHandler(clip_model_path=str(projector), verbose=False)
    exact = {"n_ctx": 512, "verbose": False, "type_k": 0, "type_v": 0, **EXACT}
    llm = llama_cpp.Llama(str(target), chat_handler=handler, **exact)

    def answer(*pictures):
        said = llm.create_chat_completion(
            chat(*pictures), max_tokens=24, temperature=0.0, repeat_penalty=1.0
        )
        return said["choices"][0]["message"]["content"]

    return answer


@pytest.fixture(scope="module")
def wanted(files):
    """By its pictures: the handler's answer."""
    a, b, answer = tiny_mmproj.picture(0), tiny_mmproj.picture(1), handlers(*files)
    return {pictures: answer(*pictures) for pictures in ((), (a,), (b,), (b, a))}


def test_answers_are_the_handlers_also_at_once(server, wanted):
    """No picture's rows are another's, though the texts around them are the same."""
    assert len(set(wanted.values())) == 4
    asked = list(wanted) * 3
    found = [""] * len(asked)

    def answer(i):
        found[i] = text_of(server, chat(*asked[i]))

    threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(asked))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [wanted[pictures] for pictures in asked]


def test_a_picture_counts_by_its_positions(server):
    plain, seen = (
        ask(server, chat(*pictures))[1]["usage"]["prompt_tokens"]
        for pictures in ((), (tiny_mmproj.picture(),))
    )
    assert seen == plain + tiny_mmproj.N_ROWS


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://169.254.169.254/latest", "no addresses are fetched"),
        ("https://example.org/cat.png", "no addresses are fetched"),
        ("file:///etc/passwd", "no files read"),
        ("data:image/png;base64,!!", "not base64"),
        ("data:image/png;base64,AAAA", "unknown kind"),
        ("data:;base64," + base64.b64encode(png(60000, 60000)).decode(), "pixels"),
        ("data:;base64," + base64.b64encode(png(99, 99, b"\0")).decode(), "cannot be decoded"),
        (None, "no addresses are fetched"),
    ],
)
def test_what_cannot_be_read_is_refused(server, wanted, url, says):
    """With a sentence, and the server goes on."""
    status, told = ask(server, chat(url))
    assert status == 400
    assert says in told["error"]["message"]


def test_the_server_goes_on_after_refusals(server, wanted):
    (pictures,) = [each for each in wanted if len(each) == 2]
    status, told = ask(server, chat(*[tiny_mmproj.picture(2)] * 40))
    assert (status, "pictures" in told["error"]["message"]) == (400, True)
    assert text_of(server, chat(*pictures)) == wanted[pictures]


def test_a_prompt_longer_than_the_context_is_refused(server):
    status, told = ask(server, chat(*[tiny_mmproj.picture()] * 8, text="x" * 1010))
    assert status == 400
    assert "context" in told["error"]["message"]


def test_a_hybrid_model_sees_one_picture_after_the_other(files, tiny_folder, tiny_ascii):
    """Its memory cannot go back, so each is read from the beginning."""
    target = tiny.write(
        tiny_folder / "serves-lfm2.gguf", arch="lfm2", tokens=tiny.ASCII, n_layer=4, template=TEXTS
    )
    a, b = tiny_mmproj.picture(0), tiny_mmproj.picture(1)
    with opening(tiny_ascii) as start:
        server = start(target, mmproj=files[1], trust=True, draft="none", **EXACT)
        found = [text_of(server, chat(each)) for each in (a, b, a)]
    assert found == list(map(handlers(target, files[1]), (a, b, a)))


def test_every_interface_takes_pictures(server, wanted):
    """Anthropic's, ollama's and OpenAI's newer one say the same."""
    (pictures,) = [each for each in wanted if len(each) == 2]
    data = [each.partition(",")[2] for each in pictures]
    text, most = "what is it?", {"temperature": 0, "stream": False}

    def said(path, body):
        status, told = post(server, json.dumps({"model": "tiny", **most, **body}).encode(), path)
        assert status == 200, told
        return told

    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": each}}
        for each in data
    ]
    turns = [{"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]
    answer = said("/v1/messages", {"messages": turns, "max_tokens": 24})
    found = [answer["content"][0]["text"]]
    turns = [{"role": "user", "content": text, "images": data}]
    answer = said(
        "/api/chat", {"messages": turns, "options": {"num_predict": 24, "temperature": 0}}
    )
    found.append(answer["message"]["content"])
    parts = [{"type": "input_image", "image_url": each} for each in pictures]
    item = {"role": "user", "content": [*parts, {"type": "input_text", "text": text}]}
    answer = said("/v1/responses", {"input": [item], "max_output_tokens": 24})
    found.append(answer["output"][-1]["content"][0]["text"])
    assert found == [wanted[pictures]] * 3
