"""The evaluation of bench/: how data sets are read, answers judged and differences tested. Without DuckDB."""

import json
import sys
from datetime import datetime
from itertools import product
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import datasets  # noqa: E402
import significance  # noqa: E402
from datasets import Conversation, Question, Turn  # noqa: E402
from evaluation import MEASURES, Hit, Judged, judge, threshold, with_abstention  # noqa: E402
from pairs import compare  # noqa: E402
from paraphrases import PARAPHRASES, paraphrased  # noqa: E402
from protocols import halves, judged_by  # noqa: E402


def write_lines(path: Path, *entries: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def write_json(path: Path, entries: list) -> Path:
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


# --- JSON lines


@pytest.fixture
def histories(tmp_path):
    turns = [
        {"id": "a1", "session_id": "a", "speaker": "Ana", "said_at": "2026-05-03T20:00:00+02:00", "content": "Seven tomatoes"},
        {"id": "a2", "session_id": "a", "content": "Nine tomatoes now"},
    ]
    question = {"id": "q", "question": "How many?", "kind": "update", "evidence": ["a2"], "outdated": ["a1"]}
    write_lines(tmp_path / "garden" / "turns.jsonl", *turns)
    write_lines(tmp_path / "garden" / "questions.jsonl", question)
    return tmp_path


def test_histories_are_conversations_by_the_name_of_their_folder(histories):
    assert datasets.guess_format(histories) == "jsonl"
    (garden,) = datasets.load(histories, "jsonl")
    assert garden.name == "garden"
    assert garden.turns[0] == Turn("a1", "a", "Ana", datetime(2026, 5, 3, 18), "Seven tomatoes")
    assert garden.turns[1] == Turn("a2", "a", None, None, "Nine tomatoes now")
    assert garden.questions == (Question("q", "How many?", frozenset({"a2"}), "update", outdated=frozenset({"a1"})),)


def test_a_file_of_turns_takes_the_questions_of_its_name(tmp_path):
    write_lines(tmp_path / "home.jsonl", {"id": "h1", "content": "The key is under the pot"})
    write_lines(tmp_path / "work.jsonl", {"id": "w1", "content": "The deploy failed"})
    asked = [
        {"id": f"q{turn}", "question": "?", "kind": "open", "evidence": [turn], "store": store}
        for turn, store in [("h1", "home"), ("w1", "work")]
    ]
    write_lines(tmp_path / "questions.jsonl", *asked)
    (home,) = datasets.load(tmp_path / "home.jsonl", "jsonl")
    assert [question.id for question in home.questions] == ["qh1"]
    assert [conversation.name for conversation in datasets.load(tmp_path, "jsonl")] == ["home", "work"]


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("turns.jsonl", {"id": "a1"}, "turns.jsonl, line 1: content: a text is wanted, not nothing"),
        ("turns.jsonl", {"content": "x", "said_at": "yesterday"}, "line 1: said_at: 'yesterday' is not"),
        ("questions.jsonl", {"id": "q", "question": "?", "kind": "open"}, "questions.jsonl, line 1: evidence: a list"),
        ("questions.jsonl", {"id": "q", "question": "?", "kind": "open", "evidence": []}, "line 1: evidence: empty"),
        (
            "questions.jsonl",
            {"id": "q", "question": 7, "kind": "open", "evidence": ["a1"]},
            "question: a text is wanted, not int",
        ),
        ("questions.jsonl", {"id": "q", "question": "?", "kind": "open", "evidence": ["a9"]}, "question q names a9, no id"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_file_and_field(histories, file, line, message):
    write_lines(histories / "garden" / file, line)
    with pytest.raises(SystemExit, match=message):
        datasets.load(histories, "jsonl")


def test_a_line_that_is_no_json_is_told(histories):
    (histories / "garden" / "turns.jsonl").write_text('\n{"content": \n')
    with pytest.raises(SystemExit, match="turns.jsonl, line 2: not JSON"):
        datasets.load(histories, "jsonl")


# --- LongMemEval


def haystack(id: str = "e1", **changes) -> dict:
    entry = {
        "question_id": id,
        "question_type": "knowledge-update",
        "question": "How many tomatoes?",
        "answer": "Nine",
        "question_date": "2023/05/30 (Tue) 10:00",
        "haystack_session_ids": ["s1", "answer_1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 23:59"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
            [{"role": "user", "content": "Nine tomatoes", "has_answer": True}, {"role": "assistant", "content": "Well done"}],
        ],
        "answer_session_ids": ["answer_1"],
    }
    return entry | changes


def test_longmemeval_has_a_conversation_for_each_question(tmp_path):
    path = write_json(tmp_path / "longmemeval_s.json", [haystack(), haystack("e2_abs")])
    assert datasets.guess_format(path) == "longmemeval"
    assert datasets.set_name(path, "longmemeval") == "longmemeval_s"
    first, second = datasets.load(path, "longmemeval")
    assert first.turns[0] == Turn("s1/1", "s1", "user", datetime(2023, 5, 20, 2, 21), "Hello")
    assert [turn.id for turn in first.turns] == ["s1/1", "s1/2", "answer_1/1", "answer_1/2"]
    # So that both turns fall on that day.
    assert first.turns[3].said_at == datetime(2023, 5, 21, 23, 59, 0 + 1)
    assert first.questions == (Question("e1", "How many tomatoes?", frozenset({"answer_1/1"}), "knowledge_update"),)
    assert second.questions[0].kind == "abstention" and not second.questions[0].evidence


def test_longmemeval_is_read_piece_by_piece(tmp_path, monkeypatch):
    path = write_json(tmp_path / "m.json", [haystack(f"e{number}") for number in range(5)])
    whole = list(datasets.load(path, "longmemeval"))
    monkeypatch.setattr(datasets, "CHUNK", 7)
    assert list(datasets.load(path, "longmemeval")) == whole
    assert [conversation.name for conversation in whole] == ["e0", "e1", "e2", "e3", "e4"]


def test_without_a_mark_the_whole_answer_session_is_evidence(tmp_path):
    entry = haystack()
    del entry["haystack_sessions"][1][0]["has_answer"]
    # A mark in another session is a leftover of another question.
    entry["haystack_sessions"][0][0]["has_answer"] = True
    (only,) = datasets.load(write_json(tmp_path / "s.json", [entry]), "longmemeval")
    assert only.questions[0].evidence == {"answer_1/1", "answer_1/2"}


def test_a_session_that_comes_twice_has_other_ids(tmp_path):
    entry = haystack(haystack_session_ids=["answer_1", "answer_1"])
    (only,) = datasets.load(write_json(tmp_path / "s.json", [entry]), "longmemeval")
    assert [turn.id for turn in only.turns] == ["answer_1/1", "answer_1/2", "answer_1 (2)/1", "answer_1 (2)/2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": None}, "entry 1 .e1.: question: a text is wanted, not nothing"),
        ({"haystack_dates": []}, "haystack_session_ids: 2 for 0 haystack_dates"),
        ({"haystack_dates": ["May 20", ""]}, "haystack_dates: 'May 20' is not like"),
        ({"haystack_sessions": [[{"role": "user"}], []]}, "haystack_sessions s1, turn 1: content: a text"),
        ({"haystack_sessions": [None, []]}, "haystack_sessions s1: a list is wanted"),
        ({"answer_session_ids": "answer_1"}, "answer_session_ids: a list is wanted, not str"),
        ({"answer_session_ids": ["s9"]}, "answer_session_ids: none is in haystack_session_ids"),
    ],
)
def test_what_is_wrong_with_a_haystack_is_told_with_file_and_field(tmp_path, changes, message):
    path = write_json(tmp_path / "s.json", [haystack(**changes)])
    with pytest.raises(SystemExit, match=f"s.json, .*{message}"):
        list(datasets.load(path, "longmemeval"))


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "not a list"), ("[{", "entry 1: not JSON"), ("[3]", "entry 1: not an object")]
)
def test_a_file_that_is_no_list_of_objects_is_told(tmp_path, text, message):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(SystemExit, match=message):
        list(datasets.load(tmp_path / "s.json", "longmemeval"))


