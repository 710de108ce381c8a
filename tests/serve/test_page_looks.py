"""How the page looks: on a phone's screen and on a desk's, in the light and in the dark."""

from __future__ import annotations

import json

import pytest
from helpers.tab import CHROMIUM

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

SAID = [
    ("A word that does not end: " + "a" * 300 + "\n\n", "target"),
    ("drafted ", "accepted"),
    ("rather ", "relaxed"),
    ("`code` [a link](https://example.org)\n\n> quoted\n\n", "target"),
    ("```py\n" + "x = 1  # " + "long " * 60 + "\n```\n\n", "target"),
    ("|" + "head|" * 12 + "\n|" + "-|" * 12 + "\n|" + "cell|" * 12 + "\n", "target"),
]


@pytest.fixture
def filled(serve, browser):
    tab = browser(serve().url)
    tokens = [{"text": text, "source": source, "gap": 0.1} for text, source in SAID]
    turn = {
        "content": "".join(text for text, _ in SAID),
        "tokens": tokens,
        "reasoning": "two and two " * 30,
    }
    tab.evaluate(
        f"turns = [{{...fresh({json.dumps('why ' * 80)}), ...{json.dumps(turn)}}}, "
        "{...fresh('q'), error: 'the server cannot be reached: ' + 'try again '.repeat(20)}], showAll()"
    )
    tab.evaluate("offer(['a', 'b'].map(id => ({id: id.repeat(90), meta: null}))), 0")
    return tab


OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  const scrolls = e.closest('.wide, pre');
  return box.width && (box.right > innerWidth + 0.5 || box.left < -0.5) && (!scrolls || scrolls === e);
}).map(e => e.tagName + '.' + e.className)"""
"""Elements beyond the screen's edge; what scrolls by itself may hold wider ones."""


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_nothing_is_wider_than_the_screen(filled, width):
    """On a phone as on a desk: settings folded or open, only code and tables scroll aside, within themselves."""
    filled.show(width=width, height=667)
    filled.until(f"innerWidth === {width}")
    for opened in ("false", "true"):
        filled.evaluate(f"$('more').open = {opened}")
        assert filled.evaluate(OUTSIDE) == []
        assert filled.evaluate("document.documentElement.scrollWidth") <= width
    filled.evaluate("$('more').open = false")
    send, talk = (
        filled.evaluate(f"$('{name}').getBoundingClientRect().toJSON()")
        for name in ("send", "talk")
    )
    assert send["bottom"] <= 667
    assert talk["height"] > 250


@pytest.mark.parametrize(("width", "height"), [(375, 667), (1280, 800)])
def test_settings_are_folded(filled, width, height):
    """They would take half of a phone's screen, and few need them."""
    filled.show(width=width, height=height)
    filled.reload()
    assert filled.evaluate("$('more').open") is False


CONTRAST = """(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return parts(getComputedStyle(document.documentElement).backgroundColor);
  };
  const told = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getBoundingClientRect().width || e.tagName === 'OPTION') continue;
    const [a, b] = [parts(getComputedStyle(e).color), ground(e)].map(light).sort((x, y) => y - x);
    told.push([e.tagName + '.' + e.className, (a + 0.05) / (b + 0.05)]);
  }
  return told;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_schemes(filled, scheme):
    """At 4.5 times the luminance of its ground or under it, as WCAG 2.1 AA has it; the dark page is dark."""
    filled.show(width=375, scheme=scheme)
    filled.evaluate("$('more').open = true, document.querySelector('.thoughts').open = true")
    told = filled.evaluate(CONTRAST)
    assert {"SPAN.accepted", "SPAN.relaxed", "SPAN.target"} <= {name for name, _ in told}
    assert [(name, round(ratio, 2)) for name, ratio in told if ratio < 4.5] == []
    ground = filled.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(ground) < 64) == (scheme == "dark")
