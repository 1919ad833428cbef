"""The protocols of bench/learning.py: what is learned from, and what is asked before and after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from datasets import Conversation, Question, literal, merge
from evaluation import Hit, judge
from pairs import Comparison, Scores, compare
from paraphrases import PARAPHRASES, paraphrased
from stores import ask, fill, turn_id

DEPTH = 10
"""How many turns are asked for: NDCG@10 needs no more, and a pool is never smaller."""
POOL = 30
"""P, the pool of the lethe paper."""
CLUSTERS = (1, 10, 30, 50, 100)
THE_PAPER = f"SET lethe_pool = {POOL}; SET lethe_half_life = 0; SET lethe_cluster_after = 1000000; SET lethe_precedent_bonus = 0"
"""As it forgets: no decay, no clustering by itself, nothing learned otherwise."""
AT_ONCE = 10
"""Questions of one statement, learned from together, where they come one after another."""
STREAM = 2_000
TOLD = 5
"""In a stream, of one answer in so many it is said what was used."""

Results = dict[str, Comparison]


@dataclass(frozen=True)
class Lab:
    """What every protocol needs."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    conversations: Sequence[Conversation]
    splits: int

    def attach(self, conversation: Conversation, name: str | None = None) -> None:
        """Makes the conversation a store, and the current database."""
        fill(self.connection, self.folder / f"{name or conversation.name}.db", conversation, "")

    def together(self) -> Conversation:
        """All conversations in one store, the current database."""
        together = merge("together", self.conversations)
        self.attach(together)
        return together

    def forget_all(self) -> None:
        """Takes back everything that the current store learned."""
        self.connection.execute("CALL memory_reset(learned := 'all')")

    def scores(self, conversation: Conversation, questions: Sequence[Question]) -> Scores:
        """NDCG@10 of each question, asked without learning."""
        self.connection.execute("SET lethe_learn = false")
        return ndcg(conversation, questions, ask(self.connection, questions, depth=DEPTH))

    def listen(self, questions: Sequence[Question]) -> None:
        """Asks each question, in that order, and learns."""
        self.connection.execute("SET lethe_learn = true")
        self.connection.execute("CREATE OR REPLACE TEMP TABLE learned (number INTEGER, question VARCHAR)")
        self.connection.executemany("INSERT INTO learned VALUES (?, ?)", list(enumerate(question.text for question in questions)))
        self.connection.execute(f"SELECT count(memory_search(question, {DEPTH})) FROM (FROM learned ORDER BY number)")

    def bootstrap(self, questions: Sequence[Question]) -> None:
        """The lethe paper's: asks the questions and clusters them, and learns nothing else."""
        self.listen(questions)
        self.connection.execute("CALL memory_recluster(); CALL memory_reset()")

    def teach(self, conversation: Conversation, questions: Sequence[Question]) -> None:
        """Asks each question and calls the turns that answer it used."""
        ids = {turn.id: turn_id(place) for place, turn in enumerate(conversation.turns)}
        self.connection.execute("SET lethe_learn = true")
        for question in questions:
            retrieval = self.connection.execute("SELECT memory_search(?, 1)[1].retrieval_id", [question.text]).fetchall()[0][0]
            self.say_of(retrieval, used=[ids[turn] for turn in sorted(question.evidence)])

    def say_of(self, retrieval: object, **verdicts: Iterable[object]) -> None:
        lists = {name: ", ".join(literal(str(turn)) for turn in turns) for name, turns in verdicts.items()}
        said = "".join(f", {name} := [{turns}]" for name, turns in lists.items() if turns)
        if said:
            self.connection.execute(f"CALL memory_feedback({literal(str(retrieval))}{said})")


def ndcg(conversation: Conversation, questions: Sequence[Question], answers: dict[str, list[Hit]]) -> Scores:
    judged = judge(conversation, questions, answers, DEPTH)
    return {one.id: (one.kind, one.measures["ndcg@10"]) for one in judged}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def halves(questions: Sequence[Question], splits: int) -> Iterator[tuple[list[Question], list[Question]]]:
    """The questions in two halves at random, with the seeds 1, 2, …"""
    for seed in range(1, splits + 1):
        first = np.random.default_rng(seed).permutation(len(questions)) < len(questions) / 2
        yield [one for one, here in zip(questions, first) if here], [one for one, here in zip(questions, first) if not here]


def judged_by(learned: list[Question], others: list[Question]) -> dict[str, list[Question]]:
    """Questions to judge by, by what they have to do with the learned ones."""
    seen = frozenset().union(*(question.evidence for question in learned))
    judged = {how: paraphrased(learned, how) for how in PARAPHRASES}
    judged["related"] = [question for question in others if question.evidence & seen]
    judged["unrelated"] = [question for question in others if not question.evidence & seen]
    return judged


