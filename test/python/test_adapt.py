"""memory_adapt trains a turn of the question's token states on the answers that were used:

    T(h) = ‖h‖ (h + B A h) / max(‖h + B A h‖, ε)

The store of these tests has two turns on each of fifty things, one in plain words and one in words that no question has. Only the
latter are ever used, so there is something to be learned that holds for things it was not told of. Every number is computed again
from the tables and the model's own output.
"""

import hashlib
import json
import shutil
import struct

import duckdb
import numpy as np
import pytest
from conftest import ADAPTER, INSTALLED
from safetensors.numpy import load_file
from support import EVIDENCE_ALONE, connect, count, insert, one, rows, run, states, turn_id, value
from test_models import DEFAULT, INT8, model
from test_ranking_oracle import Encoder, Oracle, column

CLOSE = 1e-4
RANK, DIM = 32, 384
THINGS = (
    "kettle bicycle piano garden lantern carpet mirror ladder violin sofa anchor basket candle drum engine fence guitar hammer "
    "island jacket kitchen lemon mountain necklace oven pillow quilt river saddle tunnel umbrella vase wagon window barn bridge "
    "camera castle desk elevator fountain glove helmet jar kite lamp magnet notebook orchard parrot"
).split()
QUESTIONS = [f"any news of the {thing}?" for thing in THINGS]
PLAIN = [turn_id(2 * n) for n in range(len(THINGS))]
USED = [turn_id(2 * n + 1) for n in range(len(THINGS))]
TOO_FEW = (
    "too few questions with feedback: 24 to learn from and 6 to judge by are wanted; one in 5 is held out by its text"
)


def is_held_out(question):
    return hashlib.sha256(question.encode()).digest()[0] % 5 == 0


HELD_OUT = [number for number, question in enumerate(QUESTIONS) if is_held_out(question)]
LEARNED = [number for number, question in enumerate(QUESTIONS) if not is_held_out(question)]


def answer(connection, questions, turns=USED):
    """Asks these questions, by number, all in one statement, and says that each was answered by its turn."""
    texts = [QUESTIONS[number] for number in questions]
    asked = value(connection, "SELECT list(memory_search(q, 1)[1].retrieval_id) FROM (SELECT unnest(?) AS q)", [texts])
    for number, retrieval in zip(questions, asked or [], strict=True):
        connection.execute("CALL memory_feedback(?, used := ?)", [retrieval, [turns[number]]])


@pytest.fixture(scope="module")
def encoder():
    return Encoder()


@pytest.fixture(scope="module")
def asked_file(tmp_path_factory):
    """The store, encoded, its questions asked and their answers used. Copy it, do not open it."""
    path = tmp_path_factory.mktemp("asked") / "asked.db"
    connection = connect(path)
    connection.execute("CALL memory_create(template := 'plain', context := 0, code_bits := 8)")
    texts = [text for thing in THINGS for text in (f"Some news about the {thing} today", f"The {thing} is quite velvet")]
    insert(connection, [(turn_id(n), None, None, None, text) for n, text in enumerate(texts)])
    connection.execute("CALL memory_sync()")
    answer(connection, range(len(THINGS)))
    connection.close()
    return path


@pytest.fixture(scope="module")
def adapted_file(asked_file, tmp_path_factory):
    """The same store, adapted, with what memory_adapt said of it."""
    path = shutil.copy(asked_file, tmp_path_factory.mktemp("adapted") / "adapted.db")
    connection = connect(path)
    said = one(connection, "FROM memory_adapt()")
    connection.close()
    return path, said


@pytest.fixture
def asked(asked_file, tmp_path):
    connection = connect(shutil.copy(asked_file, tmp_path / "store.db"))
    connection.execute("SET lethe_precedent_bonus = 0")
    yield connection
    connection.close()


@pytest.fixture
def adapted(adapted_file, tmp_path):
    connection = connect(shutil.copy(adapted_file[0], tmp_path / "adapted.db"))
    connection.execute("SET lethe_precedent_bonus = 0")
    yield connection
    connection.close()


@pytest.fixture
def unanswered(asked):
    """The store before any feedback."""
    asked.execute("DELETE FROM lethe.feedback; DELETE FROM lethe.retrievals")
    return asked


