"""What an answer is worth: measures of its ranking, and the behaviours that the paper tells apart. No DuckDB here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import ir_measures
from ir_measures import RR, R, Success, nDCG

from datasets import ABSTENTION, Conversation, Question

DEPTH = 60
"""How many turns are asked for, to measure all there is to measure."""
# trec_eval's nDCG: its gain is the grade, its discount log2(rank + 1), over the ideal of the same depth.
MEASURES = {
    "ndcg@10": nDCG @ 10,
    "recall@10": R @ 10,
    "recall@30": R @ 30,
    "recall@60": R @ 60,
    "mrr": RR,
    "hit@1": Success @ 1,
}
ADVERSARIAL = "adversarial"
UNANSWERABLE = frozenset({ADVERSARIAL, ABSTENTION})
"""Kinds of questions with a false premise or without an answer: the best answer is none."""
ANSWERED = 0.95
"""The share of the answerable questions that must stay above the threshold of abstention."""


@dataclass(frozen=True)
class Hit:
    """A turn that was found, by its place in the conversation, and its score."""

    place: int
    score: float


@dataclass(frozen=True)
class Judged:
    """What came of one question."""

    id: str
    kind: str
    best: float | None
    """The score of the first hit."""
    measures: dict[str, float] = field(default_factory=dict)
    """Those of MEASURES; none for a question without evidence."""
    behaviours: dict[str, bool] = field(default_factory=dict)
    """Whether it behaved so, where the question has what the behaviour needs."""


def judge(
    conversation: Conversation, questions: Sequence[Question], answers: dict[str, list[Hit]], depth: int = DEPTH
) -> list[Judged]:
    """Judges each question by its answer, which must have as many rows as were asked for, `depth`."""
    expected_rows = min(depth, len(conversation.turns))
    for question in questions:
        if (rows := len(answers.get(question.id, []))) != expected_rows:
            raise SystemExit(f"{conversation.name}, question {question.id}: {rows} rows instead of {expected_rows}")
    places = {turn.id: place for place, turn in enumerate(conversation.turns)}
    measures = measure(places, questions, answers)
    return [
        Judged(
            f"{conversation.name}/{question.id}",
            question.kind,
            next((hit.score for hit in answers[question.id]), None),
            measures.get(question.id, {}),
            dict(behaviours(conversation, places, question, answers[question.id])),
        )
        for question in questions
    ]


def measure(
    places: dict[str, int], questions: Sequence[Question], answers: dict[str, list[Hit]]
) -> dict[str, dict[str, float]]:
    """MEASURES of each question that has evidence. `places` are those of the turns by id."""
    relevance, ranking = [], []
    for question in questions:
        relevance += [
            ir_measures.Qrel(question.id, str(places[turn]), question.grades.get(turn, 1)) for turn in question.evidence
        ]
        # By rank, so that equal scores stay in lethe's order.
        ranking += [ir_measures.ScoredDoc(question.id, str(hit.place), -rank) for rank, hit in enumerate(answers[question.id])]
    names = {measure: name for name, measure in MEASURES.items()}
    values: dict[str, dict[str, float]] = {question.id: {} for question in questions if question.evidence}
    for metric in ir_measures.iter_calc(MEASURES.values(), relevance, ranking) if relevance else ():
        values[metric.query_id][names[metric.measure]] = metric.value
    return values


def behaviours(
    conversation: Conversation, places: dict[str, int], question: Question, answer: Sequence[Hit]
) -> Iterator[tuple[str, bool]]:
    """What the answer to a question with a true premise shows.

    - `exact_episode`: the first hit is evidence.
    - `wrong_family`: the first hit is from a session that holds no evidence.
    - `sibling_confusion`: the first hit is no evidence, but from a session that holds some.
    - `stale_fact`: an outdated turn stands above all evidence.
    """
    if question.kind in UNANSWERABLE or not question.evidence or not answer:
        return
    turns = conversation.turns
    evidence = {places[turn] for turn in question.evidence}
    first = answer[0].place
    yield "exact_episode", first in evidence
    sessions = {turns[place].session for place in evidence}
    if None not in sessions:
        same_family = turns[first].session in sessions
        yield "wrong_family", not same_family
        yield "sibling_confusion", same_family and first not in evidence
    if question.outdated:
        outdated = {places[turn] for turn in question.outdated}
        known = next((hit.place for hit in answer if hit.place in evidence | outdated), None)
        yield "stale_fact", known in outdated - evidence


def threshold(judged: Iterable[Judged]) -> float | None:
    """The highest score that ANSWERED of the answerable questions' best scores reach. None if there are none."""
    best = sorted(one.best for one in judged if one.kind not in UNANSWERABLE and one.best is not None)
    return best[int((1 - ANSWERED) * len(best) + 1e-9)] if best else None


def with_abstention(judged: Sequence[Judged]) -> list[Judged]:
    """The same, and for the unanswerable questions `abstain`: whether their best score is under the threshold."""
    limit = threshold(judged)
    return [
        replace(one, behaviours={**one.behaviours, "abstain": one.best is None or one.best < limit})
        if one.kind in UNANSWERABLE and limit is not None
        else one
        for one in judged
    ]
