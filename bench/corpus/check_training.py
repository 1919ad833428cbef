#!/usr/bin/env python3
"""Checks the histories of the training corpus. Standard library only.

    python3 check_training.py training/*         prints a row for each; exits 1 if anything is wrong

A history is a folder with `turns.jsonl` and `questions.jsonl`; README.md tells what a line holds.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import json
import pathlib
import re
import statistics
import sys

from words import content_words

KINDS = ("single_hop", "multi_hop", "temporal", "update", "preference", "open", "adversarial")
LEAST_OF_A_KIND = 6
LEAST_TURNS, LEAST_QUESTIONS = 180, 95
TURN_KEYS = ["id", "session_id", "speaker", "said_at", "content"]
QUESTION_KEYS = {"id", "question", "evidence", "kind", "answer"}
OPTIONAL_KEYS = {"group", "outdated"}
MAX_OVERLAP = 0.75
"""Of a question's content words, found in one evidence turn: people do ask in the words they remember, but not in all of them."""
MAX_MEAN_OVERLAP = 0.45
MAX_ANSWERED = 0.5
"""Of an answer's content words, found in its question."""
MAX_ALIKE = 0.5
"""Jaccard of content words of two paraphrases."""


def share(words: set[str], of: set[str]) -> float:
    """How much of one set stands in another."""
    return len(words & of) / max(1, len(words))


