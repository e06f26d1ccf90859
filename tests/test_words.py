"""The field's words: no word of a dialect in source, docs, messages, names and texts of tests.

A word is searched as a part of a name too: ``law`` is found in ``law_of`` and ``WeightLaw``, and not in "lawful".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "papers", "docs", "benchmarks", "tests")
PAGES = ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".rst", ".jinja", ".json", ".toml"}


class Banned(NamedTuple):
    """A word or phrase that is not written, and what to write instead; where one, a folder limits the search."""

    pattern: re.Pattern[str]
    instead: str
    folders: tuple[str, ...] = FOLDERS


def word(*forms: str) -> str:
    """Pattern of words in text and as parts of names: ``law``, ``law_of``, ``LawCase``, ``WeightLaw``, ``LAWS``."""
    return "|".join(
        f"(?<![A-Za-z]){form}(?![a-z])|(?<![A-Z]){form.capitalize()}(?![a-z])|(?<![A-Za-z]){form.upper()}(?![A-Za-z])"
        for form in forms
    )


def phrase(text: str) -> str:
    """Pattern of a phrase in text or as a name; its words may be on two lines."""
    gap = r"(?:[ \t_]+|[ \t]*\n[ \t]*(?:#[ \t]*)?)"
    return r"(?i:(?<![a-zA-Z])" + text.replace(" ", gap) + r"(?![a-zA-Z]))"


USERS = ("src", "docs")
COUNTED = (
    r"(nats?|bits|bytes|[kmg]i?b|ns|seconds|draws?|numbers?|evaluations?|weights|labels"
    r"|(?<!\w)[0-9]+(\.[0-9]+)?|one)"
)
BANNED = {
    "told": Banned(
        re.compile(word("told")), "given, reported, named, notified; a name that says what it holds"
    ),
    "holes": Banned(re.compile(word("hole", "holes", "holed")), "missing values"),
    "worries": Banned(re.compile(word("worry", "worries", "worried")), "concerns"),
    "law": Banned(re.compile(word("law", "laws")), "distribution, density, posterior"),
    "rounds": Banned(re.compile(word("rounds")), "iterations; epochs of networks; sweeps"),
    "round": Banned(
        re.compile(
            phrase("(each|every|one|a|per|last|first|next|EM|this) round")
            + r"(?!\s+(?:number|trip|clusters?|one))"
        ),
        "iteration",
    ),
    "document 00n": Banned(
        re.compile(phrase("documents? 00[0-9]")),
        "Beaulac (2023); Method-of-moments notes; Le Corff; Learning relevant features; Brownlie (2021)",
    ),
    "a row": Banned(
        re.compile(phrase(COUNTED + " an? (row|group|draw|unit|vector|iteration|step|document|parameter)")),
        "per row",
    ),
    "log-likelihood of a row": Banned(
        re.compile(phrase("(log-likelihood|nats|bytes|bound|elbo) of a row")), "mean log-likelihood; per row"
    ),
    "rows that judge": Banned(re.compile(phrase("rows (that|which|who) judge")), "held-out rows, test rows"),
    "strange rows": Banned(re.compile(phrase("strange (rows?|values?|ones?|tables?)")), "outliers"),
    "in hope": Banned(re.compile(phrase("in hope|hopeful(ly)?|hoped")), "speculative"),
    "tell A from B": Banned(
        re.compile(phrase("(not|cannot|never) tell (\\S+ ){1,8}(from|apart)")),
        "A and B are within one standard error; distinguish A from B",
    ),
    "settled": Banned(re.compile(word("settled")), "converged", USERS),
    "said": Banned(re.compile(word("said")), "described, reported; a name that says what it holds", USERS),
    "tally": Banned(re.compile(word("tally")), "sums, counts", USERS),
    "scene": Banned(re.compile(word("scene")), "standardisation"),
}

EXCEPTIONS = [
    # (path, what the text around the word is, why it stays)
    ("", r"(power|scaling) laws?\b", "a term of the field"),
    ("", r"[lL]aw of (total|large|iterated)", "a theorem's name"),
    ("CHANGELOG.md", r"`[^`\n]*`", "a name of an earlier version"),
    ("CONTRIBUTING.md", r"Distribution, not law.*", "says what not to write"),
    ("tests/test_words.py", r"(?s).*", "lists the words"),
    ("", r"\brounds? (to|towards|up|off|it|down|otherwise|differently)\b", "of numbers"),
]


def find_words(text: str, path: str) -> list[str]:
    """Banned words of a text, each with its line and the words to use."""
    top = path.split("/")[0]
    allowed = [
        m.span() for place, around, _ in EXCEPTIONS if place in ("", path) for m in re.finditer(around, text)
    ]
    found = []
    for name, (pattern, instead, folders) in BANNED.items():
        if top in FOLDERS and top not in folders:
            continue
        for match in pattern.finditer(text):
            if not any(low <= match.start() < high for low, high in allowed):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: {' '.join(match[0].split())!r} ({name}); write: {instead}")
    return found


def list_files() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    made = {"__pycache__", "build", "_build", "generated"}
    return [ROOT / page for page in PAGES] + [path for path in sorted(files) if not made & set(path.parts)]


def test_files_use_the_words_of_the_field() -> None:
    found = []
    for path in list_files():
        name = path.relative_to(ROOT).as_posix()
        found += find_words(path.read_text(encoding="utf-8"), name)
        found += find_words(path.stem, name)
    assert not found, "\n".join([f"{len(found)} places:", *found])


@pytest.mark.parametrize(
    "text",
    [
        "def told(estimator):",
        "test_a_small_batch_is_told",
        "rows with holes",
        "HOLES = 3",
        "draws.worries",
        "the law of x",
        "LawCase",
        "WeightLaw",
        "law_of(x)",
        "after 20 rounds",
        "in each round",
        "Algorithm 2 of document 004",
        "documents\n    003",
        "59.1 nats a row",
        "weights, one\n    a row",
        "mean log-likelihood of a row",
        "the rows that judge",
        "strange rows",
        "taken in hope",
        "rows do not tell it from the best",
        "test_the_rows_that_judge_took_no_part",
    ],
)
def test_banned_words_are_found(text: str) -> None:
    assert find_words(text, "src/boxloop/x.py")


@pytest.mark.parametrize(
    "text",
    [
        "the whole threshold is withtold nothing",
        "lawful, flaws, Lawley, outlaw",
        "a power law; the law of total variance",
        "round(x, 3); around; background; rounds to 1",
        "round clusters",
        "Cholesky",
        "a row of the table; an index of a row; the weight of a row",
        "documents 10",
        "one row in a hundred",
    ],
)
def test_words_of_the_field_are_not_found(text: str) -> None:
    assert not find_words(text, "src/boxloop/x.py")


def test_messages_name_the_place_and_the_remedy() -> None:
    (message,) = find_words("x = 1\ny = laws\n", "src/boxloop/x.py")
    assert message == "src/boxloop/x.py:2: 'laws' (law); write: distribution, density, posterior"
    assert not find_words("settled = 1", "tests/x.py")
    assert not find_words("`worries` of an audit are `concerns`", "CHANGELOG.md")
