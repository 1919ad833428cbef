"""Model files: what is missing or broken is named with its cure; encoders are not mixed; any cross-encoder orders the pool."""

import json
import os
import re
import shutil

import duckdb
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import (
    EVIDENCE_ALONE,
    FACTS,
    MODELS,
    RUNTIME,
    connect,
    contents,
    count,
    insert,
    one,
    rows,
    run,
    states,
    turn_id,
    value,
)
from tokenizers import Tokenizer

DEFAULT = "all-MiniLM-L6-v2"
INT8 = "all-MiniLM-L6-v2-int8"
QUESTION, ANSWER = FACTS[0][3], FACTS[0][2]


# What is missing or broken: a process each, because a process loads ONNX Runtime once -------------


def model(path, **files):
    """A model directory like the default one, but for the given files: None leaves one out, bytes take its place."""
    source = MODELS / DEFAULT
    for file in [file.relative_to(source) for file in source.rglob("*") if file.is_file()]:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        replaced = files.get(file.name.replace(".", "_"), source / file)
        if isinstance(replaced, bytes):
            (path / file).write_bytes(replaced)
        elif replaced is not None:
            os.symlink(replaced, path / file)
    return path


def changed_config(**changes):
    return json.dumps({**json.loads((MODELS / DEFAULT / "config.json").read_text()), **changes}).encode()


def failing(settings, then="", env=None):
    """What memory_create says under these settings, and after `then`, in a process of its own."""
    return run(
        """
        connection = connect()
        told = []
        for settings in args:
            connection.execute(settings) if settings else None
            try:
                told.append(rows(connection, 'FROM memory_create()')[0]['encoder'])
            except duckdb.Error as error:
                told.append(str(error))
        tell(told + [value(connection, "SELECT count(*) FROM duckdb_schemas() WHERE schema_name = 'lethe'")])
    """,
        settings,
        then,
        env=env,
    )


def graph_head():
    with open(MODELS / DEFAULT / "onnx" / "model.onnx", "rb") as graph:
        return graph.read(100_000)


