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

import evaluation
from datasets import Conversation, Question, load_locomo
from evaluation import ADVERSARIAL, Hit
from stores import Settings, ask, fill, open_duckdb, set_all, turn_id

__all__ = ["ask", "fill", "judge", "open_duckdb", "turn_id"]

COLUMNS = ["ndcg@10", "recall@10", "recall@30", "recall@60", "hit@1"]

Scores = list[float]
"""A number for each of COLUMNS."""
Report = dict[str, Scores]
"""Scores of a kind of question; `micro` and `macro` are over all of them."""

# The token evidence alone, with every turn of a store in the pool.
ALL_TURNS: Settings = {
    "lethe_candidates": 1_000_000,
    "lethe_adapter": "none",
    "lethe_answer_weight": 0.0,
    "lethe_neighbour_weight": 0.0,
    "lethe_asking_malus": 0.0,
    "lethe_speaker_bonus": 0.0,
    "lethe_month_bonus": 0.0,
}


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


def judge(conversation: Conversation, questions: list[Question], answers: dict[str, list[Hit]]) -> Iterator[tuple[str, Scores]]:
    """The kind and the scores of each question."""
    for one in evaluation.judge(conversation, questions, answers):
        yield one.kind, [one.measures[name] for name in COLUMNS]


def summarise(judged: list[tuple[str, Scores]]) -> Report:
    kinds = {kind: mean([s for k, s in judged if k == kind]) for kind in dict.fromkeys(kind for kind, _ in judged)}
    micro = mean([scores for kind, scores in judged if kind != ADVERSARIAL])
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
                set_all(connection, settings)
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
        print_row(scope, [f"{name:>9}" for name in COLUMNS])
        for outcome in outcomes:
            for rule, report in outcome.reports.items():
                print_row(f"  {outcome.variant.label(rule)}", [f"{score:9.4f}" for score in report[scope]])
        print()


def print_differences(outcomes: list[Outcome], expected: list[dict]) -> None:
    """What was measured less what was expected, where a file has the same rule and context."""
    print_row("less what was expected", [f"{name:>9}" for name in COLUMNS])
    for outcome in outcomes:
        for reference in (e for e in expected if e["context"] == outcome.variant.context):
            for rule in (rule for rule in outcome.reports if rule in reference["rules"]):
                for scope in ("micro", "macro"):
                    measured = dict(zip(COLUMNS, outcome.reports[rule][scope]))
                    wanted = dict(zip(reference["columns"], reference["rules"][rule][scope]))
                    differences = [f"{measured[name] - wanted[name]:+9.4f}" for name in COLUMNS]
                    print_row(f"  {outcome.variant.label(rule)}, {scope}", differences)
    print()


def print_row(title: str, cells: list[str]) -> None:
    print(f"{title:30}{' '.join(cells)}")


def print_results(outcomes: list[Outcome]) -> None:
    columns = {"ndcg10": "ndcg@10", "recall10": "recall@10"}
    for outcome in outcomes:
        for rule, report in outcome.reports.items():
            for scope in ("macro", "micro"):
                scores = dict(zip(COLUMNS, report[scope]))
                for short, name in columns.items():
                    print(f"RESULT locomo.{outcome.variant.label(rule)}.{scope}_{short} {scores[name]:.4f}")


def write_json(path: Path, outcomes: list[Outcome], step: int) -> None:
    def rounded(report: Report) -> Report:
        return {kind: [round(score, 4) for score in scores] for kind, scores in report.items()}

    document = {
        "columns": COLUMNS,
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
