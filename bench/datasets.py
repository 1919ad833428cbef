"""Conversations with questions about them, from the formats that bench/ reads; and how names and values are written in SQL.

LoCoMo, LongMemEval, folders in BEIR's layout, and JSON lines of one's own, each by its path: nothing is ever fetched. What is
wrong with a file ends the program with a message that names the file, the place and the field.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn, TextIO

LOCOMO_KINDS = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop", 5: "adversarial"}
ABSTENTION = "abstention"
"""The kind of the questions whose answer was never said, and which have no evidence."""
CHUNK = 1 << 24
"""Characters of a large JSON file that are read at once."""


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
    outdated: frozenset[str] = frozenset()
    """Turns that answered it until something else was said."""
    grades: dict[str, int] = field(default_factory=dict, hash=False)
    """How much each turn of the evidence answers, where the data says so; 1 otherwise."""


@dataclass(frozen=True)
class Conversation:
    """A history of sessions between the same people, with questions about it.

    `turns` are in the order they were said, session by session, and each has an id of its own. The evidence of every
    question is among them, and empty for questions of the kind `abstention` only.
    """

    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


def load(path: Path, form: str) -> Iterable[Conversation]:
    """The conversations of a file or folder in one of FORMATS."""
    return FORMATS[form](path)


def guess_format(path: Path) -> str:
    """The format that a path looks like: by the files of a folder, or by the first entry of a JSON file."""
    if path.is_dir():
        return "beir" if (path / "corpus.jsonl").is_file() else "jsonl"
    if path.suffix == ".jsonl":
        return "jsonl"
    first = next(_entries(path), None)
    for form, key in (("longmemeval", "haystack_sessions"), ("locomo", "conversation")):
        if isinstance(first, dict) and key in first:
            return form
    raise SystemExit(f"{path}: neither LoCoMo (conversation) nor LongMemEval (haystack_sessions); name the format")


def set_name(path: Path, form: str) -> str:
    """What a data set is called in results: small letters, digits and _."""
    path = path.resolve()
    name = "locomo" if form == "locomo" else path.parent.name if path.name == "turns.jsonl" else path.stem
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def merge(name: str, conversations: Iterable[Conversation]) -> Conversation:
    """All conversations as one, whose ids and sessions begin with the name of the conversation they are from.

    A session that several of them hold under one id and word by word (LongMemEval draws its haystacks from one pile) is there
    once, as it was said in the first.
    """
    turns: list[Turn] = []
    questions: list[Question] = []
    stored: dict[tuple[str, ...], list[str]] = {}
    for conversation in conversations:
        ids: dict[str, str] = {}
        for session, said in itertools.groupby(conversation.turns, key=lambda turn: turn.session):
            said = [_prefixed(turn, conversation.name) for turn in said]
            mine = [turn.id for turn in said]
            first = stored.setdefault((session or conversation.name, *(turn.content for turn in said)), mine)
            ids |= zip(mine, first)
            turns += said if first is mine else []
        questions += [_moved(question, conversation.name, ids) for question in conversation.questions]
    return Conversation(name, tuple(turns), tuple(questions))


def sample(conversations: Iterable[Conversation], step: int) -> Iterator[Conversation]:
    """Every n-th question of all, counted through the conversations, and the conversations that still have one."""
    asked = 0
    for conversation in conversations:
        questions = conversation.questions[-asked % step :: step]
        asked += len(conversation.questions)
        if questions:
            yield replace(conversation, questions=questions)


def _prefixed(turn: Turn, name: str) -> Turn:
    return replace(turn, id=f"{name}/{turn.id}", session=turn.session and f"{name}/{turn.session}")


def _moved(question: Question, name: str, ids: dict[str, str]) -> Question:
    """The question about a merged conversation. `ids` has the id under which each of its turns is stored."""
    return replace(
        question,
        id=f"{name}/{question.id}",
        evidence=frozenset(ids[f"{name}/{turn}"] for turn in question.evidence),
        outdated=frozenset(ids[f"{name}/{turn}"] for turn in question.outdated),
        grades={ids[f"{name}/{turn}"]: grade for turn, grade in question.grades.items()},
    )


def load_locomo(path: Path) -> list[Conversation]:
    """The conversations of a LoCoMo file (snap-research/locomo, `locomo10.json`).

    A shared picture is told by its caption, behind the text. Questions without evidence among the turns are left out.
    Evidence that names an id which occurs twice means the first turn with it.
    """
    return [_locomo_conversation(entry, f"conv{number}") for number, entry in enumerate(_entries(path))]


def load_longmemeval(path: Path) -> Iterator[Conversation]:
    """The haystacks of a LongMemEval file (xiaowu0162/LongMemEval: S, M or oracle), each with its one question.

    The file is a list of objects with `question_id, question_type, question, haystack_session_ids, haystack_dates,
    haystack_sessions` and `answer_session_ids`; a session is a list of `role, content` and maybe `has_answer`. Evidence is
    the turns of the answer sessions that are marked `has_answer`; without any, all of their turns. A question whose id ends
    in `_abs` is an abstention question. Read one by one: the M file is larger than most memories.
    """
    for number, entry in enumerate(_entries(path), 1):
        yield _longmemeval_conversation(entry, f"{path}, entry {number}")


def load_beir(folder: Path) -> list[Conversation]:
    """A folder in BEIR's layout as one conversation: each document is a turn without session, speaker or time.

    `corpus.jsonl` has `_id, title, text`, `queries.jsonl` has `_id, text`, and `qrels/test.tsv` a query, a document and a
    grade a line. Queries that nothing was judged to answer, and judgements of documents that are not there, are left out.
    """
    corpus, queries, qrels = folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"
    documents = tuple(_beir_document(line, where) for line, where in _lines(corpus))
    ids = {document.id for document in documents}
    grades: dict[str, dict[str, int]] = {}
    for query, document, grade in _judgements(qrels):
        if grade > 0 and document in ids:
            grades.setdefault(query, {})[document] = grade
    questions = []
    for line, where in _lines(queries):
        query = _text(line, "_id", where)
        if judged := grades.get(query):
            questions.append(Question(query, _text(line, "text", where), frozenset(judged), "query", grades=judged))
    return [Conversation(folder.resolve().name, documents, tuple(questions))]


def load_jsonl(path: Path) -> list[Conversation]:
    """A file of turns; or a folder, of such files or of folders with a `turns.jsonl` each, which are conversations by name."""
    if path.is_file():
        return [load_turns(path)]
    files = (file for file in sorted(path.glob("*.jsonl")) if file.name != "questions.jsonl")
    found = load_histories(path) or [load_turns(file) for file in files]
    return found or _wrong(f"{path}", "no turns.jsonl in its folders, and no file of turns")


def load_turns(path: Path) -> Conversation:
    """A conversation from a JSONL file with a turn a line, in order: `id, session_id, speaker, said_at, content`, of which
    only the content must be there.

    Questions are taken from the file `questions.jsonl` next to it, if there is one: those whose `store` is this file's name.
    """
    turns = tuple(_jsonl_turn(line, where, number) for number, (line, where) in enumerate(_lines(path), 1))
    ids = {turn.id for turn in turns}
    asked = load_questions(path.with_name("questions.jsonl"), store=path.stem)
    for question in asked:
        if strange := (question.evidence | question.outdated) - ids:
            _wrong(f"{path}", f"question {question.id} names {', '.join(sorted(strange))}, no id of a turn")
    return Conversation(path.stem, turns, tuple(asked))


def load_histories(folder: Path) -> list[Conversation]:
    """The conversations of a corpus: a folder each, with `turns.jsonl` and `questions.jsonl`, by name."""
    return [replace(load_turns(turns), name=turns.parent.name) for turns in sorted(folder.glob("*/turns.jsonl"))]


def load_questions(path: Path, store: str) -> list[Question]:
    """The questions of a JSONL file about one store: `id, question, evidence, kind`, some with `group`, some with `outdated`
    (turns that answered it before), and with `store` where the file is about several. None without the file."""
    lines = _lines(path) if path.is_file() else ()
    return [_jsonl_question(line, where) for line, where in lines if line.get("store", store) == store]


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
    """When a session began. LoCoMo writes "1:56 pm on 8 May, 2023"."""
    return _on_one_day(datetime.strptime(text, "%I:%M %p on %d %B, %Y"), turns) if text else None


def _on_one_day(start: datetime, turns: int) -> datetime:
    """The start of a session, so early that its turns, a second apart, all fall on that day."""
    return min(start, start.replace(hour=23, minute=59, second=59) - timedelta(seconds=turns))


def _longmemeval_conversation(entry: dict, where: str) -> Conversation:
    name = _text(entry, "question_id", where)
    where = f"{where} ({name})"
    names, dates, sessions = (_list(entry, f"haystack_{part}", where) for part in ("session_ids", "dates", "sessions"))
    if not len(names) == len(dates) == len(sessions):
        _wrong(where, f"haystack_session_ids: {len(names)} for {len(dates)} haystack_dates, {len(sessions)} haystack_sessions")
    turns: list[Turn] = []
    marked: list[str] = []
    of_answer: list[str] = []
    answering = set(_list(entry, "answer_session_ids", where))
    seen: Counter[str] = Counter()
    for session, date, said in zip(names, dates, sessions):
        seen[session] += 1
        unique = session if seen[session] == 1 else f"{session} ({seen[session]})"
        mine = list(_longmemeval_turns(unique, date, said, where))
        turns += mine
        if session in answering:
            of_answer += [turn.id for turn in mine]
            marked += [turn.id for turn, line in zip(mine, said) if line.get("has_answer")]
    abstention = name.endswith("_abs")
    evidence = frozenset() if abstention else frozenset(marked or of_answer)
    if not evidence and not abstention:
        _wrong(where, "answer_session_ids: none is in haystack_session_ids")
    kind = ABSTENTION if abstention else _text(entry, "question_type", where).replace("-", "_")
    return Conversation(name, tuple(turns), (Question(name, _text(entry, "question", where), evidence, kind),))


def _longmemeval_turns(session: str, date: str, said: list[dict], where: str) -> Iterator[Turn]:
    if not isinstance(said, list):
        _wrong(where, f"haystack_sessions {session}: a list is wanted, not {_short(said)}")
    start = _longmemeval_start(date, len(said), where)
    for number, turn in enumerate(said):
        place = f"{where}, haystack_sessions {session}, turn {number + 1}"
        yield Turn(
            id=f"{session}/{number + 1}",
            session=session,
            speaker=_text(turn, "role", place),
            said_at=start and start + timedelta(seconds=number),
            content=_text(turn, "content", place),
        )


def _longmemeval_start(text: str, turns: int, where: str) -> datetime | None:
    """When a session began. LongMemEval writes "2023/05/20 (Sat) 02:21", its makers also "2023/05/20"."""
    if not text:
        return None
    found = re.fullmatch(r"(\d{4})/(\d{1,2})/(\d{1,2})(?: \(\w+\))?(?: (\d{1,2}):(\d{2}))?", text)
    if not found:
        _wrong(where, f"haystack_dates: {text!r} is not like 2023/05/20 (Sat) 02:21")
    return _on_one_day(datetime(*(int(part or 0) for part in found.groups())), turns)


def _beir_document(line: dict, where: str) -> Turn:
    content = f"{line.get('title') or ''} {_text(line, 'text', where)}".strip()
    return Turn(_text(line, "_id", where), None, None, None, content)


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    """The lines of a qrels file: query, document, grade. A line of titles is left out."""
    with _opened(path) as lines:
        for number, row in enumerate(csv.reader(lines, delimiter="\t"), 1):
            if len(row) != 3:
                _wrong(f"{path}, line {number}", f"{len(row)} fields, not query-id, corpus-id and score")
            if re.fullmatch(r"-?\d+", row[2]):
                yield row[0], row[1], int(row[2])
            elif number > 1:
                _wrong(f"{path}, line {number}", f"score: {row[2]!r} is not a whole number")


def _jsonl_turn(line: dict, where: str, number: int) -> Turn:
    try:
        said_at = datetime.fromisoformat(line["said_at"]) if line.get("said_at") else None
    except (TypeError, ValueError):
        _wrong(where, f"said_at: {line['said_at']!r} is not an ISO 8601 time")
    if said_at and said_at.tzinfo:
        said_at = said_at.astimezone(UTC).replace(tzinfo=None)
    return Turn(
        id=line.get("id", f"line {number}"),
        session=line.get("session_id"),
        speaker=line.get("speaker"),
        said_at=said_at,
        content=_text(line, "content", where),
    )


def _jsonl_question(line: dict, where: str) -> Question:
    kind = _text(line, "kind", where)
    evidence = frozenset(_list(line, "evidence", where))
    if bool(evidence) == (kind == ABSTENTION):
        _wrong(where, f"evidence: empty for the kind {ABSTENTION}, and for no other")
    return Question(
        id=_text(line, "id", where),
        text=_text(line, "question", where),
        evidence=evidence,
        kind=kind,
        group=line.get("group"),
        outdated=frozenset(line.get("outdated", ())),
    )


def _lines(path: Path) -> Iterator[tuple[dict, str]]:
    """The objects of a JSONL file, and where each stands."""
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}, line {number}"
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError as error:
                    _wrong(where, f"not JSON: {error}")
                yield (entry, where) if isinstance(entry, dict) else _wrong(where, "not an object")


def _entries(path: Path) -> Iterator[dict]:
    """The objects of a JSON file that is one list, without ever holding all of it."""
    decoder = json.JSONDecoder()
    with _opened(path) as file:
        text, number = file.read(CHUNK).lstrip().removeprefix("\ufeff"), 0
        if not text.startswith("["):
            _wrong(f"{path}", "not a list of objects")
        text = text[1:]
        while True:
            text = text.lstrip(" \t\r\n,")
            if text.startswith("]"):
                return
            try:
                entry, end = decoder.raw_decode(text)
            except json.JSONDecodeError as error:
                # Most likely cut off: an object of half a file costs one more attempt for each chunk that it spans.
                more = file.read(max(CHUNK, len(text)))
                text = text + more if more else _wrong(f"{path}, entry {number + 1}", f"not JSON: {error}")
                continue
            number += 1
            yield entry if isinstance(entry, dict) else _wrong(f"{path}, entry {number}", "not an object")
            text = text[end:]


def _opened(path: Path) -> TextIO:
    return path.open(encoding="utf-8") if path.is_file() else _wrong(f"{path}", "no such file")


def _text(entry: dict, name: str, where: str) -> str:
    """The text in a field, or an error that names both."""
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, str) else _wrong(where, f"{name}: a text is wanted, not {_short(value)}")


def _list(entry: dict, name: str, where: str) -> list:
    """The list in a field, or an error that names both."""
    value = entry.get(name)
    return value if isinstance(value, list) else _wrong(where, f"{name}: a list is wanted, not {_short(value)}")


def _short(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _wrong(where: str, problem: str) -> NoReturn:
    raise SystemExit(f"{where}: {problem}")


FORMATS = {"locomo": load_locomo, "longmemeval": load_longmemeval, "beir": load_beir, "jsonl": load_jsonl}


def literal(value: str | int | float) -> str:
    """An SQL literal."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def identifier(name: str) -> str:
    """An SQL identifier, quoted if it must be."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
