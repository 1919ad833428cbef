#!/usr/bin/env python3
"""LoCoMo: how well lethe finds the turns that answer a question, asked through SQL as a user would.

    python bench/locomo.py --data locomo10.json --extension build/lethe.duckdb_extension

Every conversation becomes a store of its own, and every question is asked of its own conversation: the LMEB protocol, about
600 candidates a question. For each rule of the token evidence it prints NDCG@10, recall@10, @30, @60 and hit@1, micro (the mean
over the questions of all categories but the adversarial) and macro (the mean of the five categories' means).

The rules named after their formula are asked with every turn in the pool and 8-bit codes, so that they can be compared with an
implementation that ranks everything (`--expected`). `default` is a store and a ranking with no option touched.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from uuid import UUID

import duckdb
import ir_measures
from ir_measures import R, Success, nDCG

from datasets import Conversation, Question, identifier, literal, load_locomo

# trec_eval's nDCG: gain 1, discount log2(rank + 1), over the ideal of the same depth.
MEASURES = {"ndcg@10": nDCG @ 10, "recall@10": R @ 10, "recall@30": R @ 30, "recall@60": R @ 60, "hit@1": Success @ 1}
DEPTH = 60

Settings = dict[str, str | int | float]
Scores = list[float]
"""A number for each of MEASURES."""
Report = dict[str, Scores]
"""Scores of a kind of question; `micro` and `macro` are over all of them."""

# What puts every turn of a store into the pool.
ALL_TURNS: Settings = {"lethe_candidates": 1_000_000}


def token_rule(name: str, vector_alpha: float = 0.0) -> Settings:
    return ALL_TURNS | {"lethe_token_rule": name, "lethe_token_k": 64, "lethe_vector_alpha": vector_alpha}


RULES: dict[str, Settings] = {
    "dense": token_rule("maxsim", vector_alpha=1.0),
    "maxsim": token_rule("maxsim"),
    "sparse64": token_rule("floor"),
    "fused64": token_rule("floor", vector_alpha=0.5),
    "maxsim_idf": token_rule("idf"),
    "sparse64_idf": token_rule("floor_idf"),
}
DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """A way to make the stores, and the rules to ask them by."""

    name: str
    create: str
    """The arguments of memory_create."""
    rules: dict[str, Settings]
    context: int | None = None
    """None: lethe's own choice."""

    def label(self, rule: str) -> str:
        """The name of a rule's results. The context is told where it is not the usual one."""
        return rule if self.context in (None, 96) else f"{rule}_context{self.context}"


@dataclass
class Outcome:
    """What came of a variant."""

    variant: Variant
    reports: dict[str, Report] = field(default_factory=dict)
    turns_per_second: float | None = None


def variants(rules: Iterable[str], contexts: Iterable[int]) -> Iterator[Variant]:
    formulas = {rule: RULES[rule] for rule in rules if rule != DEFAULT}
    if formulas:
        for context in contexts:
            yield Variant(f"context {context}", f"context := {context}, code_bits := 8", formulas, context)
    if DEFAULT in rules:
        yield Variant("default", "", {DEFAULT: {}})