#: How a model directory is spoilt, the file that is to blame, and what the error says of it.
SPOILT = {
    "no graph": ({"model_onnx": None}, "onnx/model.onnx", "does not exist"),
    "no tokenizer": ({"tokenizer_json": None}, "tokenizer.json", "does not exist"),
    "no configuration": ({"config_json": None}, "config.json", "does not exist"),
    "graph is no graph": ({"model_onnx": b"not a graph"}, "onnx/model.onnx", "cannot be used"),
    "graph is empty": ({"model_onnx": b""}, "onnx/model.onnx", "cannot be used"),
    "graph is cut off": ({"model_onnx": graph_head()}, "onnx/model.onnx", "cannot be used"),
    "tokenizer is no JSON": ({"tokenizer_json": b"{"}, "tokenizer.json", "cannot be used"),
    "tokenizer is another JSON": ({"tokenizer_json": b"{}"}, "tokenizer.json", "cannot be used"),
    "configuration is no JSON": ({"config_json": b"\xff{"}, "config.json", "cannot be used"),
    "configuration says nothing": ({"config_json": b"{}"}, "config.json", "no hidden_size"),
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """What is said of each spoilt directory. One process for all: none of them is ever loaded."""
    folders = {}
    for number, (name, (files, *_)) in enumerate(SPOILT.items()):
        folder = tmp_path_factory.mktemp("models") / str(number)
        # `config.json` names two files; only that of the model itself is meant.
        pooling = (MODELS / DEFAULT / "1_Pooling" / "config.json").read_bytes()
        folders[name] = model(folder, **files)
        (folder / "1_Pooling" / "config.json").unlink(missing_ok=True)
        (folder / "1_Pooling" / "config.json").write_bytes(pooling)
    told = run(
        """
        connection = connect()
        told = []
        for folder in args:
            connection.execute(f"SET lethe_model_directory = '{folder}'")
            try:
                told.append(rows(connection, 'FROM memory_create()')[0]['encoder'])
            except duckdb.Error as error:
                told.append(str(error))
        connection.execute('RESET lethe_model_directory')
        tell([told, rows(connection, 'FROM memory_create()')[0]['encoder']])
    """,
        *folders.values(),
    )
    assert told[1] == DEFAULT, "after all that, the default still works"
    return {name: (folders[name], text) for name, text in zip(SPOILT, told[0])}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_model_directory(spoilt, name):
    folder, text = spoilt[name]
    _, file, says = SPOILT[name]
    assert text.startswith("Invalid Input Error: memory_create: ") or "memory_create: " in text, text
    assert str(folder / file) in text and says in text and "make setup" in text, text
    assert "broke inside" not in text


@pytest.mark.parametrize(
    "setting, looked_for",
    [
        ("/nowhere/at/all", "/nowhere/at/all"),
        ("no-such-model", str(MODELS / "no-such-model")),
    ],
)
def test_no_such_model_directory(setting, looked_for):
    connection = connect()
    connection.execute(f"SET lethe_model_directory = '{setting}'")
    with pytest.raises(duckdb.Error) as error:
        connection.execute("CALL memory_create()")
    assert f"encoder (lethe_model_directory) not found: {looked_for} does not exist" in str(error.value)
    assert "make setup" in str(error.value)
    connection.close()


def test_a_model_of_another_width_than_it_says(tmp_path):
    folder = model(tmp_path / "wide", config_json=changed_config(hidden_size=512))
    (folder / "1_Pooling" / "config.json").unlink()
    told = run(
        """
        connection = connect()
        connection.execute(f"SET lethe_model_directory = '{args[0]}'; CALL memory_create()")
        try:
            told = rows(connection, "FROM memory_add('x')")
        except duckdb.Error as error:
            told = str(error)
        tell(told)
    """,
        folder,
    )
    assert "384" in told and "512" in told and "broke inside" not in told, told


@pytest.mark.parametrize(
    "library, says",
    [
        ("missing", "does not exist"),
        ("text", "cannot be used"),
        ("empty", "cannot be used"),
        ("another library", "cannot be used"),
        ("directory", None),
    ],
)
def test_no_onnx_runtime(tmp_path, library, says):
    """And once the setting is right, the same process goes on."""
    path = tmp_path / "libonnxruntime.so"
    if library == "text":
        path.write_text("not a library")
    elif library == "empty":
        path.touch()
    elif library == "another library":
        import _ctypes

        shutil.copy(_ctypes.__file__, path)
    elif library == "directory":
        path.mkdir()
    first, second, _ = failing(f"SET lethe_onnxruntime = '{path}'", "RESET lethe_onnxruntime")
    assert "ONNX Runtime (lethe_onnxruntime)" in first and str(path) in first and "make setup" in first, first
    assert (says is None or says in first) and "broke inside" not in first, first
    assert second == DEFAULT


def test_another_onnx_runtime_after_the_first(tmp_path):
    """A library cannot be unloaded."""
    other = shutil.copy(RUNTIME, tmp_path / "other.so")
    told = run(
        """
        connection = connect()
        connection.execute('CALL memory_create()')
        connection.execute(f"SET lethe_onnxruntime = '{args[0]}'")
        try:
            rows(connection, f"FROM memory_create(encoder := '{args[1]}')")
        except duckdb.Error as error:
            tell(str(error))
    """,
        other,
        INT8,
    )
    assert f"lethe_onnxruntime is '{other}'" in told and str(RUNTIME) in told and "new process" in told


@pytest.mark.parametrize(
    "env, where",
    [
        ({"XDG_DATA_HOME": "/nowhere/data"}, "/nowhere/data/lethe/models/all-MiniLM-L6-v2"),
        ({"XDG_DATA_HOME": None, "HOME": "/nowhere/home"}, "/nowhere/home/.local/share/lethe/models/all-MiniLM-L6-v2"),
        ({"XDG_DATA_HOME": None, "HOME": None}, "lethe_model_directory|model directory"),
    ],
)
def test_nothing_is_installed(env, where):
    told, _, schemas = failing("", env=env)
    assert re.search(where, told) and "make setup" in told, told
    assert schemas == 0, "nothing is half made"


def test_what_needs_no_model_works_without(store_file):
    told = run(
        """
        connection = connect(args[0])
        told = {}
        for call in ['memory_version()', 'memory_stats()', 'memory_suppression()', 'memory_reset()',
                     "memory_forget(session := 's2')"]:
            told[call] = len(rows(connection, f'FROM {call}'))
        failed = []
        for call in ["memory_add('never stored')", "memory_retrieve('x', 1)", 'memory_sync()']:
            try:
                rows(connection, f'FROM {call}')
            except duckdb.Error as error:
                failed.append(str(error))
        loaded = {r['component']: r['version'] for r in rows(connection, 'FROM memory_version()')}['onnxruntime_loaded']
        tell([told, failed, count(connection, 'turns'), loaded])
    """,
        store_file,
        env={"XDG_DATA_HOME": "/nowhere/data"},
    )
    assert told[0]["memory_stats()"] == 1 and len(told[1]) == 3
    assert all("/nowhere/data/lethe/models" in text and "make setup" in text for text in told[1])
    assert told[2:] == [8, None], "a turn that cannot be encoded is not stored"


# Encoders are not mixed ---------------------------------------------------------------------------


def test_a_store_of_another_encoder_is_refused_and_can_be_encoded_anew(store, store_file):
    stored, before = one(store, "SELECT encoder_id, name FROM lethe.encoders"), states(store)
    rows(store, "FROM memory_retrieve(?, 5)", [QUESTION])
    store.execute(f"SET lethe_model_directory = '{INT8}'")
    for call in ["memory_retrieve('x', 1)", "memory_add('never stored')", "memory_sync()"]:
        with pytest.raises(duckdb.Error) as error:
            store.execute(f"FROM {call}")
        text = str(error.value)
        assert (
            f"'{DEFAULT}'" in text and f"'{INT8}'" in text and stored["encoder_id"] in text and "memory_create" in text
        )
    with pytest.raises(duckdb.Error, match=f"'{INT8}'"):
        store.execute("SELECT memory_search('x', 1)")
    assert count(store, "turns") == len(FACTS)
    # memory_create alone changes nothing; with an encoder it registers that one.
    assert one(store, "FROM memory_create()")["encoder"] == DEFAULT
    made = one(store, f"FROM memory_create(encoder := '{INT8}')")
    assert (made["created"], made["encoder"]) == (False, INT8) and made["encoder_id"] != stored["encoder_id"]
    assert contents(store, QUESTION, 1) == [ANSWER]
    after = states(store)
    assert set(after) == set(before) and {row["encoder_id"] for row in after.values()} == {made["encoder_id"]}
    cosines = [float(after[t]["embedding"] @ before[t]["embedding"]) for t in before]
    assert 0.9 < min(cosines) < 0.99999, "another encoder's vectors, and much the same"
    assert (count(store, "turns"), count(store, "retrievals")) == (len(FACTS), 1)
    # The other way round it is refused now, by this process and the next.
    store.execute("RESET lethe_model_directory")
    with pytest.raises(duckdb.Error, match=f"encoded by '{INT8}'.*holds '{DEFAULT}'"):
        store.execute("FROM memory_retrieve('x', 1)")
    store.close()
    again = connect(store_file)
    with pytest.raises(duckdb.Error, match=f"encoded by '{INT8}'.*holds '{DEFAULT}'"):
        again.execute("FROM memory_retrieve('x', 1)")
    again.execute(f"SET lethe_model_directory = '{INT8}'")
    assert one(again, "FROM memory_sync()")["encoded"] == 0
    again.close()


def test_what_was_learned_under_one_encoder_is_not_used_under_another(memory):
    """Both are equally wide, so only the encoder's name tells that their vectors cannot be compared."""
    memory.execute("CALL memory_create(learning := 'uniform'); SET lethe_cluster_after = 2; SET lethe_clusters = 2")
    memory.execute("CALL memory_add(['The cat sleeps', 'The bus leaves at eight', 'The rent is due'])")
    questions = ["where is the cat?", "when is the bus?"]
    asked = [rows(memory, "FROM memory_retrieve(?, 3)", [question])[0] for question in questions]
    memory.execute("CALL memory_feedback(?, ignored := ?)", [asked[0]["retrieval_id"], [asked[0]["turn_id"]]])
    learned = ("retrievals", "cues", "suppression", "feedback")
    assert all(count(memory, table) for table in learned)
    # Named again, the same encoder changes nothing.
    memory.execute(f"CALL memory_create(encoder := '{DEFAULT}')")
    assert all(count(memory, table) for table in (*learned, "states"))
    memory.execute(f"CALL memory_create(encoder := '{INT8}'); SET lethe_model_directory = '{INT8}'")
    assert [count(memory, table) for table in (*learned, "states")] == [2, 0, 0, 1, 0]
    assert value(memory, "SELECT count(*) FROM lethe.retrievals WHERE len(embedding) > 0 OR cluster_id > 0") == 0
    row = rows(memory, "FROM memory_retrieve('where is the cat?', 1, explain := true)")[0]
    assert (row["content"], row["cue_cluster"], row["suppression"]) == ("The cat sleeps", 0, 0.0)


def test_a_new_store_of_another_encoder_beside_the_default(store):
    store.execute("ATTACH ':memory:' AS small")
    made = one(store, f"FROM memory_create(store := 'small', encoder := '{INT8}')")
    assert (made["created"], made["encoder"]) == (True, INT8)
    assert contents(store, QUESTION, 1) == [ANSWER]
    with pytest.raises(duckdb.Error, match=f"store 'small' was encoded by '{INT8}'"):
        contents(store, QUESTION, 1, "stores := ['store', 'small'], learn := false")
    with pytest.raises(duckdb.Error, match=f"store 'small' was encoded by '{INT8}'"):
        contents(store, QUESTION, 1, "stores := '*', learn := false")
    store.execute(f"SET lethe_model_directory = '{INT8}'")
    rows(store, "FROM memory_add('Only in small', store := 'small')")
    assert contents(store, QUESTION, 1, "stores := 'small'") == ["Only in small"]


def test_the_same_model_elsewhere_is_the_same_encoder(store, tmp_path):
    folder = shutil.copytree(MODELS / DEFAULT, tmp_path / "copied", symlinks=True)
    store.execute(f"SET lethe_model_directory = '{folder}'")
    assert contents(store, QUESTION, 1) == [ANSWER]


def test_an_unknown_encoder_changes_nothing(store):
    before = one(store, "FROM memory_stats()")
    with pytest.raises(duckdb.Error, match="no-such-model does not exist"):
        store.execute("FROM memory_create(encoder := 'no-such-model', learning := 'off')")
    assert one(store, "FROM memory_stats()") == before and count(store, "states") == len(FACTS)


# A cross-encoder of our own -----------------------------------------------------------------------

LONGEST = 48
VOCABULARY = 30522
BIAS = -0.75


def worth():
    """What a shared wordpiece is worth: made up, the same every time; the special tokens are worth nothing."""
    table = np.random.default_rng(3).uniform(-1, 2, VOCABULARY).astype(np.float32)
    table[[0, 100, 101, 102, 103]] = 0
    return table


def cross_encoder(folder, output="one", inputs=("input_ids", "attention_mask", "token_type_ids"), table=None, bias=BIAS):
    """A graph whose logit is  bias + Σ over the memory's wordpieces j: worth[j] · (how often j is in the question).

    Like BERT it has a table of positions, and fails on an input that is longer than that.
    """
    constants = {
        "worth": worth() if table is None else table,
        "positions": np.zeros((1, LONGEST), np.float32),
        "bias": np.array([[bias]], np.float32),
        "one": np.array(1, np.int64),
        "first": np.array([0], np.int64),
        "axis": np.array([1], np.int64),
        "two": np.array([2], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Shape", ["input_ids"], ["width"], start=1, end=2),
        node("Slice", ["positions", "first", "width", "axis"], ["position"]),
        node("Gather", ["worth", "input_ids"], ["of_piece"]),
        node("Add", ["of_piece", "position"], ["at_place"]),
        # in the question: type 0, in the memory: type 1
        node("Sub", ["one", "token_type_ids"], ["is_question"]),
        node("Mul", ["is_question", "attention_mask"], ["in_question"]),
        node("Mul", ["token_type_ids", "attention_mask"], ["in_memory"]),
        node("Cast", ["in_question"], ["question"], to=TensorProto.FLOAT),
        node("Cast", ["in_memory"], ["memory"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["input_ids", "axis"], ["across"]),
        node("Unsqueeze", ["input_ids", "two"], ["down"]),
        node("Equal", ["across", "down"], ["same"]),
        node("Cast", ["same"], ["equal"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["question", "axis"], ["asked"]),
        node("Mul", ["equal", "asked"], ["met"]),
        node("ReduceSum", ["met", "two"], ["times"], keepdims=0),
        node("Mul", ["times", "memory"], ["counted"]),
        node("Mul", ["counted", "at_place"], ["each"]),
        node("ReduceSum", ["each", "axis"], ["sum"], keepdims=1),
        node("Add", ["sum", "bias"], ["logit"]),
    ]
    shape = {"one": ["batch", 1], "flat": ["batch"], "two": ["batch", 2], "three": ["batch", 3]}[output]
    nodes += {
        "one": [node("Identity", ["logit"], ["logits"])],
        "flat": [node("Squeeze", ["logit", "axis"], ["logits"])],
        # Not relevant, relevant: only their difference means anything.
        "two": [
            node("Sub", ["bias", "sum"], ["no"]),
            node("Add", ["no", "logit"], ["yes"]),
            node("Concat", ["no", "yes"], ["logits"], axis=1),
        ],
        "three": [node("Concat", ["logit", "logit", "logit"], ["logits"], axis=1)],
    }[output]
    graph = helper.make_graph(
        nodes,
        "cross",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if set(inputs) >= {"input_ids", "attention_mask", "token_type_ids"}:
        onnx.checker.check_model(built)
    folder.mkdir(parents=True)
    onnx.save(built, folder / "model.onnx")
    shutil.copy(MODELS / DEFAULT / "tokenizer.json", folder / "tokenizer.json")
    config = {"hidden_size": 1, "max_position_embeddings": LONGEST, "num_labels": shape[-1] if output != "flat" else 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def crosses(tmp_path_factory):
    base = tmp_path_factory.mktemp("cross")
    return {output: cross_encoder(base / output, output) for output in ("one", "flat", "two", "three")}


@pytest.fixture(scope="module")
def pieces():
    tokenizer = Tokenizer.from_file(str(MODELS / DEFAULT / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def logit(question, memory):
    """The formula above, from wordpieces."""
    return BIAS + sum(float(TABLE[piece]) * question.count(piece) for piece in memory)


TABLE = worth()


def best_passage(question, memory):
    """A memory that does not fit next to the question and the three special tokens is read in passages; the best one counts."""
    room = LONGEST - 3 - len(question)
    return max(logit(question, memory[i : i + room]) for i in range(0, len(memory), room))


@pytest.fixture
def reranked(store, crosses):
    store.execute(f"SET lethe_reranker_directory = '{crosses['one']}'")
    return store


def template(row):
    return f"{row['speaker']} ({row['said_at'].day} {row['said_at']:%B, %Y}): {row['content']}"


@pytest.mark.parametrize("output", ["one", "flat", "two"])
def test_the_cross_encoder_orders(store, crosses, pieces, output):
    plain = rows(store, "FROM memory_retrieve(?, 12, explain := true, learn := false)", [QUESTION])
    store.execute(f"SET lethe_reranker_directory = '{crosses[output]}'")
    for question in [QUESTION, "the the train to Lisbon", "nothing whatever", "a (March) : , 2024 Ana Ben"]:
        found = rows(store, "FROM memory_retrieve(?, 12, explain := true, learn := false)", [question])
        expected = {row["turn_id"]: logit(pieces(question), pieces(template(row))) for row in found}
        assert len(expected) == 12
        for row in found:
            assert row["reranker_score"] == pytest.approx(expected[row["turn_id"]], abs=1e-4)
            assert row["score"] == row["reranker_score"] and row["note"] is None
        assert [row["turn_id"] for row in found] == sorted(
            expected, key=lambda turn: (-round(expected[turn], 4), turn.int)
        )
        assert len({round(score, 3) for score in expected.values()}) >= 3 or question == "nothing whatever"
    # The token evidence is still shown, and what stood before reranking stands.
    found = rows(store, "FROM memory_retrieve(?, 12, explain := true, learn := false)", [QUESTION])
    for name in ("token_score", "pool_rank", "fused_score"):
        assert {r["turn_id"]: r[name] for r in found} == pytest.approx({r["turn_id"]: r[name] for r in plain}, abs=1e-6)
    assert [r["turn_id"] for r in found] != [r["turn_id"] for r in plain]


def test_with_or_without_it(reranked, crosses):
    reranked.execute(EVIDENCE_ALONE)
    sql = "FROM memory_retrieve(?, 12, explain := true, learn := false{})"
    default, on, off = (
        rows(reranked, sql.format(rest), [QUESTION]) for rest in ("", ", rerank := true", ", rerank := false")
    )
    assert [r["turn_id"] for r in default] == [r["turn_id"] for r in on] != [r["turn_id"] for r in off]
    assert all(r["reranker_score"] is None and r["score"] == r["token_score"] for r in off)
    reranked.execute("SET lethe_vector_alpha = 0.7")
    assert [r["score"] for r in rows(reranked, sql.format(""), [QUESTION])] == [r["score"] for r in on]
    assert value(reranked, "SELECT reranker FROM memory_stats()") == str(crosses["one"])
    searched = value(reranked, "SELECT memory_search(?, 12)", [QUESTION])
    assert [r["turn_id"] for r in searched] == [r["turn_id"] for r in on]
    # None installed: said in a column, or refused.
    reranked.execute("RESET lethe_reranker_directory; RESET lethe_vector_alpha")
    told = rows(reranked, "FROM memory_retrieve(?, 2, rerank := true)", [QUESTION])
    assert len(told) == 2 and all("lethe_reranker_directory" in row["note"] for row in told)
    assert "note" not in rows(reranked, "FROM memory_retrieve(?, 2)", [QUESTION])[0]
    reranked.execute("SET lethe_require_reranker = true")
    with pytest.raises(duckdb.Error, match="no reranker is installed: lethe_reranker_directory"):
        rows(reranked, "FROM memory_retrieve(?, 2, rerank := true)", [QUESTION])
    assert len(rows(reranked, "FROM memory_retrieve(?, 2)", [QUESTION])) == 2


def test_only_the_pool_is_reranked(reranked, pieces):
    reranked.execute("SET lethe_pool = 4")
    found = rows(reranked, "FROM memory_retrieve(?, 2, explain := true, learn := false)", [QUESTION])
    whole = rows(reranked, "FROM memory_retrieve(?, 4, explain := true, learn := false)", [QUESTION])
    assert sorted(row["pool_rank"] for row in whole) == [1, 2, 3, 4] and found == [
        {**row, "retrieval_id": found[0]["retrieval_id"]} for row in whole[:2]
    ]


def test_its_logits_are_what_is_learned_from(reranked):
    """σ(−s) of the logit itself: not standardised, as token evidence is."""
    reranked.execute("CALL memory_create(learning := 'uniform')")
    asked = rows(reranked, "FROM memory_retrieve(?, 12, explain := true)", [QUESTION])
    held = {r["turn_id"]: r["score"] for r in rows(reranked, "FROM lethe.suppression")}
    for row in asked:
        delta = 0.1 * (1 - row["pool_rank"] / 12) / (1 + np.exp(row["reranker_score"]))
        assert held.get(row["turn_id"], 0.0) == pytest.approx(delta, abs=1e-6)


def test_a_long_memory_counts_as_its_best_passage(reranked, pieces):
    """Whole words of one piece each, so that passages are stretches of wordpieces. The answer stands in the third passage."""
    reranked.execute("CALL memory_create(template := 'plain')")
    question = "train lisbon seven"
    asked = pieces(question)
    assert len(asked) == 3 and all(TABLE[piece] > -1 for piece in asked)
    filler = "house river stone paper green water light music table horse".split()
    words = [filler[i % 10] for i in range(150)]
    words[95], words[97], words[140] = "train", "lisbon", "seven"
    texts = [" ".join(words), " ".join(words[:43] + ["lisbon"]), "seven " + " ".join(words[:41]), " ".join(filler * 40)]
    rows(reranked, "FROM memory_forget(filter := 'true')")
    insert(reranked, [(turn_id(n), None, None, None, text) for n, text in enumerate(texts)])
    found = rows(reranked, "FROM memory_retrieve(?, 9, explain := true, learn := false)", [question])
    assert len(found) == 4
    for row in found:
        memory = pieces(row["content"])
        assert len(memory) == len(row["content"].split())
        assert row["reranker_score"] == pytest.approx(best_passage(asked, memory), abs=1e-4), len(memory)


@pytest.mark.parametrize(
    "text",
    [
        "0123456789abcdef" * 12,
        "https://example.org/" + "q7x" * 60,
        "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft " * 4,
        "東京特許許可局" * 20,
        "🙂🙃" * 80,
        "naïve café " * 40,
        "a\u0301" * 200,
    ],
    ids=["hexadecimal", "address", "compound", "no spaces", "emoji", "accents", "combining marks"],
)
def test_a_long_memory_of_whatever_text_fits(reranked, text):
    """Cut inside a word, a passage may come to more wordpieces than it had; it still must fit the model."""
    rows(reranked, "FROM memory_add(?)", [text])
    for question in ["who saw it?", "東京 0123", "what " * 60]:
        found = rows(reranked, "FROM memory_retrieve(?, 13, explain := true, learn := false)", [question])
        assert len(found) == 13 and all(np.isfinite(row["reranker_score"]) for row in found)


def test_many_pairs_of_all_lengths(memory, crosses, pieces):
    """More than a batch, of different lengths: each gets its own score."""
    memory.execute("CALL memory_create(template := 'plain', context := 0)")
    words = "train lisbon seven house river stone paper green water light music table horse".split()
    texts = [" ".join(words[(n * 7 + i) % 13] for i in range(1 + n % 30)) for n in range(75)]
    insert(memory, [(turn_id(n), None, None, None, text) for n, text in enumerate(texts)])
    memory.execute(f"SET lethe_reranker_directory = '{crosses['two']}'")
    found = rows(memory, "FROM memory_retrieve('train lisbon seven house', 100, explain := true)")
    assert len(found) == 75
    for row in found:
        assert row["reranker_score"] == pytest.approx(
            logit(pieces("train lisbon seven house"), pieces(row["content"])), abs=1e-4
        )


def test_a_cross_encoder_that_cannot_be_used(store, crosses, tmp_path):
    def refused(folder):
        store.execute(f"SET lethe_reranker_directory = '{folder}'")
        with pytest.raises(duckdb.Error) as error:
            rows(store, "FROM memory_retrieve(?, 2)", [QUESTION])
        assert "broke inside" not in str(error.value)
        return str(error.value)

    assert "reranker (lethe_reranker_directory) not found: /nowhere/cross does not exist" in refused("/nowhere/cross")
    assert "3]" in refused(crosses["three"]) and "[batch, 1] or [batch, 2]" in refused(crosses["three"])
    gone = shutil.copytree(crosses["one"], tmp_path / "gone")
    (gone / "tokenizer.json").unlink()
    assert f"{gone}/tokenizer.json does not exist" in refused(gone)
    broken = shutil.copytree(crosses["one"], tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"no")
    assert f"{broken}/model.onnx cannot be used" in refused(broken)
    odd = cross_encoder(tmp_path / "odd", inputs=("input_ids", "attention_mask", "token_type_ids", "position_ids"))
    assert "position_ids" in refused(odd)
    # An encoder is not a cross-encoder.
    assert "[batch, 1] or [batch, 2]" in refused(MODELS / DEFAULT)
    store.execute("RESET lethe_reranker_directory")
    assert contents(store, QUESTION, 1) == [ANSWER]


def test_a_budget_is_spent_on_the_best_by_token_evidence(reranked):
    """And on the rest of the pool where no answer convinces."""
    sql = "SELECT turn_id, token_score, reranker_score FROM memory_retrieve(?, {}, explain := true, learn := false)"
    every = rows(reranked, sql.format(12), [QUESTION])
    assert len(every) == 12 and all(row["reranker_score"] is not None for row in every)
    best_logits = [row["turn_id"] for row in every]
    by_evidence = sorted(every, key=lambda row: -row["token_score"])
    for budget, k, read in [(4, 2, 4), (2, 3, 3), (100, 2, 12)]:
        reranked.execute(f"SET lethe_rerank_budget = {budget}")
        expected = [turn for turn in best_logits if turn in [row["turn_id"] for row in by_evidence[:read]]][:k]
        assert [row["turn_id"] for row in rows(reranked, sql.format(k), [QUESTION])] == expected, budget
    reranked.execute("SET lethe_rerank_budget = 4")
    convincing = max(row["reranker_score"] for row in by_evidence[:4])
    within = [turn for turn in best_logits if turn in [row["turn_id"] for row in by_evidence[:4]]]
    assert within[:2] != best_logits[:2]
    for threshold, expected in [(convincing - 0.01, within[:2]), (convincing + 0.01, best_logits[:2])]:
        reranked.execute(f"SET lethe_rerank_threshold = {threshold}")
        assert [row["turn_id"] for row in rows(reranked, sql.format(2), [QUESTION])] == expected, threshold
