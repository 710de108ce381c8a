"""The child that renders templates: the parent's clock ends what has no end."""

import pytest

from pyspec.errors import TemplateError
from pyspec.text import render
from pyspec.text.render import Renderer

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def renderer():
    made = Renderer()
    yield made
    made.close()


def test_a_template_without_end_is_ended(renderer, monkeypatch):
    renderer.add("endless", ENDLESS, {})
    renderer.add("fine", "{{ x }}", {})
    assert renderer.render("fine", {"x": "abc"}, 0.0) == "abc"
    with monkeypatch.context() as patch:
        patch.setattr(render, "TIMEOUT_S", 0.2)
        with pytest.raises(TemplateError, match="cannot be used"):
            renderer.render("endless", {}, 0.0)
    assert renderer.render("fine", {"x": "def"}, 0.0) == "def"
