#!/usr/bin/env python3
"""lethe on many turns, beside what DuckDB has without it, in one run on the same data.

    python bench/scale.py --data locomo10.json --extension build/lethe.duckdb_extension --sizes 20000 200000

The corpus of each size is `scale_corpus`: LoCoMo's turns among ever more made of its sentences. Up to `--encode` turns every one
is encoded; a larger corpus holds the invented sessions of the largest encoded one again and again, under other names, with
their stored encodings: good for time and bytes, while the quality among so many copies says little.

Timed, one method after the other, each twice: lethe with no option touched, the encoding of the question and the learning from it
included; DuckDB's fts (`match_bm25`); a scan by `array_cosine_similarity`; the HNSW index of vss; and their hybrid, reciprocal rank
fusion of the best hundred by fts and by vss. The rivals get the vector of the question for nothing. Quality is NDCG@10 of
LoCoMo's questions over everything together; lethe's exact path ranks all turns by their token evidence.

Stores and indexes stay in `--work`; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from uuid import UUID

import duckdb
import ir_measures
from ir_measures import ScoredDoc, nDCG

from datasets import Conversation, Question, load_locomo
from scale_corpus import Line, corpus, relevant, turn_id

K = 10
BATCH = 50
DIM = 384
#: How a turn is written when it is encoded, in SQL; the rivals search the same text.
TEXT = "coalesce(speaker || ' (' || strftime(said_at, '%-d %B, %Y') || '): ', '') || content"
RRF = """
    WITH words AS (
        SELECT id, row_number() OVER (ORDER BY score DESC) AS rank
        FROM (SELECT id, fts_main_turns.match_bm25(id, $question) AS score FROM turns)
        WHERE score IS NOT NULL ORDER BY score DESC LIMIT 100),
    vectors AS (
        SELECT id, row_number() OVER (ORDER BY distance) AS rank
        FROM (SELECT id, array_cosine_distance(embedding, $vector::FLOAT[384]) AS distance
              FROM turns ORDER BY array_cosine_distance(embedding, $vector::FLOAT[384]) LIMIT 100))
    SELECT id FROM (SELECT * FROM words UNION ALL SELECT * FROM vectors)
    GROUP BY id ORDER BY sum(1 / (60 + rank)) DESC, id LIMIT 10"""
RIVALS = {
    "fts": """SELECT id FROM (SELECT id, fts_main_turns.match_bm25(id, $question) AS score FROM turns)
              WHERE score IS NOT NULL ORDER BY score DESC LIMIT 10""",
    "cosine": "SELECT id FROM turns ORDER BY array_cosine_similarity(embedding, $vector::FLOAT[384]) DESC LIMIT 10",
    "vss": "SELECT id FROM turns ORDER BY array_cosine_distance(embedding, $vector::FLOAT[384]) LIMIT 10",
    "fts_vss": RRF,
}


#: lethe as it is, and without learning.
OWN = {
    "lethe": "SELECT turn_id FROM memory_retrieve(?, 10)",
    "not_learning": "SELECT turn_id FROM memory_retrieve(?, 10, learn := false)",
}
WARM_UP = 5


def connect(file: Path, extension: Path, cache: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(str(file), config={"allow_unsigned_extensions": "true"})
    connection.load_extension(str(extension))
    connection.execute("SET GLOBAL lethe_cache_directory = $1", [str(cache)])
    return connection


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# The stores ---------------------------------------------------------------------------------------


def make_store(work: Path, extension: Path, conversations: list[Conversation], size: int, encode: int, smaller: Path | None) -> Path:
    """The file of a store of that size, made or finished if need be."""
    file, made = work / f"lethe-{size}.db", work / f"lethe-{size}.done"
    if made.exists():
        return file
    if smaller and not file.exists():
        shutil.copy(smaller, file.with_suffix(".copy"))
        file.with_suffix(".copy").rename(file)
    connection = connect(file, extension, work / "cache")
    if smaller:
        connection.execute("UPDATE lethe.store SET value = uuid()::VARCHAR WHERE key = 'store_id'")
    connection.execute("CALL memory_create()")
    [(have,)] = connection.execute("SELECT count(*) FROM lethe.turns").fetchall()
    if size <= encode:
        insert(connection, corpus(conversations, size)[have:])
    else:
        repeat(connection, have, size)
    print(f"{size}: {connection.execute('FROM memory_sync()').fetchall()}", flush=True)
    connection.execute("CHECKPOINT")
    connection.close()
    made.touch()
    return file


def insert(connection: duckdb.DuckDBPyConnection, lines: list[Line]) -> None:
    rows = [(str(line.id), line.session, line.speaker, line.said_at, line.content) for line in lines]
    for start in range(0, len(rows), 20_000):
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO lethe.turns (turn_id, session_id, speaker, said_at, content) VALUES (?, ?, ?, ?, ?)",
            rows[start : start + 20_000],
        )
        connection.execute("COMMIT")


def repeat(connection: duckdb.DuckDBPyConnection, have: int, size: int) -> None:
    """Copies whole invented sessions, turns and states, until there are `size` turns at least."""
    [(invented,)] = connection.execute("SELECT count(*) FROM lethe.turns WHERE session_id LIKE 'invented/%'").fetchall()
    copies = -(-(size - have) // invented)
    for copy in range(1, copies + 1):
        connection.execute("BEGIN")
        connection.execute(
            """CREATE OR REPLACE TEMP TABLE copied AS SELECT turn_id AS original, uuidv7() AS turn_id FROM lethe.turns
               WHERE session_id LIKE 'invented/%' AND session_id NOT LIKE '%#%'"""
        )
        connection.execute(
            """INSERT INTO lethe.turns SELECT c.turn_id, session_id || '#' || $1, speaker, said_at, content, metadata, valid_until
               FROM lethe.turns t JOIN copied c ON c.original = t.turn_id""",
            [copy],
        )
        connection.execute(
            "INSERT INTO lethe.states SELECT c.turn_id, s.* EXCLUDE (turn_id) FROM lethe.states s JOIN copied c ON c.original = s.turn_id"
        )
        connection.execute("COMMIT")


def make_rivals(work: Path, store: Path, size: int) -> tuple[Path, dict[str, float]]:
    """The file with the rivals' table and indexes, and the seconds that each took to build."""
    file, made = work / f"rivals-{size}.db", work / f"rivals-{size}.json"
    if made.exists():
        return file, json.loads(made.read_text())
    file.unlink(missing_ok=True)
    connection = duckdb.connect(str(file))
    for name in ("fts", "vss"):
        load(connection, name)
    connection.execute(f"ATTACH '{store}' AS store (READ_ONLY)")
    connection.execute(
        f"""CREATE TABLE turns AS SELECT t.turn_id AS id, {TEXT} AS text, embedding::FLOAT[{DIM}] AS embedding
            FROM store.lethe.turns t JOIN store.lethe.states USING (turn_id)"""
    )
    connection.execute("DETACH store; SET hnsw_enable_experimental_persistence = true")
    seconds = {
        "fts": milliseconds(lambda: connection.execute("PRAGMA create_fts_index('turns', 'id', 'text')")) / 1e3,
        "vss": milliseconds(lambda: connection.execute("CREATE INDEX near ON turns USING HNSW (embedding) WITH (metric = 'cosine')")) / 1e3,
    }
    connection.execute("CHECKPOINT")
    connection.close()
    made.write_text(json.dumps(seconds))
    return file, seconds