def matrices(connection):
    row = one(connection, "FROM lethe.adapters")
    return np.array(row["a"], np.float32).reshape(row["rank"], DIM), np.array(row["b"], np.float32).reshape(DIM, row["rank"])


def turned(encoder, a, b):
    """The encoder, with T behind it."""

    def encode(question):
        pieces, embedding, hidden = encoder(question)
        longer = hidden + hidden @ a.T @ b.T
        lengths = np.linalg.norm(hidden, axis=1, keepdims=True)
        return pieces, embedding, lengths * longer / np.maximum(np.linalg.norm(longer, axis=1, keepdims=True), 1e-6)

    return encode


def evidence(connection, encoder, question):
    oracle = Oracle(encoder, states(connection))
    return oracle.evidence(question, oracle.stored, "idf")


def ask(connection, question, k=1000, options=""):
    return rows(connection, f"FROM memory_retrieve(?, ?, explain := true, learn := false{options})", [question, k])


def scores(connection, question, options=""):
    """The final scores of all turns, without what feedback and conversation add to the evidence of the token states."""
    connection.execute(f"{EVIDENCE_ALONE}; SET lethe_feedback_bonus = 0")
    found = ask(connection, question, options=options)
    assert len(found) == 2 * len(THINGS)
    return column(found, "score")


def close(got, want, tolerance=CLOSE):
    assert set(got) == set(want)
    np.testing.assert_allclose([got[turn] for turn in want], list(want.values()), rtol=0, atol=tolerance)


def furthest(a, b):
    return max(abs(a[turn] - b[turn]) for turn in a)


# Enough, or too few -------------------------------------------------------------------------------


def test_there_are_questions_of_both_kinds():
    assert len(LEARNED) >= 30 and len(HELD_OUT) >= 8


@pytest.mark.parametrize("learned, held_out, enough", [(0, 0, False), (23, 6, False), (24, 5, False), (24, 6, True)])
def test_what_is_too_few_changes_nothing(unanswered, learned, held_out, enough):
    """One in five is held out by the hash of its text, the same ones every time."""
    answer(unanswered, LEARNED[:learned] + HELD_OUT[:held_out])
    before = [scores(unanswered, question) for question in QUESTIONS[:3]]
    said = one(unanswered, "FROM memory_adapt()")
    assert (said["questions"], said["held_out"]) == (learned, held_out)
    if enough:
        assert said["ndcg10_before"] is not None and said["note"] != TOO_FEW
    else:
        assert said == {
            "store": "store", "questions": learned, "held_out": held_out, "epochs": 0,
            "ndcg10_before": None, "ndcg10_after": None, "used": False, "note": TOO_FEW,
        }  # fmt: skip
        assert count(unanswered, "adapters") == 0
        assert [scores(unanswered, question) for question in QUESTIONS[:3]] == before


def test_only_answers_that_were_used_are_learned_from(unanswered):
    """A question of which all answers were ignored says nothing of where its answer is."""
    answer(unanswered, LEARNED[:24] + HELD_OUT[:5])
    retrieval = rows(unanswered, "FROM memory_retrieve(?, 1)", [QUESTIONS[HELD_OUT[5]]])[0]["retrieval_id"]
    unanswered.execute("CALL memory_feedback(?, ignored := ?)", [retrieval, [PLAIN[HELD_OUT[5]]]])
    said = one(unanswered, "FROM memory_adapt()")
    assert (said["questions"], said["held_out"], said["note"]) == (24, 5, TOO_FEW)


def test_a_question_counts_once_however_often_it_is_asked(unanswered):
    answer(unanswered, LEARNED[:24] + HELD_OUT[:5])
    answer(unanswered, LEARNED[:24] + HELD_OUT[:5], PLAIN)
    said = one(unanswered, "FROM memory_adapt()")
    assert (said["questions"], said["held_out"], said["note"]) == (24, 5, TOO_FEW)


def test_ignored_after_used_takes_the_answer_back(asked):
    for number in (LEARNED[0], HELD_OUT[0]):
        retrieval = rows(asked, "FROM memory_retrieve(?, 1)", [QUESTIONS[number]])[0]["retrieval_id"]
        asked.execute("CALL memory_feedback(?, ignored := ?)", [retrieval, [USED[number]]])
    said = one(asked, "FROM memory_adapt()")
    assert (said["questions"], said["held_out"]) == (len(LEARNED) - 1, len(HELD_OUT) - 1)


