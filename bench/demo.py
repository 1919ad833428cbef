#!/usr/bin/env python3
"""A tour of lethe: stores are filled, asked, taught and asked together, and every statement is shown before its result.

    python bench/demo.py --extension build/lethe.duckdb_extension
    python bench/demo.py --extension build/lethe.duckdb_extension --data locomo10.json
    python bench/demo.py --extension build/lethe.duckdb_extension --data chat.jsonl --ask "When did we plant the tomatoes?"

What it says about a result is computed from that result.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb

from datasets import Conversation, Question, identifier, literal, load_locomo, load_questions, load_turns
from paraphrases import PARAPHRASES, paraphrased

SAMPLE = Path(__file__).resolve().parent / "corpus" / "sample"
# Of several kinds, and not only such as it gets right.
SAMPLE_QUESTIONS = ["q03", "q15", "q34", "q51", "q59", "q64"]
SAMPLE_FEDERATED = ["q22", "q31"]
WIDTH = max(80, min(132, shutil.get_terminal_size((120, 0)).columns))

QUESTIONS = 5
ANSWERS = 3
SAME_ANSWER = 3
DEPTH = 30
"""How far down the evidence is looked for."""
IGNORED = 2
"""How many wrong answers are said to be of no help."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A conversation to fill a store from. `jsonl` is its file, if DuckDB can read it as it is."""

    conversation: Conversation
    jsonl: Path | None = None

    @property
    def store(self) -> str:
        return self.conversation.name


@dataclass(frozen=True)
class Tour:
    """One or two sources, what is asked of the first, and what is asked of both."""

    sources: list[Source]
    asked: list[Question]
    paraphrases: list[Question]
    federated: list[Question]


# --- What is shown: the sample, or the user's own data


def sample_tour() -> Tour:
    home, work = (Source(load_turns(file), file) for file in (SAMPLE / "home.jsonl", SAMPLE / "work.jsonl"))
    questions = {question.id: question for question in home.conversation.questions}
    across = load_questions(SAMPLE / "questions.jsonl", store="both")
    return Tour(
        sources=[home, work],
        asked=[questions[id] for id in SAMPLE_QUESTIONS],
        paraphrases=[question for question in questions.values() if question.group == "garden"],
        federated=[question for question in across if question.id in SAMPLE_FEDERATED],
    )


def locomo_tour(path: Path) -> Tour:
    first, *others = load_locomo(path)
    kinds = dict.fromkeys(question.kind for question in first.questions)
    return Tour(
        sources=[Source(conversation) for conversation in [first, *others[:1]]],
        asked=[next(question for question in first.questions if question.kind == kind) for kind in kinds][:QUESTIONS],
        paraphrases=same_evidence(first.questions),
        federated=list(others[0].questions[:2]) if others else [],
    )


def jsonl_tour(path: Path, asked: list[str]) -> Tour:
    conversation = load_turns(path)
    given = [Question(f"ask{number}", text, frozenset(), "yours") for number, text in enumerate(asked, 1)]
    questions = given or list(conversation.questions) or said_questions(conversation)
    if not questions:
        raise SystemExit(f"{path} has no questions.jsonl beside it, and no turn that ends in a question mark; use --ask")
    paraphrases = same_evidence(conversation.questions) or questions[:SAME_ANSWER]
    return Tour([Source(conversation, path)], questions[:QUESTIONS], paraphrases, [])


def same_evidence(questions: Sequence[Question]) -> list[Question]:
    """Questions with the same evidence: as near to paraphrases as a data set without groups has them."""
    by_evidence: dict[frozenset[str], list[Question]] = {}
    for question in questions:
        by_evidence.setdefault(question.evidence, []).append(question)
    return max(by_evidence.values(), key=len, default=[])[:SAME_ANSWER]


def said_questions(conversation: Conversation) -> list[Question]:
    """For data without questions: some that were asked in it. Their first answer is often themselves."""
    said = (turn for turn in conversation.turns if turn.content.rstrip().endswith("?") and len(turn.content) > 30)
    return [Question(turn.id, turn.content, frozenset(), "said in the data") for turn in islice(said, QUESTIONS)]