# --- BEIR


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "SciFact mini"
    write_lines(
        folder / "corpus.jsonl", {"_id": "d1", "title": "Snails", "text": "are slow"}, {"_id": "d2", "text": "Hares run"}
    )
    write_lines(folder / "queries.jsonl", *({"_id": id, "text": f"{id}?"} for id in ("q1", "q2", "q3")))
    (folder / "qrels").mkdir()
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq2\td1\t0\nq3\td9\t1\n"
    (folder / "qrels" / "test.tsv").write_text(judged)
    return folder


def test_beir_is_one_conversation_of_documents(beir):
    assert datasets.guess_format(beir) == "beir"
    assert datasets.set_name(beir, "beir") == "scifact_mini"
    (only,) = datasets.load(beir, "beir")
    assert only.turns == (Turn("d1", None, None, None, "Snails are slow"), Turn("d2", None, None, None, "Hares run"))
    assert only.questions == (Question("q1", "q1?", frozenset({"d1", "d2"}), "query", grades={"d1": 2, "d2": 1}),)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("corpus.jsonl", '{"_id": "d1"}', "corpus.jsonl, line 1: text: a text is wanted"),
        ("corpus.jsonl", '{"text": "x"}', "corpus.jsonl, line 1: _id: a text is wanted"),
        ("queries.jsonl", '{"_id": "q1"}', "queries.jsonl, line 1: text: a text is wanted"),
        ("qrels/test.tsv", "q1\td1", "test.tsv, line 1: 2 fields"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td1\thigh", "test.tsv, line 2: score: 'high' is not a whole number"),
    ],
)
def test_what_is_wrong_with_a_beir_file_is_told(beir, file, text, message):
    (beir / file).write_text(text)
    with pytest.raises(SystemExit, match=message):
        datasets.load(beir, "beir")