def recurring(lab: Lab, learn: Callable[[Conversation, list[Question]], None]) -> Results:
    """Questions that come back in other words, and others, conversation by conversation."""
    runs: dict[str, list[tuple[Scores, Scores]]] = {}
    for number, conversation in enumerate(lab.conversations):
        lab.attach(conversation)
        for split, (learned, others) in enumerate(halves(conversation.questions, lab.splits)):
            lab.forget_all()
            judged = judged_by(learned, others)
            before = {name: lab.scores(conversation, questions) for name, questions in judged.items()}
            learn(conversation, learned)
            for name, questions in judged.items():
                of_half = runs.setdefault(f"{name} {'1-5' if number < 5 else '6-10'}", [({}, {}) for _ in range(lab.splits)])
                of_half[split][0].update(before[name])
                of_half[split][1].update(lab.scores(conversation, questions))
        say(f"{conversation.name} done")
    again = [pairs for name, pairs in runs.items() if name.split()[0] in PARAPHRASES]
    return results_of(runs) | {"recurring": compare(map(joined, zip(*again)))}


def results_of(runs: dict[str, list[tuple[Scores, Scores]]]) -> Results:
    """Each comparison for which there is a question; with few questions a set may have none."""
    asked = {name: [pair for pair in pairs if pair[0]] for name, pairs in runs.items()}
    return {name: compare(pairs) for name, pairs in asked.items() if pairs}


def joined(pairs: Iterable[tuple[Scores, Scores]]) -> tuple[Scores, Scores]:
    """Those of several sets of questions as one."""
    before: Scores = {}
    after: Scores = {}
    for early, late in pairs:
        before |= early
        after |= late
    return before, after


def asking(lab: Lab) -> Results:
    return recurring(lab, lambda _, questions: lab.listen(questions))


def feedback(lab: Lab) -> Results:
    return recurring(lab, lab.teach)


def strangers(lab: Lab) -> Results:
    together = lab.together()
    first = {conversation.name for conversation in lab.conversations[:5]}
    learned, others = by_conversation(together.questions, first)
    results = {}
    before = lab.scores(together, others)
    for how, learn in (("asked", lab.listen), ("told", lambda questions: lab.teach(together, questions))):
        lab.forget_all()
        learn(learned)
        results[how] = compare([(before, lab.scores(together, others))])
        say(f"strangers: {how}")
    return results


def by_conversation(questions: Iterable[Question], first: set[str]) -> tuple[list[Question], list[Question]]:
    """The questions about the conversations of those names, and the others, of a merged conversation."""
    parts: tuple[list[Question], list[Question]] = ([], [])
    for question in questions:
        parts[question.id.split("/")[0] not in first].append(question)
    return parts