def forget(connection, turn):
    connection.execute("CALL memory_forget(turn_ids := ?)", [turn])


def delete(connection, turn):
    connection.execute("DELETE FROM lethe.turns WHERE turn_id = ?", [turn])


@pytest.mark.parametrize("remove", [forget, delete])
def test_an_answer_that_is_gone_is_not_learned_from(asked, remove):
    """Whether it was forgotten or deleted by plain SQL."""
    for number in (LEARNED[0], HELD_OUT[0]):
        remove(asked, USED[number])
    said = one(asked, "FROM memory_adapt()")
    assert (said["questions"], said["held_out"]) == (len(LEARNED) - 1, len(HELD_OUT) - 1)
    assert said["used"] and len(ask(asked, QUESTIONS[0])) == 2 * len(THINGS) - 2


# What is trained ----------------------------------------------------------------------------------


def test_what_is_said_of_it(adapted_file):
    _, said = adapted_file
    assert (said["store"], said["questions"], said["held_out"]) == ("adapted", len(LEARNED), len(HELD_OUT))
    assert said["used"] is True and said["note"] is None
    assert 1 <= said["epochs"] <= 12
    assert 0 <= said["ndcg10_before"] < said["ndcg10_after"] <= 1


def test_the_statistics_tell_of_it(adapted, asked):
    found = one(adapted, "SELECT answered, adapter FROM memory_stats()")
    assert found["answered"] == len(LEARNED) + len(HELD_OUT)
    assert found["adapter"].startswith(f"trained on {len(LEARNED)} questions: {{")
    assert one(asked, "SELECT adapter FROM memory_stats()")["adapter"] is None


def test_the_measure_is_ndcg_of_the_questions_held_out(adapted, adapted_file, encoder):
    """Of one answer at place p among all turns, best evidence first: 1 / log2(p + 1), or 0 beyond the tenth."""
    _, said = adapted_file
    with_it = turned(encoder, *matrices(adapted))
    for name, encode in [("ndcg10_before", encoder), ("ndcg10_after", with_it)]:
        gains = []
        for number in HELD_OUT:
            found = evidence(adapted, encode, QUESTIONS[number])
            place = 1 + [str(turn) for turn in sorted(found, key=lambda turn: -found[turn])].index(USED[number])
            gains.append(1 / np.log2(place + 1) if place <= 10 else 0)
        assert said[name] == pytest.approx(np.mean(gains), abs=1e-6), name


def test_what_is_stored(adapted, adapted_file):
    _, said = adapted_file
    row = one(adapted, "FROM lethe.adapters")
    assert row["encoder_id"] == value(adapted, "SELECT value FROM lethe.store WHERE key = 'encoder_id'")
    assert (row["rank"], len(row["a"]), len(row["b"])) == (RANK, RANK * DIM, DIM * RANK)
    assert row["trained_on"] == str(len(LEARNED))
    assert json.loads(row["measured"]) == {
        name: said[name] for name in ("held_out", "epochs", "ndcg10_before", "ndcg10_after")
    }
    a, b = matrices(adapted)
    assert np.isfinite(a).all() and np.isfinite(b).all() and np.abs(b).max() > 0


def test_scores_are_those_of_the_turned_question(adapted, encoder):
    with_it = turned(encoder, *matrices(adapted))
    for question in [*(QUESTIONS[number] for number in HELD_OUT[:3]), "who saw the velvet bridge?", "x"]:
        expected = evidence(adapted, with_it, question)
        close(scores(adapted, question), expected)
        close(column(ask(adapted, question), "token_score"), expected)
        assert furthest(expected, evidence(adapted, encoder, question)) > 10 * CLOSE, "it does turn them"


def test_it_turns_token_states_and_nothing_else(asked, adapted):
    """Words, vectors and what is stored of the question are as they were."""
    for question in QUESTIONS[:3]:
        before, after = (ask(store, question) for store in (asked, adapted))
        for name in ("word_rank", "word_score", "vector_rank", "vector_score", "fused_score", "pool_rank"):
            assert column(after, name) == pytest.approx(column(before, name), abs=1e-6), name
    assert value(adapted, "SELECT bool_and(abs(list_dot_product(embedding, embedding) - 1) < 1e-4) FROM lethe.retrievals")


