"""JSON Schema's own suite: what can be answered of each schema of it is valid, or it is refused by name."""

import json
from itertools import permutations
from typing import Any

from helpers import sdist
from helpers.matched import reads

from pyspec.errors import InputError
from pyspec.grammar.languages import Constraint
from pyspec.grammar.masks import check_constraint
from pyspec.grammar.schemas import of_schema

OTHERWISE = {"format", "oneOf"}
"""Files about what is held otherwise: a format is followed, and branches may overlap."""


def whole(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(part) for name, part in value.items()}
    return [whole(part) for part in value] if isinstance(value, list) else value


def orders(value):
    """An object with its properties in every order: the schema's is the one that can be answered."""
    found = value.items() if isinstance(value, dict) and len(value) < 5 else ()
    yield from map(dict, permutations(found)) if found else [value]


def spelled(value):
    return [3 + byte for byte in json.dumps(value, ensure_ascii=False).encode()]


def language_of(schema, llama):
    language = of_schema(schema)
    check_constraint(Constraint(language), llama)
    return language


def test_what_can_be_answered_of_the_suites_schemas_is_valid(llama):
    """Not all that is valid can be answered: objects are closed."""
    wrong, held, taken = list[Any](), 0, 0
    for name, cases in sdist.schema_cases().items():
        for case in cases if name not in OTHERWISE else ():
            try:
                language = language_of(case["schema"], llama)
            except InputError:
                continue
            held += 1
            for test in case["tests"]:
                texts = map(spelled, orders(whole(test["data"])))
                can = any(reads(llama, language, text) for text in texts)
                taken += can
                if can and not test["valid"]:
                    wrong.append((name, case["description"], test["description"]))
    assert wrong == []
    assert held > 160
    assert taken > 190
