"""A corpus of any size that reads like LoCoMo: its own conversations, and then sessions made of their sentences.

An invented turn has as many sentences as some real turn, each drawn from all of them, so lengths and word frequencies stay
those of LoCoMo, and the questions of LoCoMo keep their evidence among ever more turns that speak of the same things. The same
seed gives the same corpus, and a smaller one is the beginning of a larger.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from datasets import Conversation, Question

SEED = 20_240_501
FIRST_DAY = datetime(2022, 1, 1, 8)
DAYS = 900


@dataclass(frozen=True)
class Line:
    """A turn as it is inserted."""

    id: UUID
    session: str
    speaker: str | None
    said_at: datetime | None
    content: str


def turn_id(place: int) -> UUID:
    """Ids in the order of the turns: equal scores are ordered by id, so every run ranks them alike."""
    return UUID(int=place + 1)


def corpus(conversations: list[Conversation], size: int) -> list[Line]:
    """The first `size` turns. An error if that is fewer than the conversations have."""
    real = [
        (f"{conversation.name}/{turn.session}", turn.speaker, turn.said_at, turn.content)
        for conversation in conversations
        for turn in conversation.turns
    ]
    if size < len(real):
        raise SystemExit(f"{size} turns do not hold the {len(real)} of the conversations")
    turns = [*real, *islice(_invented(conversations), size - len(real))]
    return [Line(turn_id(place), *turn) for place, turn in enumerate(turns)]


def relevant(conversations: list[Conversation]) -> Iterator[tuple[Question, set[UUID]]]:
    """Every question with the ids of its evidence in the corpus; question ids are made unique by their conversation's name."""
    place = 0
    for conversation in conversations:
        ids = {turn.id: turn_id(place + number) for number, turn in enumerate(conversation.turns)}
        place += len(conversation.turns)
        for question in conversation.questions:
            yield question, {ids[turn] for turn in question.evidence}


def _invented(conversations: list[Conversation]) -> Iterator[tuple[str, str, datetime, str]]:
    rng = random.Random(SEED)
    turns = [turn for conversation in conversations for turn in conversation.turns]
    shapes = [_sentences(turn.content) for turn in turns]
    sentences = [sentence for shape in shapes for sentence in shape]
    lengths = [len(shape) for shape in shapes]
    speakers = sorted({turn.speaker for turn in turns if turn.speaker})
    sessions = [len([t for t in c.turns if t.session == s]) for c in conversations for s in {t.session: 0 for t in c.turns}]
    number = 0
    while True:
        number += 1
        pair = rng.sample(speakers, 2)
        start = FIRST_DAY + timedelta(days=rng.randrange(DAYS), minutes=rng.randrange(720))
        for place in range(rng.choice(sessions)):
            content = " ".join(rng.choice(sentences) for _ in range(rng.choice(lengths)))
            yield f"invented/{number}", pair[place % 2], start + timedelta(seconds=place), content


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]
