"""The prompts that the target answers: a prompts file mixed with prompts made by templates.

A draft is used in a chat, so the mixture leans to chat: stories, explanations, mails, code, sums,
questions, translations, summaries, questions on a passage. The order is a fixed, weighted
round-robin: however early the writing stops, the mixture is the same.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import click

from models.recipe.rows import HELD_OUT
from pyspec.errors import TrainingError

# share of each source in the mixture; sources not named here get 0.05
WEIGHTS = {
    "gpteacher-roleplay": 0.12,
    "gpteacher-codegen": 0.07,
    "self-instruct-user": 0.02,
    "self-instruct-seed": 0.02,
    "gsm8k-train": 0.12,
    "t0-p3": 0.06,
    "made-question": 0.15,
    "made-topic": 0.11,
    "made-translation": 0.03,
    "made-summary": 0.06,
    "made-passage": 0.04,
    "made-news": 0.11,
    "made-long-summary": 0.06,
    "made-long-passage": 0.05,
}
_CHATS = Path(__file__).with_name("chats.json")
_QUESTION = re.compile(
    r"(?:^|[\"\n:])\s*((?:what|who|when|where|how|which|why)\b[^\n?\"]{10,90}\?)", re.IGNORECASE
)
_TEXT = re.compile(r"[A-Z][^\n]{450,1400}[.!]")


def load(path: Path, exclude: Path | None, seed: int) -> list[tuple[int, str]]:
    """(line number, prompt) in the order of writing; numbers above the file's are made prompts.

    `path` has one JSON object a line with "source" and "prompt". Prompts that contain or are
    contained in a question of `exclude` (a Spec-Bench file) are left out.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    lines = _read(path)
    for number, (source, prompt) in enumerate(lines):
        groups.setdefault(source, []).append((number, prompt))
    rng = random.Random(seed)  # noqa: S311 - a mixture, not a secret
    texts = [prompt for _, prompt in lines]
    made = list(_made(texts, rng))
    made += _made_later(texts, random.Random(seed))  # noqa: S311
    for number, (source, prompt) in enumerate(made, len(lines)):
        groups.setdefault(source, []).append((number, prompt))
    for group in groups.values():
        rng.shuffle(group)
    banned = _questions(exclude) if exclude else set()
    return [(n, p) for n, p in _mixed(groups) if _plain(p) not in banned]


def _read(path: Path) -> list[tuple[str, str]]:
    try:
        rows = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
        return [(str(row["source"]), str(row["prompt"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} is not a prompts file: {error}",
            'one JSON object a line, with "source" and "prompt"',
        ) from error


def _questions(path: Path) -> set[str]:
    """Every turn of a Spec-Bench file, and the last line of each, in plain form."""
    turns = [t for row in path.read_text().strip().split("\n") for t in json.loads(row)["turns"]]
    return {_plain(t) for t in turns} | {_plain(t.strip().split("\n")[-1]) for t in turns}


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def _mixed(groups: dict[str, list[tuple[int, str]]]) -> Iterator[tuple[int, str]]:
    """Weighted round-robin: always the source that lags furthest behind its share."""
    weight = {name: WEIGHTS.get(name, 0.05) for name in groups}
    used = dict.fromkeys(groups, 0)
    while left := [name for name in groups if used[name] < len(groups[name])]:
        name = min(left, key=lambda n: ((used[n] + 0.5) / weight[n], n))
        yield groups[name][used[name]]
        used[name] += 1


def _made(prompts: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """(source, prompt) of the made ones, from the templates and the texts in the prompts file."""
    questions = sorted({m.strip() for p in prompts for m in _QUESTION.findall(p)})
    texts = sorted({m.strip() for p in prompts for m in _TEXT.findall(p)})
    for question in questions:
        yield "made-question", question[0].upper() + question[1:]
    words = json.loads(_CHATS.read_text(encoding="utf-8"))
    for topic in words["topics"]:
        for ask in words["asks"]:
            yield "made-topic", ask.format(t=topic, u=rng.choice(words["topics"]))
    for _ in range(2000):
        sentence = " ".join(rng.choice(part) for part in words["german"])
        yield "made-translation", f"Translate German to English: {sentence} ."
    for text in texts:
        yield "made-summary", f"Summarize: {text}"
        if questions:
            yield "made-passage", f"{text}\n{rng.choice(questions)}"


def _made_later(prompts: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kinds that came after the first text: their own draws, and last, so that older numbers keep their prompts."""
    words = json.loads(_CHATS.read_text(encoding="utf-8"))["news"]
    for _ in range(4000):
        yield "made-news", f"Translate German to English: {_news(words, rng)}"
    asked = [(m.strip(), p) for p in prompts for m in _TEXT.findall(p)]
    for text, prompt in asked:
        others = [rng.choice(asked)[0] for _ in range(rng.randint(1, 2))]
        article = " ".join([text, *others])[:2400]
        yield "made-long-summary", f"Summarize: {article}"
        if own := _QUESTION.findall(prompt.replace(text, "")):
            yield "made-long-passage", f"{' '.join([*others, text])[-2400:]}\n{own[0].strip()}"


_LOWER = re.compile(r"^(Der|Die|Das|Eine?|Es|Er|Sie|So|Im|Man|Wir|Mehr|Viele|Niemand)\b")
"""Beginnings of sentences that are written small inside one."""


def _news(words: dict[str, list[str]], rng: random.Random) -> str:
    """One or two German sentences, tokens apart as in news corpora."""
    found = []
    for _ in range(rng.choice((1, 1, 2))):
        part = {name: rng.choice(words[name]) for name in words if name != "forms"}
        part |= {f"{name}2": rng.choice(words[name]) for name in ("who", "what", "when", "short")}
        for name in ("who2", "short2"):
            part[name] = _LOWER.sub(lambda found: found[0].lower(), part[name], count=1)
        part["when2"] = part["when2"][0].upper() + part["when2"][1:]
        found.append(rng.choice(words["forms"]).format(**part))
    return " ".join(found)


@click.command()
@click.option("--prompts", type=click.Path(path_type=Path), required=True)
@click.option("--exclude", type=click.Path(path_type=Path), help="Bench file to keep out.")
@click.option("--seed", default=1, show_default=True, help="The seed that was written with.")
@click.option("--count", default=40, show_default=True)
@click.option("--longest", default=2000, show_default=True, help="Characters of a prompt.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(
    prompts: Path, exclude: Path | None, seed: int, count: int, longest: int, out: Path
) -> None:
    """Write prompts that are never trained on as questions, for `bench/pair.py --questions`."""
    try:
        found = load(prompts, exclude, seed)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error
    held = [(n, text) for n, text in found if n % HELD_OUT == 0 and len(text) <= longest]
    rows = [{"question_id": n, "category": "held-out", "turns": [text]} for n, text in held[:count]]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