def test_a_file_that_is_missing_is_told(beir):
    (beir / "qrels" / "test.tsv").unlink()
    with pytest.raises(SystemExit, match="test.tsv: no such file"):
        datasets.load(beir, "beir")


# --- Everything in one store


def test_merged_conversations_are_told_apart_and_share_equal_sessions(tmp_path):
    path = write_json(tmp_path / "s.json", [haystack("e1"), haystack("e2", answer_session_ids=["s1", "answer_1"])])
    merged = datasets.merge("all", datasets.load(path, "longmemeval"))
    assert [(turn.id, turn.session) for turn in merged.turns] == [
        ("e1/s1/1", "e1/s1"), ("e1/s1/2", "e1/s1"), ("e1/answer_1/1", "e1/answer_1"), ("e1/answer_1/2", "e1/answer_1")
    ]  # fmt: skip
    assert [(question.id, question.evidence) for question in merged.questions] == [
        ("e1/e1", {"e1/answer_1/1"}),
        ("e2/e2", {"e1/answer_1/1"}),
    ]


def test_sessions_of_one_name_that_differ_are_kept_apart():
    one, two = (Conversation(name, (Turn("t", "s", None, None, f"by {name}"),), ()) for name in ("one", "two"))
    assert [(turn.id, turn.session) for turn in datasets.merge("both", [one, two]).turns] == [
        ("one/t", "one/s"),
        ("two/t", "two/s"),
    ]


# --- Judging, on five turns in three sessions

TURNS = tuple(Turn(f"t{number}", session, None, None, "") for number, session in enumerate("aabbc"))


