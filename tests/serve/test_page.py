"""The page in a browser."""

import json
import math
import re

import pytest
from helpers.tab import CHROMIUM
from helpers.waiting import wait

from pyspec.batch import Batch
from pyspec.serve import ServerSettings
from pyspec.serve.fleet import OtherModels

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture
def tab(serve, browser):
    return browser(serve().url)


def show(tab, **turn):
    """Puts a turn on the page that no server was asked for; JSON of what it has beside its question."""
    tab.evaluate(f"turns = [{{...fresh('q'), ...{json.dumps(turn)}}}], showAll()")


def say(tab, text):
    tab.evaluate(f"document.getElementById('text').value = {json.dumps(text)}")
    tab.evaluate("document.getElementById('ask').requestSubmit()")


DONE = "document.querySelectorAll('.assistant[data-done]').length"
SPANS = "document.querySelectorAll('.assistant span[title]')"


def test_page_answers_and_shows_where_tokens_came_from(tab):
    tab.until("document.getElementById('model')?.textContent.startsWith('tiny')")
    tab.evaluate("document.getElementById('temperature').value = 0")
    say(tab, "abcabcabcabcabcabc " * 6)
    tab.until(f"{DONE} === 1")
    spans = tab.evaluate(f"[...{SPANS}].map(s => [s.className, s.title])")
    assert {kind for kind, _ in spans} <= {"target", "accepted", "relaxed"}
    assert all(title for _, title in spans)
    assert tab.evaluate("turns[0].tokens.map(t => t.text).join('') === turns[0].content")
    assert tab.evaluate("document.getElementById('speed').textContent").endswith("tokens/s")
    assert float(tab.evaluate("document.getElementById('length').textContent")) >= 1
    say(tab, "and then")
    tab.until(f"{DONE} === 2")
    assert tab.evaluate("history(2).length") == 4
    outside = "performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).length"
    assert tab.evaluate(outside) == 0


def test_relaxed_tokens_say_their_gap(tab):
    token = {"text": "<b>x</b>", "source": "relaxed", "gap": 0.25, "preferred": "y"}
    show(tab, content="<b>x</b>", tokens=[token])
    found = tab.evaluate(
        "(s => [s.title, s.textContent, getComputedStyle(s).color])(document.querySelector('.relaxed:not(#legend *)'))"
    )
    assert found[0] == 'drafted; the target preferred "y" by 0.250 nats'
    assert found[1] == "<b>x</b>"
    assert found[2] != tab.evaluate("getComputedStyle(document.body).color")


def test_a_stopped_answer_says_so_and_goes_on(serve, rounds, browser):
    server = serve(draft="none", n_ctx=4096)
    tab = browser(server.url)
    rounds.allow(20)
    say(tab, "hello")
    tab.until(f"{SPANS}.length > 3")
    tab.evaluate("document.getElementById('stop').click()")
    tab.until(f"{DONE} === 1")
    assert tab.evaluate("document.querySelector('.note').textContent") == "stopped"
    assert tab.evaluate("$('against').textContent") == "\u2013"  # of this answer
    wait(lambda: not server.tasks)
    rounds.allow(math.inf)
    server.wait_idle()
    assert server.batch.stats()["tokens"] < 100
    before = tab.evaluate("turns[0].content")
    tab.evaluate("$('most').value = 8")
    acts = "[...document.querySelectorAll('.act')]"
    tab.evaluate(f"{acts}.find(b => b.textContent === 'Continue').click()")
    tab.until(f"!running && turns[0].content.length > {len(before)}")
    assert tab.evaluate("turns[0].content").startswith(before)
    assert tab.evaluate("turns.length") == 1


def test_an_answer_is_as_long_as_fits_unless_a_limit_is_set(tab):
    assert tab.evaluate("'max_tokens' in JSON.parse(request([]))") is False
    tab.evaluate("$('most').value = 8")
    assert tab.evaluate("JSON.parse(request([])).max_tokens") == 8


