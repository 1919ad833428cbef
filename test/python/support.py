"""What the tests and the processes they start share: how to open a store, what is said in it, how its states are read."""

import functools
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import uuid
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
EXTENSION = REPOSITORY / os.environ.get("LETHE_EXTENSION", "build/lethe.duckdb_extension")
DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "lethe"
MODELS = DATA / "models"
RUNTIME = DATA / "onnxruntime" / "libonnxruntime.so"
DIM = 384

#: Generous: the machine may be busy. A hang is what it is there for.
TIMEOUT = 240


def connect(path=":memory:", read_only=False):
    """A connection that has loaded the extension. One thread for the models: the texts are short."""
    connection = duckdb.connect(str(path), read_only=read_only, config={"allow_unsigned_extensions": True})
    connection.load_extension(str(EXTENSION))
    connection.execute("SET GLOBAL lethe_threads = 1; SET enable_progress_bar = false")
    return connection


def rows(connection, sql, parameters=None):
    """The rows of a query as dictionaries."""
    cursor = connection.execute(sql, parameters) if parameters else connection.execute(sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor.fetchall()]


def one(connection, sql, parameters=None):
    """The only row of a query, as a dictionary."""
    found = rows(connection, sql, parameters)
    assert len(found) == 1, found
    return found[0]


def value(connection, sql, parameters=None):
    """The only value of a query."""
    (single,) = one(connection, sql, parameters).values()
    return single


def contents(connection, question, k=3, options="learn := false"):
    """What a retrieval answers, best first."""
    found = rows(connection, f"FROM memory_retrieve(?, ?{', ' + options if options else ''})", [question, k])
    return [row["content"] for row in found]


def count(connection, table, store=None):
    """How many rows a table of a store has."""
    return value(connection, f"SELECT count(*) FROM {store + '.' if store else ''}lethe.{table}")


# Other processes ----------------------------------------------------------------------------------


def environment(**changes):
    env = {**os.environ, "PYTHONPATH": str(HERE), "LETHE_EXTENSION": str(EXTENSION), "PYTHONUNBUFFERED": "1"}
    for name, text in changes.items():
        env.pop(name, None)
        if text is not None:
            env[name] = str(text)
    return env


PRELUDE = "import json, sys, time\nfrom support import *\nargs = json.loads(sys.argv[1])\n"