class History:
    """A folder of the corpus, and what is wrong with it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.name = folder.name
        self.problems: list[str] = []
        self.turns = {turn["id"]: turn for turn in self.read(folder / "turns.jsonl", self.right_turn)}
        self.questions = self.read(folder / "questions.jsonl", self.right_question)
        self.overlaps: list[float] = []
        self.check_order()
        self.check_questions()
        self.check_groups()
        self.check_coverage()

    def wrong(self, where: str, problem: str) -> None:
        self.problems.append(f"{self.name}: {where}: {problem}")

    def read(self, file: pathlib.Path, right: collections.abc.Callable[[dict], bool]) -> list[dict]:
        rows = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                self.wrong(f"{file.name} line {number}", f"not JSON: {error}")
                continue
            if isinstance(row, dict) and right(row):
                rows.append(row)
            else:
                self.wrong(f"{file.name} line {number}", f"not of the right form: {line[:80]}")
        return rows

    @staticmethod
    def right_turn(row: dict) -> bool:
        text = all(isinstance(value, str) and value.strip() == value != "" for value in row.values())
        return list(row) == TURN_KEYS and text and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", row["said_at"]) is not None

    @staticmethod
    def right_question(row: dict) -> bool:
        return QUESTION_KEYS <= set(row) <= QUESTION_KEYS | OPTIONAL_KEYS and row["kind"] in KINDS and len(row["evidence"]) > 0

    def check_order(self) -> None:
        sessions: list[str] = []
        place, last = 0, None
        for turn in self.turns.values():
            if not sessions or turn["session_id"] != sessions[-1]:
                if turn["session_id"] in sessions:
                    self.wrong(turn["id"], "its session comes back after another one")
                sessions.append(turn["session_id"])
                place = 0
            place += 1
            if turn["id"] != f"{turn['session_id']}-{place:02d}":
                self.wrong(turn["id"], f"turn {place:02d} of its session")
            when = datetime.datetime.fromisoformat(turn["said_at"])
            if last and when <= last:
                self.wrong(turn["id"], "said_at does not increase")
            last = when
        texts = collections.Counter(turn["content"] for turn in self.turns.values() if len(turn["content"].split()) > 3)
        for text, times in texts.items():
            if times > 1:
                self.wrong("turns.jsonl", f"said {times} times: {text}")

    def check_questions(self) -> None:
        seen: set[str] = set()
        for question in self.questions:
            where, words = question["id"], content_words(question["question"])
            named = question["evidence"] + question.get("outdated", [])
            for turn in named:
                if turn not in self.turns:
                    self.wrong(where, f"no turn {turn}")
            if any(turn not in self.turns for turn in named):
                continue
            if len(named) != len(set(named)):
                self.wrong(where, "a turn is named twice")
            if where in seen or question["question"] in seen:
                self.wrong(where, "asked twice")
            seen |= {where, question["question"]}
            if len(words) < 2:
                self.wrong(where, f"too few content words: {question['question']}")
            if question["kind"] == "update":
                newest = max(self.turns[turn]["said_at"] for turn in question["evidence"])
                outdated = question.get("outdated", [])
                if not outdated or any(self.turns[turn]["said_at"] >= newest for turn in outdated):
                    self.wrong(where, "an update names in `outdated` what was said before it")
            if question["kind"] == "multi_hop" and len(question["evidence"]) < 2:
                self.wrong(where, "several hops need several turns")
            for turn in question["evidence"]:
                overlap = share(words, content_words(self.turns[turn]["content"]))
                self.overlaps.append(overlap)
                if overlap > MAX_OVERLAP:
                    self.wrong(where, f"{overlap:.0%} of its content words stand in {turn}")
            answer = content_words(question["answer"])
            if question["kind"] != "adversarial" and len(answer) > 2 and share(answer, words) > MAX_ANSWERED:
                self.wrong(where, f"{share(answer, words):.0%} of its answer stands in the question")

    def check_groups(self) -> None:
        groups = collections.defaultdict(list)
        for question in self.questions:
            if "group" in question:
                groups[question["group"]].append(question)
        for name, members in groups.items():
            if len(members) < 2:
                self.wrong(f"group {name}", "one question is no group")
            for a, b in itertools.combinations(members, 2):
                if a["evidence"] != b["evidence"]:
                    self.wrong(f"group {name}", f"{a['id']} and {b['id']} do not have the same evidence")
                first, second = content_words(a["question"]), content_words(b["question"])
                if len(first & second) > MAX_ALIKE * len(first | second):
                    self.wrong(f"group {name}", f"{a['id']} and {b['id']} are too much alike")

    def check_coverage(self) -> None:
        kinds = collections.Counter(question["kind"] for question in self.questions)
        for kind in KINDS:
            if kinds[kind] < LEAST_OF_A_KIND:
                self.wrong("questions.jsonl", f"{kinds[kind]} of kind {kind}, {LEAST_OF_A_KIND} wanted")
        if len(self.turns) < LEAST_TURNS:
            self.wrong("turns.jsonl", f"{len(self.turns)} turns, {LEAST_TURNS} wanted")
        if len(self.questions) < LEAST_QUESTIONS:
            self.wrong("questions.jsonl", f"{len(self.questions)} questions, {LEAST_QUESTIONS} wanted")
        asked = {turn for question in self.questions for turn in question["evidence"]}
        for session in {turn["session_id"] for turn in self.turns.values()}:
            if not any(turn.startswith(f"{session}-") for turn in asked):
                self.wrong(session, "answers no question")
        if self.overlaps and statistics.fmean(self.overlaps) > MAX_MEAN_OVERLAP:
            self.wrong("questions.jsonl", f"questions share {statistics.fmean(self.overlaps):.0%} of their words with the evidence")

    def row(self) -> str:
        words = [len(turn["content"].split()) for turn in self.turns.values()]
        kinds = collections.Counter(question["kind"] for question in self.questions)
        asked = {turn for question in self.questions for turn in question["evidence"]}
        return (
            f"{self.name:<14}{len(self.turns):>6}{statistics.median(words):>8.0f}{max(words):>6}{len(self.questions):>11}"
            f"{len(asked) / len(self.turns):>8.0%}{statistics.fmean(self.overlaps):>9.0%}  "
            + " ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
        )


def main() -> None:
    histories = [History(pathlib.Path(folder)) for folder in sys.argv[1:]]
    problems = [problem for history in histories for problem in history.problems]
    print(f"{'history':<14}{'turns':>6}{'words':>8}{'most':>6}{'questions':>11}{'asked':>8}{'overlap':>9}  kinds")
    for history in histories:
        print(history.row())
    print(f"{sum(len(h.turns) for h in histories)} turns, {sum(len(h.questions) for h in histories)} questions")
    if problems or not histories:
        print("\n".join(problems) or "no history named")
        sys.exit(1)


if __name__ == "__main__":
    main()