# --- On the terminal


def heading(text: str) -> None:
    line = "─" * WIDTH
    print(f"\n\n\033[1m{text}\033[0m\n{line}" if sys.stdout.isatty() else f"\n\n{text}\n{line}")


def say(text: str, indent: str = "") -> None:
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent))


def shown(value: Any) -> str:
    match value:
        case None:
            return "–"
        case float():
            return f"{value:.3f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case _:
            return " ".join(str(value).split())


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2].rstrip() + " …"


def print_table(rows: Sequence[Row]) -> None:
    """Aligned columns; the last is shortened to fit the terminal."""
    if not rows:
        print("  (no rows)")
        return
    lines = [list(rows[0])] + [[shown(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    room = max(20, WIDTH - 2 - sum(width + 2 for width in widths[:-1]))
    numeric = [all(isinstance(row[name], (int, float, type(None))) for row in rows) for name in rows[0]]
    for line in lines:
        cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric)]
        print("  " + "  ".join([*cells[:-1], shortened(cells[-1].rstrip(), room)]).rstrip())


def print_answers(rows: Iterable[Row], evidence: set[UUID], origin: Sequence[str] = ("speaker", "said_at")) -> None:
    """Each answer in two lines or three: what was said, and what put it there."""
    for row in rows:
        mark = "✓" if row["turn_id"] in evidence else " "
        who = ", ".join(shown(row[name]) for name in origin if row[name] is not None)
        text = shortened(f"{who}: {shown(row['content'])}", 2 * WIDTH - 20)
        print(textwrap.fill(text, WIDTH, initial_indent=f"{mark}{row['rank']:2}  ", subsequent_indent="     "))
        print(f"     └ {reason(row)}")


def reason(row: Row) -> str:
    """How an answer came to its rank, out of the columns of explain."""
    sources = [
        f"{name} {'rank ' + str(row[column]) if row[column] else 'do not find it'}"
        for name, column in (("words", "word_rank"), ("vectors", "vector_rank"))
    ]
    feedback = f", feedback {row['feedback']:+.2f}" if row["feedback"] else ""
    reranker = f", reranker {row['reranker_score']:.3f}" if row["reranker_score"] is not None else ""
    return f"{', '.join(sources)} → pool rank {row['pool_rank']}; token evidence {row['token_score']:.3f}{feedback}{reranker}"


# --- The connection


class Session:
    """A DuckDB with lethe, which shows what it runs."""

    def __init__(self, extension: Path) -> None:
        self.connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self.turns: dict[str, dict[str, UUID]] = {}
        """The turn_id of each id of the data, by store."""
        self.run(f"LOAD {literal(str(extension))};")

    def run(self, sql: str) -> list[Row]:
        """Shows a statement, and returns its rows."""
        sql = textwrap.dedent(sql).strip()
        print("\n▸ " + sql.replace("\n", "\n  "))
        return self.quietly(sql)

    def quietly(self, sql: str) -> list[Row]:
        result = self.connection.execute(sql)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row)) for row in result.fetchall()]

    def reads_json(self) -> bool:
        return bool(self.quietly("FROM duckdb_extensions() WHERE extension_name = 'json' AND loaded"))

    def evidence(self, question: Question, stores: Iterable[str]) -> set[UUID]:
        turns = [self.turns[store] for store in stores]
        return {ids[id] for ids in turns for id in question.evidence if id in ids}

    def retrieve(self, question: Question, k: int, show: bool = True) -> list[Row]:
        """Asks the current database, without a trace in what it learns."""
        run = self.run if show else self.quietly
        return run(f"FROM memory_retrieve({literal(question.text)}, {k}, explain := true, learn := false);")


# --- The stations