def test_what_was_never_asked_is_answered_better(asked, adapted):
    """Questions held out find the kind of turn that was used for others."""
    first = {}
    for name, store in (("before", asked), ("after", adapted)):
        found = [scores(store, QUESTIONS[number]) for number in HELD_OUT]
        best = [str(max(score, key=score.get)) for score in found]
        first[name] = sum(turn == USED[number] for turn, number in zip(best, HELD_OUT))
    assert first["after"] > first["before"]


def test_the_same_feedback_gives_the_same_adapter(asked_file, adapted, tmp_path):
    """On any number of threads."""
    want = matrices(adapted)
    for threads in (1, 2):
        connection = connect(shutil.copy(asked_file, tmp_path / f"{threads}.db"))
        connection.execute(f"SET lethe_threads = {threads}")
        assert one(connection, "FROM memory_adapt()")["used"]
        for got, expected in zip(matrices(connection), want):
            assert (got == expected).all()
        connection.close()


def test_again_without_new_feedback_it_is_not_better(adapted):
    """It is trained from the beginning, and compared with what is in force, which is the same."""
    before = one(adapted, "FROM lethe.adapters")
    said = one(adapted, "FROM memory_adapt()")
    assert said["used"] is False and said["ndcg10_before"] == said["ndcg10_after"]
    assert "not used: it wins 0.0000 on the questions held out" in said["note"]
    assert one(adapted, "FROM lethe.adapters") == before


def test_what_wins_nothing_is_not_used(unanswered):
    """The first answer of every question was used: nothing can be better."""
    answer(unanswered, range(len(THINGS)), PLAIN)
    question = QUESTIONS[HELD_OUT[0]]
    before = scores(unanswered, question)
    said = one(unanswered, "FROM memory_adapt()")
    assert said["ndcg10_before"] == 1.0 and said["used"] is False and said["note"].startswith("not used: it wins ")
    assert count(unanswered, "adapters") == 0 and scores(unanswered, question) == before


# When it is in force ------------------------------------------------------------------------------


def test_the_setting_says_whose_adapter_is_used(asked, adapted):
    """The encoder of these tests has none of its own."""
    for question in (QUESTIONS[HELD_OUT[0]], QUESTIONS[LEARNED[0]]):
        before, after = scores(asked, question), scores(adapted, question)
        assert furthest(before, after) > 0.01
        for choice, expected in [("none", before), ("encoder", before), ("auto", after)]:
            adapted.execute(f"SET lethe_adapter = '{choice}'")
            close(scores(adapted, question), expected, 1e-6)
    adapted.execute("SET lethe_adapter = 'mine'")
    with pytest.raises(duckdb.Error, match="lethe_adapter is 'mine'; allowed: auto, encoder, none"):
        adapted.execute("FROM memory_retrieve('x', 1)")


def test_the_statement_after_it_uses_it(asked, adapted):
    question = QUESTIONS[HELD_OUT[0]]
    before = scores(asked, question)
    asked.execute("CALL memory_adapt()")
    close(scores(asked, question), scores(adapted, question), 1e-6)
    asked.execute("DELETE FROM lethe.adapters")
    assert scores(asked, question) == before, "a plain table: without the row it is not in force"


def test_it_lasts(adapted_file, adapted, tmp_path):
    """Over close and reopen, and in a store attached READ_ONLY, which is never adapted itself."""
    question = QUESTIONS[HELD_OUT[0]]
    want = scores(adapted, question)
    path = shutil.copy(adapted_file[0], tmp_path / "again.db")
    connection = connect(path)
    close(scores(connection, question), want, 1e-6)
    connection.close()
    connection = connect()
    connection.execute(f"ATTACH '{path}' AS again (READ_ONLY); USE again")
    close(scores(connection, question), want, 1e-6)
    with pytest.raises(duckdb.Error, match="memory_adapt: .*'again'.*(?i:read[-_ ]only)"):
        connection.execute("FROM memory_adapt()")
    connection.close()


