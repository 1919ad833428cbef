"""The same questions asked before and after, pair by pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from significance import Estimate, all_alike, differences, scopes

Scores = dict[str, tuple[str, float]]
"""Kind and NDCG@10 of each question, by its id."""


@dataclass(frozen=True)
class Comparison:
    """Paired differences in NDCG@10."""

    before: float
    gain: Estimate
    questions: int
    moved: int
    """How many of them score otherwise."""
    splits: tuple[float, ...]
    """The gain in each split by itself."""

    def line(self) -> str:
        gain = self.gain
        text = f"{self.before:.4f} {gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] p {gain.p:.4f}"
        text += f", {self.moved} of {self.questions} questions moved"
        return text + (f", by split {' '.join(f'{split:+.4f}' for split in self.splits)}" if len(self.splits) > 1 else "")


def compare(splits: Iterable[tuple[Scores, Scores]], scope: str = "all") -> Comparison:
    """The mean difference, over all questions alike or `macro`, its 95 % interval and the p of a sign-flip test.

    A question that was asked in several splits counts once, with the means of its scores before and after.
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    kind_of: dict[str, str] = {}
    by_split = []
    for before, after in splits:
        of_split = {question: (score, after[question][1]) for question, (_, score) in before.items()}
        by_split.append(float(np.mean([late - early for early, late in of_split.values()])))
        kind_of |= {question: kind for question, (kind, _) in before.items()}
        for question, pair in of_split.items():
            pairs.setdefault(question, []).append(pair)
    means = np.array([np.mean(of_question, axis=0) for of_question in pairs.values()])
    kinds = [kind_of[question] for question in pairs]
    weights = (all_alike(kinds) | scopes(kinds))[scope]
    gain = differences(kinds, means[:, 1:] - means[:, :1], {scope: weights})[scope][0]
    early = {kind: means[[one == kind for one in kinds], 0].mean() for kind in weights}
    before = float(sum(weight * early[kind] for kind, weight in weights.items()))
    moved = int(np.count_nonzero(np.abs(means[:, 1] - means[:, 0]) > 1e-9))
    return Comparison(before, gain, len(pairs), moved, tuple(by_split))