def fill(session: Session, source: Source, folder: Path) -> None:
    store, name = identifier(source.store), literal(source.store)
    session.run(f"ATTACH {literal(str(folder / (source.store + '.db')))} AS {store};")
    print_table(session.run(f"CALL memory_create(store := {name});"))
    columns = "session_id, speaker, said_at, content, metadata"
    if source.jsonl and session.reads_json():
        print_table(
            session.run(f"""
                INSERT INTO {store}.lethe.turns ({columns})
                SELECT session_id, speaker, said_at, content, json_object('id', id)
                FROM read_json({literal(str(short(source.jsonl)))}, format := 'newline_delimited', columns := {{
                  id: 'VARCHAR', session_id: 'VARCHAR', speaker: 'VARCHAR', said_at: 'TIMESTAMP', content: 'VARCHAR'}});
            """)
        )
    else:
        insert = f"INSERT INTO {store}.lethe.turns ({columns}) VALUES (?, ?, ?, ?, json_object('id', ?::VARCHAR))"
        turns = source.conversation.turns
        print(f"\n▸ {insert};  -- {len(turns)} times")
        rows = [(turn.session, turn.speaker, turn.said_at, turn.content, turn.id) for turn in turns]
        session.connection.executemany(insert, rows)
    print_table(session.run(f"FROM memory_sync(store := {name});"))
    ids = session.quietly(f"SELECT turn_id, metadata->>'id' AS id FROM {store}.lethe.turns")
    session.turns[source.store] = {row["id"]: row["turn_id"] for row in ids}


def ask(session: Session, source: Source, questions: Iterable[Question]) -> None:
    say("Below each answer stands what put it there. ✓ marks what the data set says the answer is in, if it says so.")
    found, known = 0, 0
    for question in questions:
        rows = session.retrieve(question, ANSWERS)
        evidence = session.evidence(question, [source.store])
        print_answers(rows, evidence)
        if evidence:
            known += 1
            ranks = [row["rank"] for row in rows if row["turn_id"] in evidence]
            found += bool(ranks)
            print(f"     {question.kind}: {len(ranks)} of {len(evidence)} evidence turns among the first {ANSWERS}")
    if known:
        print()
        say(f"Of {known} questions, {found} got a true evidence turn among their first {ANSWERS} answers.")


def learn(session: Session, source: Source, paraphrases: list[Question]) -> None:
    say(
        "The first of some questions with the same answer is asked. Then it is said which of its answers were used and which were of "
        "no help; that counts from the next question on, for that question and for others that are put in much the same words."
    )
    first, *others = paraphrases
    paraphrases = [first, *(again for how in PARAPHRASES for again in paraphrased([first], how)), *others]
    evidence = session.evidence(paraphrases[0], [source.store])
    before = [ranks(session, question) for question in paraphrases]
    asked = session.run(f"FROM memory_retrieve({literal(paraphrases[0].text)}, {ANSWERS}, explain := true);")
    print_answers(asked, evidence)
    # Evidence is used, found or not; for data without any, the best answer is said to be.
    used = sorted(evidence) or [row["turn_id"] for row in asked[:1]]
    ignored = [row["turn_id"] for row in asked if row["turn_id"] not in used][:IGNORED]
    lists = "".join(f",\n  {name} := {id_list(turns)}" for name, turns in (("used", used), ("ignored", ignored)) if turns)
    verdicts = session.run(f"CALL memory_feedback({literal(str(asked[0]['retrieval_id']))}{lists});")
    print_table([{"verdict": row["verdict"], "turn_id": row["turn_id"]} for row in verdicts])
    after = [ranks(session, question) for question in paraphrases]
    print()
    say("The best rank of what was used, before → after, question by question; – is beyond the first " + f"{DEPTH}.")
    best = [[best_rank(moment, used) for moment in course] for course in zip(before, after)]
    print_table([{"rank": arrow(places), "question": question.text} for places, question in zip(best, paraphrases)])


def ranks(session: Session, question: Question) -> dict[UUID, int]:
    """The rank of each answer, asked without a trace."""
    return {row["turn_id"]: row["rank"] for row in session.retrieve(question, DEPTH, show=False)}


def id_list(turns: Iterable[UUID]) -> str:
    return "[" + ", ".join(literal(str(turn)) for turn in turns) + "]"


def best_rank(ranked: dict[UUID, int], turns: Iterable[UUID]) -> int | None:
    return min((ranked[turn] for turn in turns if turn in ranked), default=None)


