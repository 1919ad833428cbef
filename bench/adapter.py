#!/usr/bin/env python3
"""Makes the query adapter that comes with the default encoder, out of the training corpus, through SQL.

    python bench/adapter.py --extension build/lethe.duckdb_extension --out extension_config/lethe_adapter.safetensors

All histories of bench/corpus/training go into one store, every question is asked, the turns that answer it are given as feedback,
and memory_adapt trains on them, starting from the identity. What it trained is read from the table and written in the
format of safetensors. The same corpus and encoder give the same file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import duckdb
import numpy as np
from safetensors.numpy import save_file

from datasets import Conversation, literal, load_histories, merge
from stores import fill, open_duckdb, turn_id

CORPUS = Path(__file__).resolve().parent / "corpus" / "training"


def teach(connection: duckdb.DuckDBPyConnection, corpus: Conversation) -> None:
    """Asks every question and says which turns answer it."""
    ids = {turn.id: turn_id(place) for place, turn in enumerate(corpus.turns)}
    asked = [(question.text, [ids[turn] for turn in sorted(question.evidence)]) for question in corpus.questions]
    connection.execute("CREATE TEMP TABLE asked (question VARCHAR, used UUID[])")
    connection.executemany("INSERT INTO asked VALUES (?, ?)", asked)
    connection.execute("SET lethe_learn = true")
    for retrieval, used in connection.execute("SELECT memory_search(question, 1)[1].retrieval_id, used FROM asked").fetchall():
        turns = ", ".join(literal(str(turn)) for turn in used)
        connection.execute(f"CALL memory_feedback({literal(str(retrieval))}, used := [{turns}])")


def save(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    rank, a, b = connection.execute("SELECT rank, a, b FROM lethe.adapters").fetchall()[0]
    matrices = {"a": np.array(a, np.float32).reshape(rank, -1), "b": np.array(b, np.float32).reshape(-1, rank)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(matrices, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extension", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    corpus = merge("corpus", load_histories(arguments.corpus))
    with tempfile.TemporaryDirectory() as folder, open_duckdb(arguments.extension, None) as connection:
        connection.execute("SET lethe_adapter = 'none'; SET lethe_retrievals_kept = 1000000")
        fill(connection, Path(folder, "corpus.db"), corpus, "")
        teach(connection, corpus)
        report = connection.execute("FROM memory_adapt()")
        print(", ".join(f"{column[0]} {value}" for column, value in zip(report.description, report.fetchall()[0])))
        save(connection, arguments.out)


if __name__ == "__main__":
    main()