def ask(answer: str, kind: str = "update", evidence: str = "2", outdated: str = "0", score: float = 0.9, **more) -> Judged:
    """How a question is judged whose answer is these turns."""
    turns = [frozenset(f"t{place}" for place in places) for places in (evidence, outdated)]
    question = Question("q", "?", turns[0], kind, outdated=turns[1], **more)
    hits = [Hit(int(place), score - rank / 100) for rank, place in enumerate(answer)]
    (judged,) = judge(Conversation("c", TURNS, (question,)), [question], {"q": hits})
    return judged


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("20134", {"exact_episode"}),
        ("32014", {"sibling_confusion"}),
        ("30214", {"sibling_confusion", "stale_fact"}),
        ("02134", {"wrong_family", "stale_fact"}),
        ("42013", {"wrong_family"}),
    ],
)
def test_behaviours(answer, shown):
    judged = ask(answer)
    assert {name for name, so in judged.behaviours.items() if so} == shown
    assert set(judged.behaviours) == {"exact_episode", "sibling_confusion", "wrong_family", "stale_fact"}


def test_a_behaviour_is_judged_only_where_the_question_has_what_it_needs():
    assert "stale_fact" not in ask("20134", outdated="").behaviours
    assert ask("20134", kind="adversarial").behaviours == {}
    assert ask("20134", kind="abstention", evidence="", outdated="").behaviours == {}
    documents = Conversation("c", tuple(Turn(f"t{number}", None, None, None, "") for number in range(2)), ())
    question = Question("q", "?", frozenset({"t1"}), "query")
    (judged,) = judge(documents, [question], {"q": [Hit(0, 1.0), Hit(1, 0.5)]})
    assert judged.behaviours == {"exact_episode": False}


def test_measures_are_those_of_trec_eval():
    judged = ask("31204", evidence="24")
    ideal = 1 + 1 / np.log2(3)
    assert judged.measures["ndcg@10"] == pytest.approx((1 / np.log2(4) + 1 / np.log2(6)) / ideal)
    assert judged.measures["mrr"] == pytest.approx(1 / 3)
    assert (judged.measures["hit@1"], judged.measures["recall@10"]) == (0, 1)
    assert set(judged.measures) == set(MEASURES)


def test_grades_are_gains():
    judged = ask("24013", evidence="24", grades={"t2": 1, "t4": 3})
    assert judged.measures["ndcg@10"] == pytest.approx((1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)))


def test_a_question_without_evidence_is_not_ranked():
    assert ask("01234", kind="abstention", evidence="", outdated="").measures == {}


def test_an_answer_that_is_too_short_is_an_error():
    with pytest.raises(SystemExit, match="c, question q: 4 rows instead of 5"):
        ask("0123")


def test_the_threshold_keeps_95_percent_of_the_answerable_questions():
    answerable = [Judged(f"q{number}", "open", number / 40) for number in range(40)]
    others = [
        Judged(f"a{number}", kind, score)
        for number, (kind, score) in enumerate(
            [("adversarial", 0.049), ("adversarial", 0.05), ("abstention", 0.01), ("abstention", None)]
        )
    ]
    # Two of 40 may be below.
    assert threshold(answerable + others) == 2 / 40
    judged = with_abstention(answerable + others)
    assert [one.behaviours.get("abstain") for one in judged[40:]] == [True, False, True, True]
    assert not any(one.behaviours for one in judged[:40])
    assert with_abstention(others) == others


# --- Means and how sure they are

KINDS = ["single", "single", "single", "multi", "adversarial"]
SCORES = np.array([[1.0], [0.0], [0.5], [0.1], [0.7]])


def test_micro_and_macro():
    found = significance.estimates(KINDS, SCORES, significance.scopes(KINDS))
    means = {scope: row[0].mean for scope, row in found.items()}
    assert means == pytest.approx({"micro": 0.4, "macro": 1.3 / 3, "single": 0.5, "multi": 0.1, "adversarial": 0.7})


def test_the_bootstrap_draws_within_each_kind():
    found = significance.estimates(KINDS, SCORES, significance.scopes(KINDS))
    # A kind with one question has no spread.
    assert (found["multi"][0].low, found["multi"][0].high) == pytest.approx((0.1, 0.1))
    # Of three draws all are the worst once in 27 times, which is more often than 2.5 %.
    assert (found["single"][0].low, found["single"][0].high) == pytest.approx((0, 1))
    assert (found["macro"][0].low, found["macro"][0].high) == pytest.approx((0.8 / 3, 1.8 / 3))