def stream(lab: Lab) -> Results:
    together = lab.together()
    places = {turn.id: place for place, turn in enumerate(together.turns)}
    random = np.random.default_rng(1)
    asked = [together.questions[place] for place in random.permutation(len(together.questions))[: STREAM // 2]]
    again = [paraphrased([question], list(PARAPHRASES)[place % len(PARAPHRASES)])[0] for place, question in enumerate(asked)]
    # Each at a random moment, a question before it comes again.
    moments = np.sort(random.random((len(asked), 2)), axis=1)
    order = np.argsort(moments.ravel(), kind="stable")
    questions = [(asked, again)[place % 2][place // 2] for place in order]
    before = lab.scores(together, questions)
    lab.connection.execute("SET lethe_learn = true")
    after: Scores = {}
    for number, question in enumerate(questions):
        rows = lab.connection.execute(
            f"SELECT turn_id, score, retrieval_id FROM memory_retrieve({literal(question.text)}, {DEPTH}) ORDER BY rank"
        ).fetchall()
        answer = [Hit(turn.int - 1, score) for turn, score, _ in rows]
        after |= ndcg(together, [question], {question.id: answer})
        evidence = {places[turn] for turn in question.evidence}
        if number % TOLD == 0:
            used = [turn_id(hit.place) for hit in answer if hit.place in evidence]
            ignored = [turn_id(hit.place) for hit in answer[:1] if hit.place not in evidence]
            lab.say_of(rows[0][2], used=used, ignored=ignored)
        if number % 200 == 199:
            say(f"{number + 1} of {len(questions)} asked")

    def of(some: Iterable[Question]) -> Comparison:
        ids = [f"{together.name}/{question.id}" for question in some]
        return compare([({id: before[id] for id in ids}, {id: after[id] for id in ids})])

    late = set(question.id for question in questions[len(questions) // 2 :])
    return {
        "first time": of(asked),
        "again": of(again),
        "first time, second half": of(question for question in asked if question.id in late),
        "again, second half": of(question for question in again if question.id in late),
    }


def adapter(lab: Lab) -> Results:
    first, others = merge("first five", lab.conversations[:5]), lab.conversations[5:]
    lab.attach(first)
    lab.teach(first, list(first.questions[::2]))
    starts = {"from the identity": "none", "from the encoder's own": "auto"}
    for start, choice in starts.items():
        lab.connection.execute(f"SET lethe_adapter = '{choice}'; CALL memory_reset(learned := 'adapter')")
        trained = lab.connection.execute("FROM memory_adapt()")
        row = zip([column[0] for column in trained.description], trained.fetchall()[0])
        say(f"adapter {start}: " + ", ".join(f"{column} {value}" for column, value in row))
        lab.connection.execute(f'CREATE TEMP TABLE "{start}" AS FROM lethe.adapters')
    scores: dict[str, Scores] = {"none": {}, "encoder": {}} | {start: {} for start in starts}
    for conversation in others:
        lab.attach(conversation, name=f"{conversation.name}-adapted")
        for choice in ("none", "encoder"):
            lab.connection.execute(f"SET lethe_adapter = '{choice}'")
            scores[choice] |= lab.scores(conversation, conversation.questions)
        for start in starts:
            lab.connection.execute(f'SET lethe_adapter = \'auto\'; TRUNCATE lethe.adapters; INSERT INTO lethe.adapters FROM "{start}"')
            scores[start] |= lab.scores(conversation, conversation.questions)
        say(f"{conversation.name} done")
    identity, own = starts
    pairs = {identity: ("none", identity), own: ("encoder", own), "both": ("none", own)}
    return {
        f"{name}{', macro' if scope == 'macro' else ''}": compare([(scores[before], scores[after])], scope)
        for name, (before, after) in pairs.items()
        for scope in ("all", "macro")
    }


def forgetting(lab: Lab) -> Results:
    together = lab.together()
    first = {conversation.name for conversation in lab.conversations[:5]}
    splits = [("", *split) for split in halves(together.questions, lab.splits)]
    splits.append((" by conversation", *by_conversation(together.questions, first)))
    everything = list(together.questions) + paraphrased(together.questions, "keywords")
    union = lab.scores(together, everything)
    lab.connection.execute(f"{THE_PAPER}; SET lethe_watch = false")
    truncated = lab.scores(together, everything)
    runs: dict[str, list[tuple[Scores, Scores]]] = {}

    def note(rule: str, sets: dict[str, list[Question]], after: Scores) -> None:
        for name, questions in sets.items():
            ids = [f"{together.name}/{question.id}" for question in questions]
            pair = ({id: truncated[id] for id in ids}, {id: after[id] for id in ids})
            runs.setdefault(f"{rule}, {name}", []).append(pair)

    for how, learned, held_out in splits:
        sets = {f"learned{how}": learned, f"keywords{how}": paraphrased(learned, "keywords"), f"held out{how}": held_out}
        note("whole union", sets, union)
        for rule in ("uniform", "rank_gap"):
            lab.connection.execute(f"CALL memory_create(learning := '{rule}')")
            for penalty, clusters in [("raw", clusters) for clusters in CLUSTERS] + [("spread", 1), ("spread", 30)]:
                lab.forget_all()
                lab.connection.execute(f"SET lethe_penalty = '{penalty}'; SET lethe_clusters = {clusters}")
                lab.bootstrap(learned)
                # The paper's burn-in.
                lab.listen(learned)
                after = lab.scores(together, [question for questions in sets.values() for question in questions])
                note(f"{rule} {penalty} K {clusters}", sets, after)
                say(f"{rule} {penalty} K {clusters}{how}: {compare(runs[f'{rule} {penalty} K {clusters}, held out{how}']).line()}")
    return results_of(runs)


def watched(lab: Lab) -> Results:
    together = lab.together()
    lab.connection.execute(f"{THE_PAPER}; SET lethe_penalty = 'raw'")
    splits = list(halves(together.questions, lab.splits))
    truncated = lab.scores(together, together.questions)
    runs: dict[str, list[tuple[Scores, Scores]]] = {}
    for learned, held_out in splits:
        before = {id: truncated[id] for id in (f"{together.name}/{question.id}" for question in held_out)}
        for rule, clusters in (("uniform", 1), ("uniform", 30), ("rank_gap", 1), ("rank_gap", 30)):
            lab.connection.execute(f"CALL memory_create(learning := '{rule}')")
            for watch in ("off", "on"):
                lab.forget_all()
                lab.connection.execute(f"SET lethe_clusters = {clusters}; SET lethe_watch = {watch == 'on'}")
                lab.bootstrap(learned)
                for place in range(0, len(learned), AT_ONCE):
                    lab.listen(learned[place : place + AT_ONCE])
                name = f"{rule} K {clusters}, watch {watch}"
                runs.setdefault(name, []).append((before, lab.scores(together, held_out)))
                judged, gain = lab.connection.execute("SELECT pool_judged, pool_gain FROM memory_stats()").fetchall()[0]
                say(f"{name}: {compare(runs[name]).line()}; the reranker's view, over {judged} pools: {gain}")
    return results_of(runs)


@dataclass(frozen=True)
class Protocol:
    run: Callable[[Lab], Results]
    headline: str
    """The one of its results that stands for it."""


PROTOCOLS = {
    "asking": Protocol(asking, "recurring"),
    "feedback": Protocol(feedback, "recurring"),
    "strangers": Protocol(strangers, "told"),
    "stream": Protocol(stream, "again"),
    "adapter": Protocol(adapter, "from the identity, macro"),
    "forgetting": Protocol(forgetting, "rank_gap raw K 30, held out"),
    "watched": Protocol(watched, "rank_gap K 30, watch on"),
}
