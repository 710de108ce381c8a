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

from pyspec.errors import TrainingError

# share of each source in the mixture; sources not named here get 0.05
WEIGHTS = {
    "gpteacher-roleplay": 0.16,
    "gpteacher-codegen": 0.07,
    "self-instruct-user": 0.02,
    "self-instruct-seed": 0.02,
    "gsm8k-train": 0.16,
    "t0-p3": 0.08,
    "made-question": 0.16,
    "made-topic": 0.15,
    "made-translation": 0.07,
    "made-summary": 0.06,
    "made-passage": 0.05,
}
_TOPICS = (
    "photosynthesis|black holes|the French Revolution|machine learning|inflation|climate change|"
    "the water cycle|volcanoes|vaccines|the Silk Road|democracy|supply and demand|DNA|gravity|"
    "the Renaissance|jazz|chess|sleep|yoga|healthy eating|remote work|electric cars|solar power|"
    "the stock market|public speaking|time management|friendship|a trip to Japan|a trip to Italy|"
    "a weekend in Paris|hiking in the Alps|learning a language|gardening|baking bread|coffee|"
    "social media|artificial intelligence|space travel|the Moon|earthquakes|the human heart|"
    "the immune system|the Industrial Revolution|the Roman Empire|ancient Egypt|World War I|"
    "the Great Depression|poetry|Shakespeare|impressionist painting|film music|video games|"
    "football|marathon running|swimming|mountain biking|mindfulness|stress|job interviews|"
    "starting a small business|saving money|renting a flat|recycling|plastic in the oceans|bees|"
    "elephants|dogs|cats|whales|rainforests|deserts|rivers|bridges|trains|aeroplanes|computers|"
    "the internet|encryption|databases|sorting algorithms|recursion|binary search|Python lists|"
    "linked lists|prime numbers|probability|statistics|geometry|linear equations|calculus|"
    "chemical bonds|acids and bases|electricity|magnetism|light|sound|evolution|ecosystems|"
    "nutrition|antibiotics|mental health|education|philosophy|ethics|law|taxes|elections|trade|"
    "migration|cities|farming|fishing|fashion|architecture|photography|theatre|cooking rice"
).split("|")
_ASKS = (
    "Explain {t}.|Explain {t} to a child.|What is important to know about {t}?|"
    "Write a blog post about {t}.|Write a short story about {t}.|Write a poem about {t}.|"
    "Write an email to a friend about {t}.|Give me five tips about {t}.|"
    "What are the advantages and disadvantages of {t}?|Describe the history of {t}.|"
    "List ten facts about {t}.|How does one begin with {t}?|Write an essay on {t}.|"
    "Write a speech about {t}.|Why does {t} matter?|Give an outline of a lecture on {t}.|"
    "Compare {t} and {u}.|How are {t} and {u} connected?|Write a dialogue about {t}.|"
    "What are common mistakes people make with {t}?|Write a product description about {t}.|"
    "Imagine you are an expert in {t}. What would you tell a beginner?|"
    "Act as a teacher and give a lesson about {t}.|Make a quiz with answers about {t}.|"
    "Write a Python program that has to do with {t}.|Write a letter of complaint about {t}.|"
    "Summarize what is known about {t}.|What will happen to {t} in the future?|"
    "Give examples of {t} in daily life.|Write a news article about {t}.|"
    "Create a table about {t}.|Discuss {t} and its effects on society."
).split("|")
_GERMAN = (
    "Der Minister|Die Polizei|Ein Sprecher der Firma|Meine Schwester|Der Trainer|Die Regierung|"
    "Eine junge Frau|Der alte Mann|Die Stadt|Das Unternehmen|Unser Lehrer|Die Mannschaft|"
    "Der Arzt|Die Wissenschaftler|Viele Menschen|Ein Zeuge",
    "sagte am Montag|erklärte gestern|hat lange geglaubt|weiß genau|berichtete der Zeitung|"
    "hofft seit Jahren|betonte noch einmal|ist überzeugt|teilte mit|behauptete vor Gericht",
    ", dass",
    "die neuen Pläne|die Kosten|die Arbeiten an der Brücke|die Ergebnisse|die Kinder|"
    "die meisten Bürger|die Verhandlungen|die Preise für Wohnungen|die Spieler|die Züge|"
    "die Bäume im Park|die Gäste aus dem Ausland",
    "in diesem Jahr|schon bald|nach dem Krieg|trotz der Krise|im nächsten Sommer|"
    "ohne jeden Zweifel|zum ersten Mal|vor allem in den Städten|wegen des Wetters",
    "besser werden|viel Geld kosten|nicht zu retten sind|alle überraschen werden|"
    "früher beginnen müssen|großen Erfolg haben|endlich zu Ende gehen|niemandem schaden|"
    "die Zukunft verändern|neu geplant werden",
)
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
    rng = random.Random(seed)
    made = [(s, p) for s, p in _made([p for _, p in lines], rng)]
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
    for topic in _TOPICS:
        for ask in _ASKS:
            yield "made-topic", ask.format(t=topic, u=rng.choice(_TOPICS))
    german = [part.split("|") for part in _GERMAN]
    for _ in range(2000):
        sentence = " ".join(rng.choice(part) for part in german).replace(" , ", " , ")
        yield "made-translation", f"Translate German to English: {sentence} ."
    for text in texts:
        yield "made-summary", f"Summarize: {text}"
        if questions:
            yield "made-passage", f"{text}\n{rng.choice(questions)}"
