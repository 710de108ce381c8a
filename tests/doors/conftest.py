"""The doors over one model, and each of them in turn."""

import pytest
from helpers import scripted
from helpers.doors import EVERY, Doors


@pytest.fixture(scope="session")
def doors(tmp_path_factory):
    made = Doors(scripted.write(tmp_path_factory.mktemp("doors")))
    yield made
    made.close()


@pytest.fixture
def open_doors(tiny_folder):
    """Makes the doors of another file, or with options of their own; closed after the test."""
    opened = []

    def open_(path=None, **own):
        opened.append(Doors(path or scripted.write(tiny_folder), **own))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(params=EVERY)
def door(doors, request):
    """Each door: `door(**options)` is its reply."""
    return doors[request.param]
