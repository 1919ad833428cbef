"""How sure a mean is: bootstrap intervals and permutation tests over questions, stratified by their kind.

Every mean that is reported is a weighted sum of the kinds' means: `macro` weighs kinds alike, `micro` weighs questions alike.
Both tests draw new weights for the questions of each kind, and put the kinds' means together as the real ones were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 10_000
SEED = 20_240_501
LEVEL = 0.95
DRAWN = 250
"""Rounds that are drawn at once: 10,000 questions are 20 MB then."""

Scopes = dict[str, dict[str, float]]
"""What each kind's mean weighs in each scope's."""
Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""Weights, rounds x questions, for one kind's questions; a kind's mean is their weighted sum over its number of questions."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval, and if it is a difference, how often chance makes one as large."""

    mean: float
    low: float
    high: float
    p: float | None = None


def scopes(kinds: Sequence[str], not_in_micro: str = "adversarial") -> Scopes:
    """`micro` (all questions but those of one kind), `macro` (all kinds), and every kind by itself."""
    counts = Counter(kinds)
    counted = {kind: number for kind, number in counts.items() if kind != not_in_micro} or dict(counts)
    micro = {kind: number / sum(counted.values()) for kind, number in counted.items()}
    macro = {kind: 1 / len(counts) for kind in counts}
    return {"micro": micro, "macro": macro} | {kind: {kind: 1.0} for kind in counts}


def all_alike(kinds: Sequence[str]) -> Scopes:
    """One scope, `all`, in which every question weighs the same."""
    counts = Counter(kinds)
    return {"all": {kind: number / len(kinds) for kind, number in counts.items()}}


def estimates(kinds: Sequence[str], scores: np.ndarray, wanted: Scopes) -> dict[str, list[Estimate]]:
    """For each scope the mean of each column of `scores` (questions x measures), with its bootstrap interval."""
    means = next(_means(kinds, scores, wanted, lambda _, rounds, questions: np.ones((rounds, questions)), 1))
    drawn = np.concatenate(list(_means(kinds, scores, wanted, resampled)))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {
        scope: [Estimate(*(float(value) for value in column)) for column in zip(means[0, s], low[s], high[s])]
        for s, scope in enumerate(wanted)
    }


def differences(kinds: Sequence[str], gains: np.ndarray, wanted: Scopes) -> dict[str, list[Estimate]]:
    """The same for paired differences, with p: how often they are as large when each one's sign is a coin's."""
    found = estimates(kinds, gains, wanted)
    means = np.array([[estimate.mean for estimate in row] for row in found.values()])
    # Sums in another order differ in the last bits, and a tie counts as as large.
    as_large = sum((np.abs(drawn) >= np.abs(means) - 1e-12).sum(axis=0) for drawn in _means(kinds, gains, wanted, flipped))
    p = (1 + as_large) / (1 + ROUNDS)
    return {
        scope: [Estimate(one.mean, one.low, one.high, float(chance)) for one, chance in zip(row, p[s])]
        for s, (scope, row) in enumerate(found.items())
    }


def resampled(random: np.random.Generator, rounds: int, questions: int) -> np.ndarray:
    """The bootstrap: how often each question is drawn, of as many draws as there are questions."""
    return random.multinomial(questions, np.full(questions, 1 / questions), size=rounds)


def flipped(random: np.random.Generator, rounds: int, questions: int) -> np.ndarray:
    """The sign test: +1 or -1."""
    return random.choice(np.array([-1.0, 1.0]), size=(rounds, questions))


def _means(kinds: Sequence[str], scores: np.ndarray, wanted: Scopes, draw: Draw, rounds: int = ROUNDS) -> Iterator[np.ndarray]:
    """Means by drawn weights, some rounds at a time: rounds x scopes x measures."""
    of_kind = {kind: scores[[number for number, one in enumerate(kinds) if one == kind]] for kind in dict.fromkeys(kinds)}
    weights = np.array([[scope.get(kind, 0.0) for kind in of_kind] for scope in wanted.values()])
    random = np.random.default_rng(SEED)
    for start in range(0, rounds, DRAWN):
        some = min(DRAWN, rounds - start)
        means = [draw(random, some, len(mine)) @ mine / len(mine) for mine in of_kind.values()]
        yield np.einsum("sk,krm->rsm", weights, np.array(means))