def test_every_store_has_its_own(asked, adapted_file, encoder, tmp_path):
    """In one retrieval each turn is met by the question as its own store turns it. The stores hold the same turns."""
    asked.execute(f"ATTACH '{shutil.copy(adapted_file[0], tmp_path / 'other.db')}' AS other")
    asked.execute(f"{EVIDENCE_ALONE}; SET lethe_feedback_bonus = 0; SET lethe_candidates = 1000")
    row = one(asked, "SELECT rank, a, b FROM other.lethe.adapters")
    a, b = np.array(row["a"]).reshape(row["rank"], DIM), np.array(row["b"]).reshape(DIM, row["rank"])
    encoders = {"store": encoder, "other": turned(encoder, a, b)}
    stored = {(store, turn): state for store in encoders for turn, state in states(asked, store).items()}
    for question in (QUESTIONS[HELD_OUT[0]], QUESTIONS[LEARNED[0]]):
        found = ask(asked, question, options=", stores := ['store', 'other']")
        assert len(found) == 4 * len(THINGS)
        for name, encode in encoders.items():
            # Rarity is counted over both.
            expected = Oracle(encode, stored).evidence(question, [key for key in stored if key[0] == name], "idf")
            close({(name, row["turn_id"]): row["score"] for row in found if row["store"] == name}, expected)


def test_it_is_of_one_encoder(adapted):
    """Another encoder as wide has other states: what was trained for the old ones does not turn them."""
    adapted.execute(f"CALL memory_create(encoder := '{INT8}'); SET lethe_model_directory = '{INT8}'")
    question = QUESTIONS[HELD_OUT[0]]
    auto = scores(adapted, question)
    adapted.execute("SET lethe_adapter = 'none'")
    assert scores(adapted, question) == auto


@pytest.mark.parametrize("change", ["a = a[1:100]", "b = list_append(b, 0)", "rank = 0", "rank = 31", "a = ['nan'::FLOAT] || a[2:]"])
def test_a_broken_table_is_named(adapted, change):
    adapted.execute(f"UPDATE lethe.adapters SET {change}")
    with pytest.raises(duckdb.Error, match="table lethe.adapters of store 'adapted' holds matrices that are not"):
        adapted.execute("FROM memory_retrieve('x', 1)")
    adapted.execute("SET lethe_adapter = 'none'")
    assert len(rows(adapted, "FROM memory_retrieve('x', 1)")) == 1


def test_ctrl_c_stores_nothing(asked_file, adapted, tmp_path):
    """The call ends with an error after the epoch at hand, and the next one trains the whole."""
    path = shutil.copy(asked_file, tmp_path / "interrupted.db")
    told = run(
        """
        import os, signal, threading
        # A handler of the host's. It does nothing, so that only lethe ends the call.
        signal.signal(signal.SIGINT, lambda *_: None)
        connection = connect(args[0])
        ended = threading.Event()

        def interrupt():
            while not ended.wait(0.01):
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            connection.execute('CALL memory_adapt()')
            told = 'not interrupted'
        except duckdb.Error as error:
            told = str(error)
        ended.set()
        tell([told, count(connection, 'adapters')])
        """,
        path,
    )
    assert "memory_adapt: interrupted: nothing was changed; memory_adapt() starts from the beginning" in told[0]
    assert told[1] == 0
    connection = connect(path)
    assert count(connection, "adapters") == 0 and one(connection, "FROM memory_adapt()")["used"]
    assert all((got == want).all() for got, want in zip(matrices(connection), matrices(adapted)))
    connection.close()


# An adapter that comes with the encoder -----------------------------------------------------------

FILE = "lethe_adapter.safetensors"


def safetensors(**tensors):
    """The format: the length of the header, the header, which is JSON, and the numbers."""
    header, data = {}, b""
    for name, array in tensors.items():
        kind = {"float32": "F32", "float64": "F64"}[str(array.dtype)]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def random_adapter(rank=4, dim=DIM):
    rng = np.random.default_rng(8)
    return {"a": rng.normal(0, 0.2, (rank, dim)).astype("<f4"), "b": rng.normal(0, 0.2, (dim, rank)).astype("<f4")}