def arrow(places: Iterable[int | None]) -> str:
    return " → ".join(map(shown, places))


def federate(session: Session, sources: list[Source], questions: list[Question]) -> None:
    stores = [source.store for source in sources]
    named = ", ".join(map(literal, stores))
    for question in questions:
        rows = session.run(
            f"FROM memory_retrieve({literal(question.text)}, {QUESTIONS}, stores := [{named}], explain := true, learn := false);"
        )
        evidence = session.evidence(question, stores)
        print_answers(rows, evidence, origin=("store", "speaker", "said_at"))
        counts = ", ".join(f"{sum(row['store'] == store for row in rows)} from {store}" for store in stores)
        hits = sum(row["turn_id"] in evidence for row in rows)
        print(f"     {counts}; {hits} of {len(evidence)} evidence turns among them")


def statistics(session: Session, sources: list[Source]) -> None:
    calls = [f"FROM memory_stats(store := {literal(source.store)})" for source in sources]
    rows = session.run("\nUNION ALL ".join(calls) + ";")
    print_table([{"": name, **{row["store"]: shown(row[name]) for row in rows}} for name in rows[0] if name != "store"])


NEXT_STEPS = """
  $ duckdb -unsigned
  LOAD {extension};
  ATTACH {file} AS {store};  USE {store};
  CALL memory_create();                     -- makes a store, or leaves one as it is
  FROM memory_add('The tomatoes went in on 3 May', session := 's1', speaker := 'Ana');
  FROM memory_retrieve('when did we plant the tomatoes?', 5, explain := true);
  FROM duckdb_settings() WHERE name LIKE 'lethe_%';
"""


def how_to_go_on(extension: Path, kept: Path | None) -> None:
    """`kept` is the file of a store that stays."""
    say(
        f"The stores are kept in {kept.parent}: plain DuckDB files."
        if kept
        else "The stores were temporary; --store DIR keeps them."
    )
    store, file = (identifier(kept.stem), str(kept)) if kept else ("mine", "mine.db")
    print(NEXT_STEPS.format(extension=literal(str(extension)), file=literal(file), store=store))


def short(path: Path) -> Path:
    """The path as it is said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def run(tour: Tour, extension: Path, folder: Path, kept: bool) -> None:
    first, *others = tour.sources
    heading("1  A store is made, filled by plain SQL, and encoded")
    session = Session(short(extension))
    for source in tour.sources:
        fill(session, source, folder)
    session.run(f"USE {identifier(first.store)};")
    heading("2  Questions, and why each answer is one")
    ask(session, first, tour.asked)
    if tour.paraphrases:
        heading("3  Learning from being told")
        learn(session, first, tour.paraphrases)
    heading("4  One question to several stores")
    if others:
        federate(session, tour.sources, tour.federated)
    else:
        say("There is one store only; with a second one attached, stores := ['a', 'b'] asks both.")
    heading("5  What the stores hold")
    statistics(session, tour.sources)
    heading("6  How to go on")
    how_to_go_on(short(extension), folder / f"{first.store}.db" if kept else None)
    session.connection.close()


def store_folder(path: Path, tour: Tour) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for source in tour.sources:
        if (file := path / f"{source.store}.db").exists():
            raise SystemExit(f"{file} exists already; the demo fills new stores only: name another folder with --store")
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extension", type=Path, required=True, help="lethe.duckdb_extension")
    parser.add_argument("--data", type=Path, help="locomo10.json, or a JSONL file of turns (default: the sample)")
    parser.add_argument("--ask", action="append", default=[], metavar="QUESTION", help="what to ask of a JSONL file; repeatable")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder to keep the stores in (default: they are temporary)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.data is None:
        tour = sample_tour()
    elif options.data.suffix == ".json":
        tour = locomo_tour(options.data)
    else:
        tour = jsonl_tour(options.data, options.ask)
    with ExitStack() as stack:
        if options.store:
            folder = store_folder(options.store, tour)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lethe-demo-")))
        run(tour, options.extension, folder, kept=options.store is not None)


if __name__ == "__main__":
    main()
