"""Conversations with questions about them, from the formats that bench/ reads; and how names and values are written in SQL."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

LOCOMO_KINDS = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}


@dataclass(frozen=True)
class Turn:
    """One thing that one speaker said. `said_at` is UTC, None when nobody knows."""

    id: str
    session: str | None
    speaker: str | None
    said_at: datetime | None
    content: str


@dataclass(frozen=True)
class Question:
    """A question and the ids of all the turns that are needed to answer it."""

    id: str
    text: str
    evidence: frozenset[str]
    kind: str
    group: str | None = None
    """Questions of one group ask for the same thing in other words."""


@dataclass(frozen=True)
class Conversation:
    """A history of sessions between the same people, with questions about it.

    `turns` are in the order they were said, session by session, and each has an id of its own. The evidence of every
    question is among them, and never empty.
    """

    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


def load_locomo(path: Path) -> list[Conversation]:
    """The conversations of a LoCoMo file (snap-research/locomo, `locomo10.json`).

    A shared picture is told by its caption, behind the text. Questions without evidence among the turns are left out.
    Evidence that names an id which occurs twice means the first turn with it.
    """
    return [_locomo_conversation(entry, f"conv{number}") for number, entry in enumerate(json.loads(path.read_text("utf-8")))]


def load_turns(path: Path) -> Conversation:
    """A conversation from a JSONL file with a turn a line, in order: `id, session_id, speaker, said_at, content`, of which
    only the content must be there.

    Questions are taken from the file `questions.jsonl` next to it, if there is one: those whose `store` is this file's name.
    """
    turns = tuple(_jsonl_turn(line, number) for number, line in enumerate(_lines(path), 1))
    mine = load_questions(path.with_name("questions.jsonl"), store=path.stem)
    return Conversation(path.stem, turns, tuple(mine))


def load_questions(path: Path, store: str) -> list[Question]:
    """The questions of a JSONL file about one store: `id, question, evidence, kind, store`, some with `group`. None without
    the file."""
    lines = _lines(path) if path.is_file() else ()
    return [
        Question(line["id"], line["question"], frozenset(line["evidence"]), line["kind"], line.get("group"))
        for line in lines
        if line["store"] == store
    ]


def _locomo_conversation(entry: dict, fallback_name: str) -> Conversation:
    turns = tuple(_locomo_turns(entry["conversation"]))
    ids = {turn.id for turn in turns}
    questions = []
    for number, asked in enumerate(entry["qa"]):
        # Evidence is written in several ways: "D1:3", "D1:3; D1:5", "(D1:3)".
        evidence = frozenset(dia_id for text in asked.get("evidence", []) for dia_id in re.findall(r"D\d+:\d+", text)) & ids
        if evidence:
            questions.append(Question(f"q{number}", asked["question"], evidence, LOCOMO_KINDS[asked["category"]]))
    return Conversation(entry.get("sample_id", fallback_name), turns, tuple(questions))


def _locomo_turns(conversation: dict) -> Iterator[Turn]:
    seen: Counter[str] = Counter()
    sessions = sorted(int(match[1]) for key in conversation if (match := re.fullmatch(r"session_(\d+)", key)))
    for session in (f"session_{number}" for number in sessions):
        turns = conversation[session]
        start = _locomo_start(conversation.get(f"{session}_date_time", ""), len(turns))
        for number, turn in enumerate(turns):
            seen[turn["dia_id"]] += 1
            repeated = f" ({seen[turn['dia_id']]})" if seen[turn["dia_id"]] > 1 else ""
            caption = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            yield Turn(
                id=turn["dia_id"] + repeated,
                session=session,
                speaker=turn["speaker"],
                said_at=start and start + timedelta(seconds=number),
                content=turn["text"] + caption,
            )


def _locomo_start(text: str, turns: int) -> datetime | None:
    """When a session began, so early that its turns, a second apart, all fall on that day. LoCoMo writes
    "1:56 pm on 8 May, 2023"."""
    if not text:
        return None
    start = datetime.strptime(text, "%I:%M %p on %d %B, %Y")
    return min(start, start.replace(hour=23, minute=59, second=59) - timedelta(seconds=turns))


def _jsonl_turn(line: dict, number: int) -> Turn:
    said_at = datetime.fromisoformat(line["said_at"]) if line.get("said_at") else None
    if said_at and said_at.tzinfo:
        said_at = said_at.astimezone(UTC).replace(tzinfo=None)
    return Turn(
        id=line.get("id", f"line {number}"),
        session=line.get("session_id"),
        speaker=line.get("speaker"),
        said_at=said_at,
        content=line["content"],
    )


def _lines(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def literal(value: str | int | float) -> str:
    """An SQL literal."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def identifier(name: str) -> str:
    """An SQL identifier, quoted if it must be."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