def test_one_of_several_models_is_chosen(serve, browser, tiny_ascii):
    others = OtherModels(lambda: ["tiny", "second"], lambda _name: loaded(tiny_ascii), 2)
    server = serve(others=others)
    tab = browser(server.url)
    tab.until("!$('which').hidden")
    assert tab.evaluate("[...$('name').options].map(o => o.textContent)") == ["tiny", "second"]
    assert tab.evaluate("JSON.parse(request([])).model") == "tiny"
    tab.evaluate("$('name').value = 'second', $('name').dispatchEvent(new Event('change')), 0")
    tab.until("document.title === 'second'")
    say(tab, "hello")
    tab.until(f"{DONE} === 1")
    models = [service.serving.model for service in server.app.state.fleet.services]
    assert set(models) == {"tiny", "second"}
    assert server.batch.stats()["tokens"] == 0
    tab.reload()
    tab.until("document.title === 'second'")
    assert tab.evaluate("JSON.parse(request([])).model") == "second"


def loaded(path):
    batch = Batch(str(path), draft="none", n_ctx=512, parallel=1, interactive=True, n_threads=1)
    batch.prepare()
    return batch, ServerSettings("second")


def test_a_key_is_asked_for(serve, browser):
    """A single model needs no choice meanwhile."""
    tab = browser(serve(key="secret").url)
    assert tab.evaluate("[$('which').hidden, 'model' in JSON.parse(request([]))]") == [True, False]
    say(tab, "hello")
    assert "API key" in tab.until("document.querySelector('.error')?.textContent")
    tab.evaluate("$('key').value = 'secret'")
    say(tab, "hello")
    tab.until(f"{SPANS}.length > 0")
    tab.evaluate("$('key').dispatchEvent(new Event('change')), 0")
    tab.until("document.title === 'tiny'")
    assert tab.evaluate("$('which').hidden")


def shown(tab):
    return tab.evaluate("[...document.querySelectorAll('.turn')].map(t => t.textContent.trim())")


def test_a_failed_turn_leaves_the_chat_usable(serve, browser):
    tab = browser(serve(n_ctx=256).url)
    tab.evaluate("$('most').value = 8")
    say(tab, "a " * 400)
    assert "256" in tab.until("document.querySelector('.error')?.textContent")
    tab.until(f"{DONE} === 1")
    assert tab.evaluate("history(1).length") == 0
    say(tab, "hello")
    tab.until(f"{DONE} === 2")
    assert tab.evaluate("Boolean(turns[1].content) && !turns[1].error")
    tab.evaluate("document.querySelector('.acts.mine button').click()")
    tab.evaluate("document.querySelector('.user textarea').value = 'short'")
    tab.evaluate("document.querySelector('.acts.mine button').click()")
    tab.until("turns.length === 1 && !running && Boolean(turns[0].content)")
    assert shown(tab)[0] == "short"
    assert tab.evaluate("document.querySelectorAll('.error').length") == 0


def test_what_is_wrong_is_said_in_a_sentence(tab):
    wrong = {
        "Promise.resolve(new Response('<html>', {status: 502, statusText: 'Bad Gateway'}))": "502",
        "Promise.resolve(new Response('{}', {status: 500}))": "500",
        "Promise.resolve(new Response('data: {\\n\\n'))": "try again",
        "Promise.resolve(new Response(''))": "before its end",
        "Promise.reject(new TypeError('Failed to fetch'))": "cannot be reached",
    }
    for n, (answer, sentence) in enumerate(wrong.items(), 1):
        tab.evaluate(f"fetch = () => {answer}, 0")
        say(tab, "hello")
        tab.until(f"{DONE} === {n}")
        assert sentence in tab.evaluate(f"turns[{n - 1}].error")
        assert "TypeError" not in tab.evaluate("document.body.textContent")


