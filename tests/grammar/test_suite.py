"""JSON Schema's own suite: of each schema of it, exactly the valid instances can be answered, or it is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from helpers import sdist
from helpers.matched import reads

from pyspec.errors import InputError
from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.masks import check_constraint
from pyspec.grammar.schemas import of_schema

ASSERTED = {"format"}
"""Files about annotations: a format is followed here."""
ELSEWHERE = ("localhost", "json-schema.org", "urn-ref")
REFUSED = {
    "contains": 4, "minContains": 5, "maxContains": 3, "unevaluatedItems": 3,  # lists of any length
    "not": 3, "oneOf": 2,  # numbers that are no integers
    "dynamicRef": 4,  # which scope counts depends on the way there
    "patternProperties": 2, "unevaluatedProperties": 1,  # patterns that overlap
    "uniqueItems": 2,
}  # fmt: skip
"""Schemas, by file, that are refused though something satisfies them, and they name nothing in other documents."""


def whole(value: Any) -> Any:
    """The same value as it can be answered: 1.0 as 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: whole(part) for name, part in value.items()}
    return [whole(part) for part in value] if isinstance(value, list) else value


def orders(value: Any) -> Iterator[Any]:
    """An object with its properties in every order: the schema's is the one that can be answered."""
    found = value.items() if isinstance(value, dict) and len(value) < 5 else ()
    yield from map(dict, permutations(found)) if found else [value]


def spelled(value: Any) -> list[int]:
    return [3 + byte for byte in json.dumps(value, ensure_ascii=False).encode()]


def language_of(schema: Any, llama: Any) -> Language:
    language = of_schema(schema)
    check_constraint(Constraint(language), llama)
    return language


def test_the_suites_instances_are_followed_as_they_are_valid(llama: Any) -> None:
    """None that is invalid can be answered, and none that is valid cannot."""
    refused, wrong, elsewhere, held = Counter[str](), list[Any](), 0, 0
    for name, cases in sdist.schema_cases().items():
        for case in cases if name not in ASSERTED else ():
            valid = [test["data"] for test in case["tests"] if test["valid"]]
            try:
                language = language_of(case["schema"], llama)
            except InputError as error:
                elsewhere += (away := any(each in str(error) for each in ELSEWHERE))
                refused[name] += bool(valid) and not away
                continue
            held += 1
            for test in case["tests"]:
                texts = map(spelled, orders(whole(test["data"])))
                if any(reads(llama, language, text) for text in texts) != test["valid"]:
                    wrong.append((name, case["description"], test["description"]))
    assert wrong == []
    assert +refused == REFUSED
    assert elsewhere == 24
    assert held > 280
