#!/usr/bin/env python3
"""Checks the sample corpus in this folder. Standard library only.

    python3 check.py            prints a small table; exits 1 if anything is wrong
"""
import collections
import datetime
import itertools
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from words import content_words  # noqa: E402

KINDS = ["single_hop", "multi_hop", "temporal", "update", "preference", "open", "adversarial", "other_language"]
SPEAKERS = {"home": {"Ana", "Tomás", "Grandma Ilse", "assistant"}, "work": {"Ana", "Priya", "Marek", "assistant"}}
TURNS = {"home": (200, 260), "work": (45, 60)}
SESSIONS = {"home": (14, 18), "work": (5, 5)}
QUESTIONS = (55, 75)
MAX_OVERLAP = 0.60  # of a question's content words, found in one evidence turn
MAX_ALIKE = 0.50  # Jaccard of content words, two paraphrases in one group
NEAR_DUPLICATE = 0.50  # content words of the shorter of two turns in different sessions, found in the other
TURN_KEYS = ["id", "session_id", "speaker", "said_at", "content"]
QUESTION_KEYS = {"id", "question", "evidence", "kind", "store", "answer"}
OPTIONAL_KEYS = {"group", "outdated"}

problems = []


def check(ok, message):
    if not ok:
        problems.append(message)
    return ok


def jaccard(a, b):
    return len(a & b) / len(a | b) if a | b else 0.0


def read(name):
    rows = []
    text = (HERE / name).read_text(encoding="utf-8")
    check(text.endswith("\n"), f"{name}: the last line has no line end")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            check(False, f"{name}:{number}: not JSON: {error}")
            continue
        if check(isinstance(row, dict), f"{name}:{number}: not an object"):
            rows.append(row)
    return rows


def check_turns(store, rows):
    sessions, last_time, last_session, counter = [], None, None, 0
    for row in rows:
        where = f"{store}.jsonl {row.get('id')}"
        if not check(list(row) == TURN_KEYS and all(isinstance(v, str) and v.strip() for v in row.values()),
                     f"{where}: needs exactly {TURN_KEYS}, non-empty strings, in this order"):
            continue
        if row["session_id"] != last_session:
            check(row["session_id"] not in sessions, f"{where}: session comes back after another one")
            check(not sessions or row["session_id"] > sessions[-1], f"{where}: sessions out of order")
            sessions.append(row["session_id"])
            last_session, counter = row["session_id"], 0
        counter += 1
        check(row["id"] == f"{row['session_id']}-{counter:03d}", f"{where}: expected number {counter:03d}")
        check(row["session_id"][0] == store[0], f"{where}: the id belongs to another file")
        check(row["speaker"] in SPEAKERS[store], f"{where}: speaker {row['speaker']!r}")
        check(row["content"] == row["content"].strip(), f"{where}: spaces around the content")
        try:
            check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", row["said_at"]) is not None, f"{where}: said_at form")
            when = datetime.datetime.fromisoformat(row["said_at"])
        except ValueError:
            check(False, f"{where}: said_at {row['said_at']!r}")
            continue
        check(when.year == 2026 and when.month <= 10, f"{where}: said_at outside January to October 2026")
        check(last_time is None or when > last_time, f"{where}: said_at does not increase")
        last_time = when
    low, high = TURNS[store]
    check(low <= len(rows) <= high, f"{store}.jsonl: {len(rows)} turns, wanted {low} to {high}")
    low, high = SESSIONS[store]
    check(low <= len(sessions) <= high, f"{store}.jsonl: {len(sessions)} sessions, wanted {low} to {high}")
    return sessions


def check_questions(questions, turns, store_of):
    seen = set()
    for number, q in enumerate(questions, 1):
        where = f"questions.jsonl q{number:02d}"
        if not check(QUESTION_KEYS <= set(q) <= QUESTION_KEYS | OPTIONAL_KEYS, f"{where}: keys {sorted(q)}"):
            continue
        check(q["id"] == f"q{number:02d}", f"{where}: id is {q['id']!r}")
        check(q["question"] not in seen, f"{where}: asked twice")
        seen.add(q["question"])
        check(q["kind"] in KINDS, f"{where}: kind {q['kind']!r}")
        check(q["store"] in ("home", "work", "both"), f"{where}: store {q['store']!r}")
        check(q["answer"].strip() != "", f"{where}: no answer")
        outdated = q.get("outdated", [])
        named = q["evidence"] + outdated
        check(len(q["evidence"]) > 0, f"{where}: no evidence")
        check(len(named) == len(set(named)), f"{where}: a turn is named twice")
        missing = [t for t in named if t not in turns]
        if not check(not missing, f"{where}: no such turn {missing}"):
            continue
        stores = {store_of[t] for t in q["evidence"]}
        wanted = {"home", "work"} if q["store"] == "both" else {q["store"]}
        check(stores == wanted, f"{where}: evidence is in {sorted(stores)}, store says {q['store']}")
        newest = max(turns[t]["said_at"] for t in q["evidence"])
        check(all(turns[t]["said_at"] < newest for t in outdated), f"{where}: an outdated turn is newer than the evidence")
        if q["kind"] == "update":
            check(turns[q["evidence"][0]]["said_at"] == newest, f"{where}: the newest evidence must come first")
            check(len(outdated) > 0, f"{where}: an update needs what it replaced in `outdated`")
        words = content_words(q["question"])
        check(len(words) > 0, f"{where}: no content words")
        for t in q["evidence"]:
            share = len(words & content_words(turns[t]["content"])) / max(1, len(words))
            overlaps.append(share)
            check(share <= MAX_OVERLAP, f"{where}: {share:.0%} of its content words stand in {t}")