def load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Loads an extension of DuckDB's from its package."""
    folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
    connection.load_extension(str(folder / f"{name}.duckdb_extension"))


# What is measured ---------------------------------------------------------------------------------


def ndcg(questions: list[tuple[str, Question, set[UUID]]], answers: dict[str, list[UUID]]) -> dict[str, float]:
    relevance = [ir_measures.Qrel(key, str(turn), 1) for key, _, evidence in questions for turn in evidence]
    ranking = [ScoredDoc(key, str(turn), -rank) for key, found in answers.items() for rank, turn in enumerate(found)]
    return {metric.query_id: metric.value for metric in ir_measures.iter_calc([nDCG @ K], relevance, ranking)}


def measure(
    store: Path, rivals: Path, extension: Path, saved: Path, questions: list[tuple[str, Question, set[UUID]]], exact: int
) -> dict[str, float]:
    """Times and quality of every method, question by question."""
    lethe = connect(store, extension, saved)
    rival = duckdb.connect(str(rivals))
    for name in ("fts", "vss"):
        load(rival, name)
    times: dict[str, list[float]] = {name: [] for name in (*OWN, *RIVALS)}
    answers: dict[str, dict[str, list[UUID]]] = {name: {} for name in (*times, "exact")}
    # Each method by itself, twice, the order turned the second time, so that none pays for the caches another one filled.
    methods = list(times)
    for name in [*methods, *reversed(methods)]:
        for number, (key, question, _) in enumerate([*questions[:WARM_UP], *questions]):
            if name in RIVALS:
                vector_of(lethe, question.text)
            found: list[UUID] = []
            taken = milliseconds(lambda: found.extend(ask(name, lethe, rival, question.text)))  # noqa: B023
            if number >= WARM_UP:
                times[name].append(taken)
                answers[name][key] = found
    figures = {f"{name}_p50_ms": median(values) for name, values in times.items()}
    figures |= {f"{name}_p95_ms": percentile(values, 0.95) for name, values in times.items()}
    figures |= {f"{name}_ndcg10": fmean(ndcg(questions, found).values()) for name, found in answers.items() if found}

    filters = {"filter_5_percent": "hash(turn_id) % 20 = 0", "filter_1_in_1000": "hash(turn_id) % 1000 = 0", "filter_one_row": f"turn_id = '{turn_id(0)}'"}
    for name, condition in filters.items():
        sql = "SELECT turn_id FROM memory_retrieve(?, 10, learn := false, filter := ?)"
        figures[f"{name}_p50_ms"] = median(
            milliseconds(lambda: lethe.execute(sql, [question.text, condition]).fetchall()) for _, question, _ in questions[:30]  # noqa: B023
        )
    texts = [question.text for _, question, _ in questions[:BATCH]]
    alone = sum(milliseconds(lambda: lethe.execute("FROM memory_retrieve(?, 10)", [text]).fetchall()) for text in texts)  # noqa: B023
    together = milliseconds(
        lambda: lethe.execute("SELECT unnest(memory_search(question, 10)) FROM (SELECT unnest(?) AS question)", [texts]).fetchall()
    )
    figures["batch_speedup"] = alone / together
    figures["added_visible_ms"], figures["added_encode_ms"] = added(lethe)

    some = questions[:: max(1, len(questions) // exact)][:exact]
    lethe.execute("SET lethe_candidates = 1_000_000")
    for key, question, _ in some:
        found = lethe.execute("SELECT turn_id FROM memory_retrieve(?, 10, learn := false)", [question.text]).fetchall()
        answers["exact"][key] = [row[0] for row in found]
    of_exact = ndcg(some, answers["exact"])
    of_lethe = ndcg(some, {key: answers["lethe"][key] for key, _, _ in some})
    figures["exact_questions"] = len(some)
    figures["ndcg10_loss_vs_exact"] = fmean(of_exact.values()) - fmean(of_lethe.values())
    figures["exact_top10_kept"] = fmean(
        len(set(answers["exact"][key]) & set(answers["lethe"][key])) / K for key, _, _ in some
    )
    lethe.close()
    rival.close()
    return figures


def ask(name: str, lethe: duckdb.DuckDBPyConnection, rival: duckdb.DuckDBPyConnection, question: str) -> list[UUID]:
    """The ten best by one method."""
    if name in OWN:
        found = lethe.execute(OWN[name], [question])
    else:
        sql = RIVALS[name]
        values = {"question": question} | ({"vector": vector_of(lethe, question)} if "$vector" in sql else {})
        found = rival.execute(sql, {key: value for key, value in values.items() if f"${key}" in sql})
    return [row[0] for row in found.fetchall()]


@functools.cache
def vector_of(lethe: duckdb.DuckDBPyConnection, question: str) -> list[float]:
    """The vector of a question that was learned from."""
    sql = "SELECT embedding FROM lethe.retrievals WHERE query = ? ORDER BY asked_at DESC LIMIT 1"
    [(vector,)] = lethe.execute(sql, [question]).fetchall()
    return vector


def added(connection: duckdb.DuckDBPyConnection) -> tuple[float, float]:
    """From the INSERT of one turn to the answer that holds it, and what encoding it and asking alone takes, median of nine."""
    seen, plain = [], []
    for number in range(9):
        plain.append(milliseconds(lambda: connection.execute("FROM memory_retrieve('where does the zebra sleep?', 1, learn := false)").fetchall()))
        content = f"The zebra sleeps in stable number {number}"
        started = time.perf_counter()
        connection.execute("INSERT INTO lethe.turns (session_id, content) VALUES ('zebra', ?)", [content])
        found = connection.execute("FROM memory_retrieve(?, 3, learn := false)", [content]).fetchall()
        seen.append((time.perf_counter() - started) * 1e3)
        if content not in {row[6] for row in found}:
            raise SystemExit(f"the turn that was just added is not among the answers: {found}")
    connection.execute("CALL memory_forget(session := 'zebra')")
    connection.execute("FROM memory_retrieve('zebra', 1, learn := false)").fetchall()
    return median(seen), median(plain)


FRESH = """
import json, sys, time, duckdb
store, extension, cache, questions = json.loads(sys.argv[1])
connection = duckdb.connect(store, config={"allow_unsigned_extensions": "true"})
started = time.perf_counter()
connection.load_extension(extension)
load_ms = (time.perf_counter() - started) * 1e3
connection.execute("SET enable_progress_bar = false")
connection.execute("SET GLOBAL lethe_cache_directory = $1", [cache])
connection.execute("FROM memory_retrieve(?, 10)", [questions[0]]).fetchall()
first = time.perf_counter() - started
unchanged = []
for _ in range(21):
    begun = time.perf_counter()
    connection.execute("FROM memory_sync()").fetchall()
    unchanged.append((time.perf_counter() - begun) * 1e3)
for question in questions:
    connection.execute("FROM memory_retrieve(?, 10)", [question]).fetchall()
[peak] = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps({"load_ms": load_ms, "first_answer_s": first, "unchanged_ms": sorted(unchanged)[10], "rss_mb": peak / 1024}))
"""


def fresh(store: Path, extension: Path, cache: Path, questions: list[str]) -> dict[str, float]:
    """What a new process needs, with an index that was saved: the median of three for the times, the most for the memory. And how
    long it takes to answer when the index has to be made from the tables."""
    given = json.dumps([str(store), str(extension), str(cache), questions])

    def run() -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", FRESH, given], check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    shutil.rmtree(cache, ignore_errors=True)
    without = run()["first_answer_s"]
    runs = [run() for _ in range(3)]
    figures = {name: median(run[name] for run in runs) for name in runs[0]}
    return figures | {"rss_mb": max(run["rss_mb"] for run in runs), "first_answer_without_cache_s": without}


def ingest_ratio(work: Path, extension: Path, conversations: list[Conversation], turns: int) -> float:
    """Turns a second of `memory_sync`, over those of the model alone on the same pieces, threads and batches: the median of three
    pairs."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "lethe/models/all-MiniLM-L6-v2"
    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    lines = corpus(conversations, 6000)[-turns:]
    sequences, before, session = [], [], None
    for line in lines:
        before = before if line.session == session else []
        session = line.session
        date = f" ({line.said_at.day} {line.said_at:%B, %Y})" if line.said_at else ""
        own = tokenizer.encode(f"{line.speaker}{date}: {line.content}", add_special_tokens=False).ids
        sequences.append([101, *before[-96:], *own, 102])
        before = before + tokenizer.encode(f"{line.speaker}: {line.content}", add_special_tokens=False).ids
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    model = onnxruntime.InferenceSession(str(home / "onnx/model.onnx"), options)

    def bare() -> None:
        ordered = sorted(sequences, key=len)
        for start in range(0, len(ordered), 8):
            batch = ordered[start : start + 8]
            ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
            mask = np.zeros_like(ids)
            for row, sequence in enumerate(batch):
                ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            model.run(None, {given.name: feeds[given.name] for given in model.get_inputs()})

    def lethe() -> float:
        file = work / "ingest.db"
        file.unlink(missing_ok=True)
        connection = connect(file, extension, work / "ingest-cache")
        connection.execute("CALL memory_create()")
        connection.execute("FROM memory_add('Opens the model', session := 'first')")
        insert(connection, lines)
        taken = milliseconds(lambda: connection.execute("FROM memory_sync()").fetchall())
        connection.close()
        file.unlink()
        return taken

    bare()
    pairs = [(milliseconds(bare), lethe()) for _ in range(3)]
    return median(alone / whole for alone, whole in pairs)


def bytes_per_turn(store: Path, cache: Path, size: int, extension: Path) -> float:
    connection = connect(store, extension, cache)
    [(index,)] = connection.execute("SELECT index_bytes FROM memory_stats()").fetchall()
    connection.close()
    return (store.stat().st_size + (index or 0)) / size


# The report ---------------------------------------------------------------------------------------


def plot(figures: dict[int, dict[str, float]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted(figures)
    for name, unit in (("p50_ms", "milliseconds a question, p50"), ("ndcg10", "NDCG@10")):
        figure, axes = plt.subplots(figsize=(6, 4))
        for method in ("lethe", *RIVALS):
            axes.plot(sizes, [figures[size][f"{method}_{name}"] for size in sizes], marker="o", label=method)
        axes.set(xscale="log", yscale="log" if name == "p50_ms" else "linear", xlabel="turns", ylabel=unit)
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"scale_{name}.svg", metadata={"Date": None})
        plt.close(figure)


def report(size: int, figures: dict[str, float]) -> Iterator[str]:
    short = f"{size // 1_000_000}m" if size >= 1_000_000 else f"{size // 1000}k"
    named = {
        "p50_ms": figures["lethe_p50_ms"],
        "p95_ms": figures["lethe_p95_ms"],
        "speedup_vs_fts": figures["fts_p50_ms"] / figures["lethe_p50_ms"],
        "speedup_vs_fts_vss": figures["fts_vss_p50_ms"] / figures["lethe_p50_ms"],
        "ndcg10": figures["lethe_ndcg10"],
        "ndcg10_fts_vss": figures["fts_vss_ndcg10"],
    }
    for name, value in (named | figures).items():
        yield f"RESULT scale.{short}.{name} {value:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--extension", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--encode", type=int, default=200_000, help="up to so many turns every turn is encoded")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--exact", type=int, default=40, help="questions that are also answered by the exact path")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/lethe/scale")
    parser.add_argument("--out", type=Path, help="folder for scale.json and the plots")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    extension, cache = given.extension.resolve(), given.work / "cache"
    conversations = load_locomo(given.data)
    every = [(f"{number}", question, evidence) for number, (question, evidence) in enumerate(relevant(conversations))]
    questions = every[:: max(1, len(every) // given.questions)][: given.questions]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, DuckDB {duckdb.__version__}, {len(questions)} questions", flush=True)

    ratio = ingest_ratio(given.work, extension, conversations, 512)
    figures: dict[int, dict[str, float]] = {}
    smaller = None
    for size in sorted(given.sizes):
        store = make_store(given.work, extension, conversations, size, given.encode, smaller)
        rivals, seconds = make_rivals(given.work, store, size)
        figures[size] = fresh(store, extension, cache, [question.text for _, question, _ in questions])
        figures[size] |= measure(store, rivals, extension, cache, questions, given.exact)
        figures[size] |= {f"{name}_build_s": value for name, value in seconds.items()}
        figures[size] |= {"bytes_per_turn": bytes_per_turn(store, cache, size, extension), "ingest_ratio": ratio}
        figures[size]["rivals_bytes_per_turn"] = rivals.stat().st_size / size
        print("\n".join(report(size, figures[size])), flush=True)
        if size <= given.encode:
            smaller = store
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "scale.json").write_text(json.dumps(figures, indent=1) + "\n")
        plot(figures, given.out)


if __name__ == "__main__":
    main()