def open_duckdb(extension: Path, model: str | None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD {literal(str(extension))}")
    # An evaluation must not learn from its own questions.
    connection.execute("SET lethe_learn = false")
    if model:
        connection.execute(f"SET lethe_model_directory = {literal(model)}")
    return connection


def fill(connection: duckdb.DuckDBPyConnection, file: Path, conversation: Conversation, create: str) -> float | None:
    """Makes the conversation a store and the current database. Returns the turns encoded a second."""
    store = identifier(file.stem)
    connection.execute(f"ATTACH {literal(str(file))} AS {store}; USE {store}; CALL memory_create({create})")
    rows = [
        (turn_id(place), turn.session, turn.speaker, turn.said_at, turn.content, json.dumps({"dia_id": turn.id}))
        for place, turn in enumerate(conversation.turns)
    ]
    connection.executemany(
        f"INSERT INTO {store}.lethe.turns (turn_id, session_id, speaker, said_at, content, metadata) VALUES (?, ?, ?, ?, ?, ?)",
        rows,
    )
    return connection.execute("SELECT turns_per_second FROM memory_sync()").fetchall()[0][0]


def turn_id(place: int) -> UUID:
    """Ids in the order of the turns: equal scores are ordered by id, so every run ranks them alike."""
    return UUID(int=place + 1)


def ask(connection: duckdb.DuckDBPyConnection, questions: list[Question]) -> dict[str, list[UUID]]:
    """The best DEPTH turns of the current database for each question, in one statement."""
    connection.execute("CREATE OR REPLACE TEMP TABLE questions (id VARCHAR, question VARCHAR)")
    connection.executemany("INSERT INTO questions VALUES (?, ?)", [(question.id, question.text) for question in questions])
    answers = connection.execute(
        f"SELECT q.id, list(hit.turn_id ORDER BY hit.rank) "
        f"FROM questions q, unnest(memory_search(q.question, {DEPTH})) AS t(hit) GROUP BY q.id"
    )
    return dict(answers.fetchall())


def judge(conversation: Conversation, questions: list[Question], answers: dict[str, list[UUID]]) -> Iterator[tuple[str, Scores]]:
    """The kind and the scores of each question."""
    ids = {turn.id: str(turn_id(place)) for place, turn in enumerate(conversation.turns)}
    expected_rows = min(DEPTH, len(conversation.turns))
    relevance, ranking = [], []
    for question in questions:
        answer = answers.get(question.id, [])
        if len(answer) != expected_rows:
            raise SystemExit(f"{conversation.name}, {question.text!r}: {len(answer)} rows instead of {expected_rows}")
        relevance += [ir_measures.Qrel(question.id, ids[evidence], 1) for evidence in question.evidence]
        # By rank, so that equal scores stay in lethe's order.
        ranking += [ir_measures.ScoredDoc(question.id, str(turn), -rank) for rank, turn in enumerate(answer)]
    values = {
        (metric.query_id, metric.measure): metric.value for metric in ir_measures.iter_calc(MEASURES.values(), relevance, ranking)
    }
    for question in questions:
        yield question.kind, [values[question.id, measure] for measure in MEASURES.values()]


def summarise(judged: list[tuple[str, Scores]]) -> Report:
    kinds = {kind: mean([s for k, s in judged if k == kind]) for kind in dict.fromkeys(kind for kind, _ in judged)}
    micro = mean([scores for kind, scores in judged if kind != "adversarial"])
    return {"micro": micro, "macro": mean(list(kinds.values())), **kinds}


def mean(rows: list[Scores]) -> Scores:
    return [fmean(column) for column in zip(*rows)]


def evaluate(variant: Variant, conversations: list[Conversation], extension: Path, model: str | None, step: int) -> Outcome:
    """Encodes each conversation once and asks its questions by every rule of the variant."""
    judged: dict[str, list[tuple[str, Scores]]] = {rule: [] for rule in variant.rules}
    turns, encoding = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="lethe-locomo-") as folder, open_duckdb(extension, model) as connection:
        for number, conversation in enumerate(conversations, 1):
            questions = list(conversation.questions[::step])
            speed = fill(connection, Path(folder, f"{conversation.name}.db"), conversation, variant.create)
            if speed:
                turns, encoding = turns + len(conversation.turns), encoding + len(conversation.turns) / speed
            started = time.monotonic()
            for rule, settings in variant.rules.items():
                for name, value in settings.items():
                    connection.execute(f"SET {name} = {literal(value)}")
                judged[rule] += judge(conversation, questions, ask(connection, questions))
            asked = max(1, len(questions) * len(variant.rules))
            print(
                f"{variant.name}: {number}/{len(conversations)} {conversation.name}, {len(conversation.turns)} turns at "
                f"{speed or 0:.0f}/s, {len(questions)} questions at {1000 * (time.monotonic() - started) / asked:.1f} ms",
                file=sys.stderr,
            )
    reports = {rule: summarise(rows) for rule, rows in judged.items()}
    return Outcome(variant, reports, turns / encoding if encoding else None)