def check_groups(questions):
    groups = collections.defaultdict(list)
    for q in questions:
        if "group" in q:
            groups[q["group"]].append(q)
    check(len(groups) >= 5, f"{len(groups)} groups of paraphrases, wanted at least 5")
    for name, members in groups.items():
        check(2 <= len(members) <= 3, f"group {name}: {len(members)} questions, wanted 2 or 3")
        for a, b in itertools.combinations(members, 2):
            check(a["evidence"] == b["evidence"] and a.get("outdated") == b.get("outdated"),
                  f"group {name}: {a['id']} and {b['id']} do not have the same evidence")
            alike = jaccard(content_words(a["question"]), content_words(b["question"]))
            check(alike <= MAX_ALIKE, f"group {name}: {a['id']} and {b['id']} are {alike:.0%} alike")
    return groups


def families(turns):
    """Turns said again in another session in almost the same words, as connected sets."""
    words = {t: content_words(row["content"]) for t, row in turns.items()}
    long = [t for t in turns if len(words[t]) >= 4]
    parent = {t: t for t in long}

    def root(t):
        while parent[t] != t:
            t = parent[t]
        return t

    for a, b in itertools.combinations(long, 2):
        if turns[a]["session_id"] == turns[b]["session_id"]:
            continue
        shared = len(words[a] & words[b])
        shorter, longer = sorted((len(words[a]), len(words[b])))
        if shared >= 3 and shared / shorter >= NEAR_DUPLICATE and shorter / longer >= 0.3:
            parent[root(b)] = root(a)
    sets = collections.defaultdict(list)
    for t in long:
        sets[root(t)].append(t)
    return [members for members in sets.values() if len(members) > 1]


rows = {store: read(f"{store}.jsonl") for store in ("home", "work")}
questions = read("questions.jsonl")
overlaps = []
sessions = {store: check_turns(store, rows[store]) for store in rows}
turns, store_of = {}, {}
for store in rows:
    for row in rows[store]:
        check(row.get("id") not in turns, f"{row.get('id')}: id used twice")
        turns[row.get("id")], store_of[row.get("id")] = row, store
if not problems:
    check_questions(questions, turns, store_of)
if problems:
    print("\n".join(problems))
    sys.exit(1)

groups = check_groups(questions)
low, high = QUESTIONS
check(low <= len(questions) <= high, f"{len(questions)} questions, wanted {low} to {high}")
by_kind = collections.Counter(q["kind"] for q in questions)
by_store = collections.Counter(q["store"] for q in questions)
for kind in KINDS:
    check(by_kind[kind] >= 4, f"{by_kind[kind]} questions of kind {kind}, wanted at least 4")
check(by_store["both"] >= 4, f"{by_store['both']} questions over both files, wanted at least 4")
evidence = {t for q in questions for t in q["evidence"]}
used = {turns[t]["session_id"] for t in evidence}
for store in sessions:
    for session in sessions[store]:
        check(session in used, f"session {session} answers no question")

lengths = [len(row["content"].split()) for row in turns.values()]
middle = sum(8 <= n <= 40 for n in lengths) / len(lengths)
everything = "\n".join(row["content"] for row in rows["home"])
check(middle >= 0.6, f"only {middle:.0%} of the turns have 8 to 40 words")
check(sum(n >= 80 for n in lengths) >= 3, "fewer than three turns of 80 words or more")
check(sum(n == 1 for n in lengths) >= 3, "fewer than three turns of one word")
check(re.search(r"[\u3040-\u30ff]", everything) is not None, "no Japanese turn")
check(re.search(r"[\U0001f300-\U0001faff]", everything) is not None, "no emoji")
check("https://" in everything, "no link")

repeated = families(turns)
partly = [f for f in repeated if any(t in evidence for t in f)]
chronic = [f for f in repeated if not any(t in evidence for t in f)]
check(len(partly) >= 3, f"{len(partly)} families of near-duplicates with an answer among them, wanted at least 3")
check(len(chronic) >= 3, f"{len(chronic)} families of chronic distractors, wanted at least 3")
for family in partly:
    answers = [t for t in family if t in evidence]
    check(len(answers) < len(family), f"near-duplicates {family}: all of them are evidence")

print(f"{'file':<18}{'lines':>6}{'sessions':>10}  words per line (median, longest)")
for store in rows:
    n = sorted(len(row["content"].split()) for row in rows[store])
    print(f"{store + '.jsonl':<18}{len(n):>6}{len(sessions[store]):>10}  {n[len(n) // 2]}, {n[-1]}")
print(f"{'questions.jsonl':<18}{len(questions):>6}{'':>10}  {len(groups)} groups of paraphrases; "
      f"stores: {', '.join(f'{s} {by_store[s]}' for s in ('home', 'work', 'both'))}")
print()
print(f"{'kind':<16}{'questions':>10}{'evidence turns':>16}")
for kind in KINDS:
    print(f"{kind:<16}{by_kind[kind]:>10}{sum(len(q['evidence']) for q in questions if q['kind'] == kind):>16}")
print()
print(f"words shared with the evidence: mean {sum(overlaps) / len(overlaps):.0%}, most {max(overlaps):.0%}"
      f" (limit {MAX_OVERLAP:.0%})")
print("near-duplicates, the evidence starred:")
for family in partly:
    print("  " + "  ".join(t + ("*" if t in evidence else "") for t in family))
print("chronic distractors, evidence for nothing:")
for family in chronic:
    print("  " + "  ".join(family))
if problems:
    print()
    print("\n".join(problems))
    print(f"FAILED: {len(problems)} problem(s)")
    sys.exit(1)
print("all checks passed")