def start(code, *args, env=None):
    """Starts `code` in another process. It sees all of this module, and `args`."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), json.dumps([str(arg) for arg in args])]
    return subprocess.Popen(
        command, env=environment(**(env or {})), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(code, *args, env=None):
    """Runs `code` in another process; returns what it told. A crash or a hang fails the test."""
    process = start(code, *args, env=env)
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hung: {process.communicate()}") from None
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["told"] if lines else None


def tell(what):
    """What another process has to say to `run`; ids and dates as text."""
    print(json.dumps({"told": what}, default=str), flush=True)


def kill(process):
    """kill -9: nothing is flushed, nothing is tidied up."""
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    process.stderr.close()


# What is said -------------------------------------------------------------------------------------

#: A question, and the only turn that answers it. Three sessions of four.
FACTS = [
    ("s1", "Ana", "The tomatoes went in on the third of May", "when were the tomatoes planted?"),
    ("s1", "Ben", "My sister plays the cello in an orchestra", "who plays the cello?"),
    ("s1", "Ana", "The dentist moved my appointment to Friday", "when is the dentist appointment?"),
    ("s1", "Ben", "We painted the kitchen wall light blue", "what colour is the kitchen wall?"),
    ("s2", "Ana", "The train to Lisbon leaves at seven", "when does the train to Lisbon leave?"),
    ("s2", "Cem", "I am allergic to peanuts", "who has an allergy to peanuts?"),
    ("s2", "Ana", "Grandmother was born in Trieste", "where was grandmother born?"),
    ("s2", "Cem", "The postgres pool has forty connections", "how many postgres connections are in the pool?"),
    ("s3", "Ben", "Our dog is called Biscuit", "what is the name of the dog?"),
    ("s3", "Dia", "The bicycle needs a new chain", "what does the bicycle need?"),
    ("s3", "Ben", "I read a novel about a lighthouse keeper", "which novel about a lighthouse did he read?"),
    ("s3", "Dia", "The wedding will be in September", "when is the wedding?"),
]
START = datetime(2024, 3, 1, 9, 0)


#: Nothing of what a conversation adds: the score is the token evidence alone.
EVIDENCE_ALONE = "; ".join(
    f"SET lethe_{weight} = 0"
    for weight in ("answer_weight", "neighbour_weight", "asking_malus", "speaker_bonus", "month_bonus")
)


def turn_id(number):
    """The same id in every run. Ids grow with their numbers, as uuidv7 does."""
    return str(uuid.UUID(int=(0x018E << 112) | (7 << 76) | (2 << 62) | number))


def insert(connection, turns, store=None):
    """Plain SQL, one statement: turns are (turn_id, session_id, speaker, said_at, content)."""
    places = ", ".join(["(?, ?, ?, ?, ?)"] * len(turns))
    table = f"{store + '.' if store else ''}lethe.turns"
    sql = f"INSERT INTO {table} (turn_id, session_id, speaker, said_at, content) VALUES {places}"
    connection.execute(sql, [field for turn in turns for field in turn])


def facts(sessions=("s1", "s2", "s3")):
    return [
        (turn_id(number), session, speaker, START + timedelta(hours=number), content)
        for number, (session, speaker, content, _) in enumerate(FACTS)
        if session in sessions
    ]


def chatter(n, seed, sessions=3, words=(3, 14)):
    """Turns of made-up small talk, the same for the same seed; about one in twelve lacks something."""
    rng = random.Random(seed)
    who = ["Ana", "Ben", "Cem", "Dia"]
    vocabulary = (
        "we saw the old bridge near my house yesterday and it rained again so nobody went swimming although Tom wanted "
        "apples from Jürgen's unbelievably overpriced greengrocer before Tuesday's rehearsal of Verdi 1851 naïve "
        "postgres connections timed out 37 times; she laughed: isn't that photosynthesis? 東京 was cold, ok 🙂 "
        "grandmother's antidisestablishmentarianism speech lasted four hours"
    ).split()
    turns = []
    for number in range(n):
        text = " ".join(rng.choice(vocabulary) for _ in range(rng.randint(*words)))
        session = None if rng.random() < 0.04 else f"c{rng.randrange(sessions)}"
        speaker = None if rng.random() < 0.04 else rng.choice(who)
        said_at = None if rng.random() < 0.04 else START + timedelta(minutes=90 * number)
        turns.append((turn_id(number), session, speaker, said_at, text))
    return turns


# Questions ----------------------------------------------------------------------------------------


@functools.cache
def tokenizer():
    return Tokenizer.from_file(str(MODELS / "all-MiniLM-L6-v2" / "tokenizer.json"))


def likeness(connection, a, b, cosine, shared=0.8):
    """How much two questions that a store keeps are alike (src/rank/likeness.rs), from its tables."""
    embeddings = dict(connection.execute("SELECT query, any_value(embedding) FROM lethe.retrievals GROUP BY query").fetchall())
    pieces = [set(tokenizer().encode(question, add_special_tokens=False).ids) for question in (a, b)]
    turns = [set(ids) for (ids,) in connection.execute("SELECT token_ids FROM lethe.states").fetchall()]

    def weight(some):
        frequencies = [sum(piece in turn for turn in turns) for piece in some]
        return sum(math.log(1 + (len(turns) - df + 0.5) / (df + 0.5)) for df in frequencies)

    def ramp(x, threshold):
        return min(1.0, max(0.0, (x - threshold) / (1 - threshold)))

    in_common = weight(pieces[0] & pieces[1]) / min(map(weight, pieces))
    return ramp(float(np.dot(embeddings[a], embeddings[b])), cosine) * ramp(in_common, shared)


# States -------------------------------------------------------------------------------------------


def decode(codes, scales, dim, bits):
    """Token states from their codes (src/rank/codes.rs): x = code · scale, signed; one little-endian f32 scale a token;
    two 4-bit values share a byte, the even one in the low half."""
    scales = np.frombuffer(scales, "<f4")
    if bits == 8:
        values = np.frombuffer(codes, np.int8).reshape(len(scales), dim)
    else:
        packed = np.frombuffer(codes, np.uint8).reshape(len(scales), (dim + 1) // 2)
        halves = np.stack([packed & 15, packed >> 4], -1).astype(np.int16)
        values = np.where(halves > 7, halves - 16, halves).reshape(len(scales), -1)[:, :dim]
    return values.astype(np.float32) * scales[:, None]


def states(connection, store=None):
    """The table `states` by turn, decoded. A turn with two rows is an error."""
    prefix = f"{store}." if store else ""
    bits = value(
        connection,
        f"SELECT code_bits FROM {prefix}lethe.encoders JOIN {prefix}lethe.store "
        "ON key = 'encoder_id' AND value = encoder_id",
    )
    found = {}
    for row in rows(connection, f"FROM {prefix}lethe.states"):
        assert row["turn_id"] not in found, f"two states of {row['turn_id']}"
        row["embedding"] = np.array(row["embedding"], np.float32)
        row["states"] = decode(row["codes"], row["scales"], len(row["embedding"]), bits)
        found[row["turn_id"]] = row
    return found


def assert_same_states(got, want):
    """The same turns, computed from the same input, to the same states. Batches pad differently, so a few codes may round
    the other way: states are compared by their cosine."""
    assert set(got) == set(want)
    for turn, expected in want.items():
        actual = got[turn]
        assert actual["content_hash"] == expected["content_hash"], turn
        assert actual["encoder_id"] == expected["encoder_id"]
        assert actual["token_ids"] == expected["token_ids"], turn
        np.testing.assert_allclose(actual["embedding"], expected["embedding"], atol=1e-5)
        if not len(expected["states"]):
            continue
        a, b = actual["states"], expected["states"]
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        assert cosines.min() > 0.999, (turn, cosines.min())
        np.testing.assert_allclose(
            np.frombuffer(actual["scales"], "<f4"), np.frombuffer(expected["scales"], "<f4"), rtol=1e-3
        )


def assert_same_answers(got, want, tolerance=1e-3):
    """The same turns with the same scores, in the same order but for scores that are closer than the tolerance."""
    assert {row["turn_id"] for row in got} == {row["turn_id"] for row in want}
    expected = {row["turn_id"]: row["score"] for row in want}
    scores = [expected[row["turn_id"]] for row in got]
    np.testing.assert_allclose([row["score"] for row in got], scores, atol=tolerance)
    assert all(a > b - 2 * tolerance for a, b in zip(scores, scores[1:])), scores