def test_the_interval_is_that_of_the_normal_distribution_for_many_questions():
    scores = np.random.default_rng(1).normal(0.5, 0.1, (400, 1))
    (found,) = significance.estimates(["a"] * 400, scores, significance.all_alike(["a"] * 400))["all"]
    error = scores.std() / 20
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx((1.96 * error, 1.96 * error), rel=0.05)


@pytest.mark.parametrize("gains", [[0.4, 0.3, 0.2, 0.5, 0.1, 0.3], [0.4, -0.3, 0.2, 0.0, 0.1, 0.3], [0.1, -0.1, 0.2, -0.2]])
def test_p_is_the_share_of_signs_that_do_as_well(gains):
    (found,) = significance.differences(
        ["a"] * len(gains), np.array(gains)[:, None], significance.all_alike(["a"] * len(gains))
    )["all"]
    all_signs = [abs(sum(sign * gain for sign, gain in zip(signs, gains))) for signs in product([-1, 1], repeat=len(gains))]
    exact = np.mean([total >= abs(sum(gains)) - 1e-9 for total in all_signs])
    assert found.p == pytest.approx(exact, abs=0.02)
    assert found.mean == pytest.approx(np.mean(gains))


def test_no_difference_is_no_evidence():
    (found,) = significance.differences(KINDS, np.zeros((5, 1)), significance.all_alike(KINDS))["all"]
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_the_same_scores_give_the_same_intervals():
    wanted = significance.scopes(KINDS)
    assert significance.differences(KINDS, SCORES, wanted) == significance.differences(KINDS, SCORES, wanted)


# --- Learning


def question(id, text="?", *evidence):
    return Question(id, text, frozenset(evidence), "open")


def test_a_question_of_several_splits_counts_once():
    """b gains .4 and .2, so .3; a gains 0. Means: .5 and .4 before, gains 0 and .3."""
    first = ({"a": ("open", 0.5), "b": ("open", 0.3)}, {"a": ("open", 0.5), "b": ("open", 0.7)})
    second = ({"b": ("open", 0.5)}, {"b": ("open", 0.7)})
    found = compare([first, second])
    assert (found.questions, found.moved) == (2, 1)
    assert found.before == pytest.approx(0.45)
    assert found.gain.mean == pytest.approx(0.15)
    assert found.splits == (pytest.approx(0.2), pytest.approx(0.2))


def test_macro_weighs_kinds_alike():
    before = {"a": ("open", 0.0), "b": ("open", 0.0), "c": ("temporal", 0.5)}
    after = {"a": ("open", 0.2), "b": ("open", 0.4), "c": ("temporal", 0.6)}
    assert compare([(before, after)]).gain.mean == pytest.approx(0.7 / 3)
    macro = compare([(before, after)], "macro")
    assert (macro.before, macro.gain.mean) == (pytest.approx(0.25), pytest.approx((0.3 + 0.1) / 2))


def test_halves_share_the_questions_out():
    questions = [question(str(number)) for number in range(11)]
    parts = list(halves(questions, 3))
    for learned, others in parts:
        assert {len(learned), len(others)} == {5, 6}
        assert sorted(one.id for one in learned + others) == sorted(one.id for one in questions)
    assert parts == list(halves(questions, 3)) and parts[0] != parts[1]


def test_what_learned_questions_are_judged_by():
    learned = [question("l", "Where is the spare key?", "t1", "t2")]
    related, unrelated = question("r", "?", "t2", "t3"), question("u", "?", "t3")
    judged = judged_by(learned, [related, unrelated])
    assert judged["related"] == [related] and judged["unrelated"] == [unrelated]
    assert [one.text for how in PARAPHRASES for one in judged[how]] == [
        "spare key",
        "I forgot, can you remind me: where is the spare key?",
    ]
    assert judged["keywords"] == paraphrased(learned, "keywords") and judged["keywords"][0].evidence == learned[0].evidence