def print_table(outcomes: list[Outcome]) -> None:
    for scope in ("micro", "macro"):
        print_row(scope, [f"{name:>9}" for name in MEASURES])
        for outcome in outcomes:
            for rule, report in outcome.reports.items():
                print_row(f"  {outcome.variant.label(rule)}", [f"{score:9.4f}" for score in report[scope]])
        print()


def print_differences(outcomes: list[Outcome], expected: list[dict]) -> None:
    """What was measured less what was expected, where a file has the same rule and context."""
    print_row("less what was expected", [f"{name:>9}" for name in MEASURES])
    for outcome in outcomes:
        for reference in (e for e in expected if e["context"] == outcome.variant.context):
            for rule in (rule for rule in outcome.reports if rule in reference["rules"]):
                for scope in ("micro", "macro"):
                    measured = dict(zip(MEASURES, outcome.reports[rule][scope]))
                    wanted = dict(zip(reference["columns"], reference["rules"][rule][scope]))
                    differences = [f"{measured[name] - wanted[name]:+9.4f}" for name in MEASURES]
                    print_row(f"  {outcome.variant.label(rule)}, {scope}", differences)
    print()


def print_row(title: str, cells: list[str]) -> None:
    print(f"{title:30}{' '.join(cells)}")


def print_results(outcomes: list[Outcome]) -> None:
    columns = {"ndcg10": "ndcg@10", "recall10": "recall@10"}
    for outcome in outcomes:
        for rule, report in outcome.reports.items():
            for scope in ("macro", "micro"):
                scores = dict(zip(MEASURES, report[scope]))
                for short, name in columns.items():
                    print(f"RESULT locomo.{outcome.variant.label(rule)}.{scope}_{short} {scores[name]:.4f}")


def write_json(path: Path, outcomes: list[Outcome], step: int) -> None:
    def rounded(report: Report) -> Report:
        return {kind: [round(score, 4) for score in scores] for kind, scores in report.items()}

    document = {
        "columns": list(MEASURES),
        "step": step,
        "variants": [
            {
                "name": outcome.variant.name,
                "context": outcome.variant.context,
                "memory_create": outcome.variant.create,
                "turns_per_second": outcome.turns_per_second,
                "rules": {rule: rounded(report) for rule, report in outcome.reports.items()},
            }
            for outcome in outcomes
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def rule_names(text: str) -> list[str]:
    names = text.split(",")
    known = [*RULES, DEFAULT]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; known: {', '.join(known)}")
    return names


def whole_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--extension", type=Path, required=True, help="lethe.duckdb_extension")
    parser.add_argument("--model", help="encoder: a model directory or an installed model's name (default: lethe's)")
    parser.add_argument("--rules", type=rule_names, default=[*RULES, DEFAULT], help="comma-separated (default: all)")
    parser.add_argument("--context", type=whole_numbers, default=[96, 0], help="of the rules but default (default: 96,0)")
    parser.add_argument("--step", type=int, default=1, help="ask every n-th question only")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--expected", type=Path, action="append", default=[], help="a reference's results, to compare with")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    conversations = load_locomo(options.data)
    expected = [json.loads(path.read_text(encoding="utf-8")) for path in options.expected]
    outcomes = [
        evaluate(variant, conversations, options.extension, options.model, options.step)
        for variant in variants(options.rules, options.context)
    ]
    print_table(outcomes)
    if expected:
        print_differences(outcomes, expected)
    if options.json:
        write_json(options.json, outcomes, options.step)
    print_results(outcomes)


if __name__ == "__main__":
    main()