def test_a_chat_stays_over_a_reload(tab):
    tab.evaluate("$('system').value = 'ab', $('key').value = 'secret', $('temperature').value = 0")
    say(tab, "abcabcabc")
    tab.until(f"{DONE} === 1")
    before = shown(tab)
    spans = tab.evaluate(f"{SPANS}.length")
    tab.reload()
    tab.until("turns.length === 1")
    assert (shown(tab), tab.evaluate(f"{SPANS}.length")) == (before, spans)
    kept = "[$('system').value, $('key').value, $('temperature').value]"
    assert tab.evaluate(kept) == ["ab", "", "0"]
    assert "secret" not in tab.evaluate("JSON.stringify(localStorage)")
    assert tab.evaluate("history(1)[0]") == {"role": "system", "content": "ab"}
    tab.evaluate("$('clear').click()")
    assert tab.evaluate("JSON.parse(localStorage.getItem(KEPT)).turns.length") == 0


def test_an_answer_can_be_asked_for_anew(tab):
    tab.evaluate("$('temperature').value = 0")
    for n, text in enumerate(("ab", "cd"), 1):
        say(tab, text)
        tab.until(f"{DONE} === {n}")
    first = tab.evaluate("turns[0].content")
    tab.evaluate("[...document.querySelectorAll('.acts:not(.mine) button')][1].click()")
    tab.until("turns.length === 1 && !running")
    assert tab.evaluate("turns[0].content") == first


def test_reasoning_is_folded(tab):
    show(tab, content="four", reasoning="two and two")
    found = tab.evaluate(
        "(d => [d.open, d.hidden, d.querySelector('div').textContent])(document.querySelector('.thoughts'))"
    )
    assert found == [False, False, "two and two"]
    assert tab.evaluate("document.querySelector('.text').textContent") == "four"


MARKDOWN = {
    "a **b** `c*d*` *e*": "<p>a <strong>b</strong> <code>c*d*</code> <em>e</em></p>",
    "# T\n\n- one\n- two": "<h2>T</h2><ul><li>one</li><li>two</li></ul>",
    "3. x\n4. y": '<ol start="3"><li>x</li><li>y</li></ol>',
    "> q": "<blockquote><p>q</p></blockquote>",
    "a|b\n-|-\nc|`d`": "<table><tr><th>a</th><th>b</th></tr><tr><td>c</td><td><code>d</code></td></tr></table>",
    "snake_case_name 2*3*4 ** x": "<p>snake_case_name 2<em>3</em>4 ** x</p>",
    "```py\nif a < b:\n    pass\n```\nend": "<pre><code>if a &lt; b:\n    pass</code></pre><p>end</p>",
    "```\nopen": "<pre><code>open</code></pre>",
    "[x](javascript:alert(1)) <img src=x onerror=alert(1)>": "<p>[x](javascript:alert(1)) &lt;img src=x onerror=alert(1)&gt;</p>",
    "*": "<p>*</p>",
    "**": "<p>**</p>",
    "`": "<p>`</p>",
}


FRAMES = (
    r'<div class="(wide|code)">|</div>| style="margin-left: 0em;"|<span class="kind">(py)?</span>'
    r'|<button class="copy" type="button">Copy</button>'
)


def test_markdown_becomes_nodes_and_nothing_else(tab):
    for source, wanted in MARKDOWN.items():
        show(tab, content=source)
        found = tab.evaluate("document.querySelector('.text').innerHTML")
        assert re.sub(FRAMES, "", found) == wanted
    show(tab, content="[x](https://example.org/a)")
    found = tab.evaluate("(a => [a.href, a.rel])(document.querySelector('.text a'))")
    assert found == ["https://example.org/a", "noopener noreferrer"]


def tokens_of(said):
    return [{"text": text, "source": source, "gap": 0.1} for text, source in said]


def test_tokens_keep_their_colours_in_markdown(tab):
    said = [("a *", "target"), ("b", "accepted"), ("* ", "target"), ("`c", "relaxed"), ("`", "target")]  # fmt: skip
    show(tab, content="a *b* `c`", tokens=tokens_of(said))
    found = "[...document.querySelectorAll('.text span')].map(s => [s.className, s.textContent])"
    spans = [("target", "a "), ("accepted", "b"), ("target", " "), ("relaxed", "c")]
    assert tab.evaluate(found) == [list(each) for each in spans]