def with_adapter(folder, contents):
    """The default model, with an adapter beside it."""
    folder = model(folder)
    (folder / FILE).write_bytes(contents)
    return folder


def test_the_encoders_own_is_used_until_the_store_has_one(asked, encoder, tmp_path):
    question = QUESTIONS[HELD_OUT[0]]
    before = scores(asked, question)
    own = random_adapter()
    # The states of turns are the same, so a store that was encoded without it is good.
    asked.execute(f"SET lethe_model_directory = '{with_adapter(tmp_path / 'own', safetensors(**own))}'")
    expected = evidence(asked, turned(encoder, **own), question)
    assert furthest(expected, before) > 0.01
    for choice, scored in [("auto", expected), ("encoder", expected), ("none", before)]:
        asked.execute(f"SET lethe_adapter = '{choice}'")
        close(scores(asked, question), scored)
    # What is trained starts from it, so it has its rank; and goes before it.
    asked.execute("RESET lethe_adapter")
    assert one(asked, "FROM memory_adapt()")["used"]
    a, b = matrices(asked)
    assert a.shape == own["a"].shape
    expected = evidence(asked, turned(encoder, a, b), question)
    close(scores(asked, question), expected)
    asked.execute("SET lethe_adapter = 'encoder'")
    close(scores(asked, question), evidence(asked, turned(encoder, **own), question))
    assert furthest(expected, evidence(asked, turned(encoder, **own), question)) > 10 * CLOSE


SPOILT = {
    "empty": (b"", ""),
    "no safetensors": (b"not an adapter, whatever it is called", ""),
    "cut off": (safetensors(**random_adapter())[:-4], ""),
    "without b": (safetensors(a=random_adapter()["a"]), "b"),
    "of another width": (safetensors(**random_adapter(dim=256)), "rank × 384 and 384 × rank are expected"),
    "the wrong way round": (
        safetensors(a=random_adapter()["b"], b=random_adapter()["a"]),
        "a is [384, 4] and b is [4, 384]; rank × 384 and 384 × rank are expected",
    ),
    "of two ranks": (safetensors(a=random_adapter(4)["a"], b=random_adapter(5)["b"]), "a is [4, 384] and b is [384, 5]"),
    "of rank 0": (safetensors(**random_adapter(0)), ""),
    "of 64 bits": (
        safetensors(**{name: matrix.astype("<f8") for name, matrix in random_adapter().items()}),
        "a is not of 32-bit floats",
    ),
    "not a number": (
        safetensors(a=np.full((4, DIM), np.nan, "<f4"), b=random_adapter()["b"]),
        "its numbers are not all finite",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_named(asked, tmp_path, name):
    contents, says = SPOILT[name]
    folder = with_adapter(tmp_path / "spoilt", contents)
    asked.execute(f"SET lethe_model_directory = '{folder}'")
    with pytest.raises(duckdb.Error) as error:
        asked.execute("FROM memory_retrieve('x', 1)")
    text = str(error.value)
    assert f"query adapter of the encoder at {folder / FILE} cannot be used" in text and says in text, text
    asked.execute("RESET lethe_model_directory")
    assert len(rows(asked, "FROM memory_retrieve('x', 1)")) == 1


def test_a_directory_of_that_name_is_none(asked, tmp_path):
    folder = model(tmp_path / "model")
    (folder / FILE).mkdir()
    before = scores(asked, QUESTIONS[0])
    asked.execute(f"SET lethe_model_directory = '{folder}'")
    close(scores(asked, QUESTIONS[0]), before, 1e-6)


def test_the_default_encoder_comes_with_one(asked, encoder):
    """The installed model, as everybody but these tests has it."""
    question = QUESTIONS[HELD_OUT[0]]
    asked.execute(f"SET lethe_model_directory = '{INSTALLED / 'models' / DEFAULT}'")
    shipped = load_file(INSTALLED / "models" / DEFAULT / ADAPTER)
    assert shipped["a"].shape == (RANK, DIM) and shipped["b"].shape == (DIM, RANK)
    expected = evidence(asked, turned(encoder, **shipped), question)
    assert furthest(expected, evidence(asked, encoder, question)) > 100 * CLOSE
    close(scores(asked, question), expected)
