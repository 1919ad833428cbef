#!/usr/bin/env python3
"""What learning brings on questions it has not seen, asked through SQL: feedback, the query adapter, and forgetting.

    python bench/learning.py --data locomo10.json --extension build/lethe.duckdb_extension
    python bench/learning.py --data … --extension … --protocols forgetting --step 2

Three protocols over LoCoMo, each against the same pipeline without learning, on the same questions, pair by pair:

feedback    every conversation is a store. Every second question is asked, and the turns that answer it are called used. Then are
            asked: paraphrases of these questions, made by rule; of the other questions, those that are answered by one of the
            same turns (related), and all the rest (unrelated).
adapter     conversations 1 to 5 are one store, in which every second question gets feedback; memory_adapt trains there, and
            its row of lethe.adapters is copied to the stores of conversations 6 to 10, whose questions are asked before and after.
forgetting  the lethe paper's: everything in one store, pools of the best 30 reranked (of 60 when they are judged, since a pool is
            never smaller than the answers that are asked for). Every second question is asked while the store learns, for each rule, K
            and unit of the penalty. Then are asked: the questions it learned from, which is how the paper judges, their
            paraphrases, and the others; and all of them with the whole union reranked and nothing learned.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import duckdb
import numpy as np

from datasets import Conversation, Question, identifier, literal, load_locomo, merge
from evaluation import judge
from significance import Estimate, all_alike, differences, scopes
from stores import ask, fill, open_duckdb, turn_id

FUNCTION_WORDS = set(
    """a an the of to in on at for with and or is are was were be been do does did has have had it its this that these those what
    when where who whom which why how his her their he she they him them my your our i you we me us there any some as by from about
    into would could should can will""".split()
)

Scores = dict[str, tuple[str, float]]
"""Kind and NDCG@10 of each question, by its id."""


def keywords(question: str) -> str:
    """The question without its function words, as people type into a search box."""
    return " ".join(word for word in re.findall(r"[\w'’-]+", question) if word.lower() not in FUNCTION_WORDS) or question


def reminder(question: str) -> str:
    """The question as somebody puts it who has asked before."""
    return f"I forgot, can you remind me: {question[:1].lower()}{question[1:]}"


PARAPHRASES: dict[str, Callable[[str], str]] = {"keywords": keywords, "reminder": reminder}


def paraphrased(questions: Iterable[Question], how: str) -> list[Question]:
    return [replace(question, id=f"{question.id} {how}", text=PARAPHRASES[how](question.text)) for question in questions]


@dataclass(frozen=True)
class Split:
    """Questions to learn from, and questions to judge by, by what they have to do with the learned ones."""

    learned: list[Question]
    judged: dict[str, list[Question]]


def split(conversation: Conversation) -> Split:
    learned, others = list(conversation.questions[::2]), conversation.questions[1::2]
    seen = frozenset().union(*(question.evidence for question in learned))
    judged = {how: paraphrased(learned, how) for how in PARAPHRASES}
    judged["related"] = [question for question in others if question.evidence & seen]
    judged["unrelated"] = [question for question in others if not question.evidence & seen]
    return Split(learned, judged)


def scores(connection: duckdb.DuckDBPyConnection, conversation: Conversation, questions: list[Question]) -> Scores:
    """NDCG@10 of each question, asked without learning."""
    connection.execute("SET lethe_learn = false")
    judged = judge(conversation, questions, ask(connection, questions))
    return {one.id: (one.kind, one.measures["ndcg@10"]) for one in judged}


def teach(connection: duckdb.DuckDBPyConnection, conversation: Conversation, questions: list[Question]) -> None:
    """Asks each question and calls the turns that answer it used."""
    ids = {turn.id: turn_id(place) for place, turn in enumerate(conversation.turns)}
    connection.execute("SET lethe_learn = true")
    for question in questions:
        found = connection.execute("SELECT memory_search(?, 1)[1].retrieval_id", [question.text]).fetchall()[0][0]
        used = ", ".join(literal(str(ids[turn])) for turn in sorted(question.evidence))
        connection.execute(f"CALL memory_feedback({literal(str(found))}, used := [{used}])")


@dataclass(frozen=True)
class Comparison:
    """Paired differences in NDCG@10."""

    before: float
    gain: Estimate
    questions: int

    def line(self) -> str:
        gain = self.gain
        return f"{self.before:.4f} {gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] p {gain.p:.4f}, {self.questions} questions"


def compare(before: Scores, after: Scores, scope: str = "all") -> Comparison:
    """The mean difference, over all questions alike or `macro`, its 95 % interval and the p of a sign-flip test."""
    kinds = [kind for kind, _ in before.values()]
    pairs = np.array([(score, after[question][1]) for question, (_, score) in before.items()])
    weights = (all_alike(kinds) | scopes(kinds))[scope]
    gain = differences(kinds, pairs[:, 1:] - pairs[:, :1], {scope: weights})[scope][0]
    means = {kind: np.mean([score for one, score in before.values() if one == kind]) for kind in weights}
    return Comparison(float(sum(weight * means[kind] for kind, weight in weights.items())), gain, len(pairs))


def report(protocol: str, results: dict[str, Comparison]) -> None:
    print(f"\n{protocol}")
    for name, comparison in results.items():
        print(f"  {name:<28} {comparison.line()}", flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def feedback(connection: duckdb.DuckDBPyConnection, folder: Path, conversations: list[Conversation]) -> dict[str, Comparison]:
    halves: dict[str, dict[str, tuple[Scores, Scores]]] = {"1-5": {}, "6-10": {}}
    for number, conversation in enumerate(conversations):
        attach(connection, folder, conversation)
        parts = split(conversation)
        before = {name: scores(connection, conversation, questions) for name, questions in parts.judged.items()}
        teach(connection, conversation, parts.learned)
        half = halves["1-5" if number < 5 else "6-10"]
        for name, questions in parts.judged.items():
            both = half.setdefault(name, ({}, {}))
            both[0].update(before[name])
            both[1].update(scores(connection, conversation, questions))
        say(f"feedback: {conversation.name}")
    return {f"{name} {half}": compare(*both) for half, sets in halves.items() for name, both in sets.items()}


def adapter(connection: duckdb.DuckDBPyConnection, folder: Path, conversations: list[Conversation]) -> dict[str, Comparison]:
    together = merge("first five", conversations[:5])
    attach(connection, folder, together)
    teach(connection, together, list(together.questions[::2]))
    trained = connection.execute("FROM memory_adapt()")
    say("adapter: " + ", ".join(f"{column[0]} {value}" for column, value in zip(trained.description, trained.fetchall()[0])))
    before, after = {}, {}
    for conversation in conversations[5:]:
        attach(connection, folder, conversation, name=f"{conversation.name}-adapted")
        questions = list(conversation.questions)
        before.update(scores(connection, conversation, questions))
        store = identifier(f"{conversation.name}-adapted")
        connection.execute(f"INSERT INTO {store}.lethe.adapters FROM {identifier(together.name)}.lethe.adapters")
        after.update(scores(connection, conversation, questions))
        say(f"adapter: {conversation.name}")
    return {"6-10": compare(before, after), "6-10 macro": compare(before, after, "macro")}


POOL = 30
CLUSTERS = (1, 10, 30, 50, 100)


def forgetting(connection: duckdb.DuckDBPyConnection, folder: Path, conversations: list[Conversation], step: int) -> dict[str, Comparison]:
    together = merge("all ten", conversations)
    attach(connection, folder, together)
    questions = list(together.questions[::step])
    learned, held_out = questions[::2], questions[1::2]
    sets = {"learned": learned, "keywords": paraphrased(learned, "keywords"), "held out": held_out}

    def judge_all() -> dict[str, Scores]:
        return {name: scores(connection, together, asked) for name, asked in sets.items()}

    union = judge_all()
    connection.execute(f"SET lethe_pool = {POOL}; SET lethe_half_life = 0; SET lethe_cluster_after = 1000000")
    truncated = judge_all()
    results = {f"whole union, {name}": compare(truncated[name], union[name]) for name in sets}
    for rule in ("uniform", "rank_gap"):
        connection.execute(f"CALL memory_create(learning := '{rule}')")
        for penalty in ("raw", "spread"):
            connection.execute(f"SET lethe_penalty = '{penalty}'")
            for clusters in CLUSTERS:
                learn(connection, learned, clusters)
                after = judge_all()
                results |= {f"{rule} {penalty} K {clusters}, {name}": compare(truncated[name], after[name]) for name in sets}
                say(f"forgetting: {rule} {penalty} K {clusters}: {results[f'{rule} {penalty} K {clusters}, held out'].line()}")
    return results


def learn(connection: duckdb.DuckDBPyConnection, questions: list[Question], clusters: int) -> None:
    """Starts from nothing: asks all questions, clusters them (the paper's bootstrap), and asks them all again, which is what is
    learned from (its burn-in)."""
    connection.execute("SET lethe_learn = true")
    connection.execute(f"CALL memory_reset(); TRUNCATE lethe.retrievals; TRUNCATE lethe.cues; SET lethe_clusters = {clusters}")
    connection.execute("CREATE OR REPLACE TEMP TABLE learned (number INTEGER, question VARCHAR)")
    connection.executemany("INSERT INTO learned VALUES (?, ?)", list(enumerate(question.text for question in questions)))
    again = "SELECT count(memory_search(question, 10)) FROM (FROM learned ORDER BY number)"
    connection.execute(again)
    connection.execute("CALL memory_recluster(); CALL memory_reset()")
    connection.execute(again)


def attach(connection: duckdb.DuckDBPyConnection, folder: Path, conversation: Conversation, name: str | None = None) -> None:
    """Makes the conversation a store, and the current database."""
    fill(connection, folder / f"{name or conversation.name}.db", conversation, "")


PROTOCOLS = ("feedback", "adapter", "forgetting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--extension", type=Path, required=True)
    parser.add_argument("--protocols", default=",".join(PROTOCOLS[:2]), help=f"of {', '.join(PROTOCOLS)}")
    parser.add_argument("--step", type=int, default=1, help="forgetting: ask every n-th question only")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    arguments = parser.parse_args()
    conversations = load_locomo(arguments.data)
    everything: dict[str, dict[str, Comparison]] = {}
    for protocol in arguments.protocols.split(","):
        with tempfile.TemporaryDirectory(prefix="lethe-learning-") as folder, open_duckdb(arguments.extension, None) as connection:
            connection.execute("SET lethe_retrievals_kept = 1000000")
            match protocol:
                case "feedback":
                    results = feedback(connection, Path(folder), conversations)
                case "adapter":
                    results = adapter(connection, Path(folder), conversations)
                case "forgetting":
                    results = forgetting(connection, Path(folder), conversations, arguments.step)
                case other:
                    raise SystemExit(f"--protocols: {other!r}; allowed: {', '.join(PROTOCOLS)}")
        report(protocol, results)
        everything[protocol] = results
    if arguments.json:
        text = {protocol: {name: asdict(result) for name, result in results.items()} for protocol, results in everything.items()}
        arguments.json.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
    print()
    for protocol, results in everything.items():
        for name, comparison in results.items():
            key = re.sub(r"[^a-z0-9]+", "_", name.lower())
            print(f"RESULT learning.{protocol}.{key}.ndcg10_gain {comparison.gain.mean:.4f}")
            print(f"RESULT learning.{protocol}.{key}.p {comparison.gain.p:.4f}")


if __name__ == "__main__":
    main()
