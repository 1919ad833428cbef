"""The same question in other words, made by rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from datasets import Question

FUNCTION_WORDS = set(
    """a an the of to in on at for with and or is are was were be been do does did has have had it its this that these those what
    when where who whom which why how his her their he she they him them my your our i you we me us there any some as by from about
    into would could should can will""".split()
)


def keywords(question: str) -> str:
    """The question without its function words, as people type into a search box."""
    return " ".join(word for word in re.findall(r"[\w'’-]+", question) if word.lower() not in FUNCTION_WORDS) or question


def reminder(question: str) -> str:
    """The question as somebody puts it who has asked before."""
    return f"I forgot, can you remind me: {question[:1].lower()}{question[1:]}"


PARAPHRASES: dict[str, Callable[[str], str]] = {"keywords": keywords, "reminder": reminder}


def paraphrased(questions: Iterable[Question], how: str) -> list[Question]:
    return [replace(question, id=f"{question.id} {how}", text=PARAPHRASES[how](question.text)) for question in questions]
