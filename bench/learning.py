#!/usr/bin/env python3
"""What learning brings on questions it has not seen, asked through SQL.

    python bench/learning.py --data locomo10.json --extension build/lethe.duckdb_extension
    python bench/learning.py --data … --extension … --protocols forgetting --splits 3 --step 2

Protocols over LoCoMo (bench/protocols.py), each against the same pipeline without learning, on the same questions, pair by pair:

asking      every conversation is a store, half of the questions are asked. Then are asked: paraphrases of these questions, made
            by rule; of the other questions, those that are answered by one of the same turns (related), and all the rest
            (unrelated).
feedback    the same, and the turns that answer each question are called used.
strangers   everything in one store; the questions about conversations 1 to 5 are asked, or asked and told the answers of, and judged are
            those about 6 to 10.
stream      everything in one store, 2,000 questions one after another: half of them asked for the first time, half asked before in
            other words; of every fifth answer it is said which turns were used and which were no help.
adapter     conversations 1 to 5 are one store, in which half of the questions get feedback; memory_adapt trains there, from the identity
            and from the adapter that comes with the encoder, and its row of lethe.adapters is copied to the stores of conversations 6 to
            10, whose questions are asked before and after.
forgetting  the lethe paper's: everything in one store, pools of the best 30 reranked. Half of the questions are asked while the
            store learns, for each rule, K and unit of the penalty. Then are asked: the questions it learned from, which is how the
            paper judges, their paraphrases, and the others; and all of them with the whole union reranked and nothing learned. The
            last split learns from conversations 1 to 5 and is judged on 6 to 10.
watched     the same with the paper's penalty, as the questions come one after another: judged on the others, with the watch over harm off
            and on.

Questions are split in halves at random, as often as --splits says, with the seeds 1, 2, …; a question that several splits ask
counts once, with the mean of its scores.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

import matplotlib

import protocols
from datasets import load_locomo, sample
from pairs import Comparison
from stores import open_duckdb

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def report(protocol: str, results: dict[str, Comparison]) -> None:
    print(f"\n{protocol}")
    for name, comparison in results.items():
        print(f"  {name:<28} {comparison.line()}", flush=True)


def plot(path: Path, protocol: str, results: dict[str, Comparison]) -> None:
    """Every gain with its interval, one below the other."""
    matplotlib.rcParams["svg.hashsalt"] = "lethe"
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.22 * len(results)), layout="constrained")
    for row, comparison in enumerate(results.values()):
        gain = comparison.gain
        axes.plot([gain.low, gain.high], [row, row], color="tab:blue")
        axes.plot([gain.mean], [row], "o", color="tab:blue", markersize=4)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(results)), list(results), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("gain in NDCG@10, 95 % interval")
    axes.set_title(protocol)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="locomo10.json")
    parser.add_argument("--extension", type=Path, required=True)
    parser.add_argument("--protocols", default="asking,feedback,strangers,stream,adapter", help=f"of {', '.join(protocols.PROTOCOLS)}")
    parser.add_argument("--splits", type=int, default=3, help="how often the questions are split in halves")
    parser.add_argument("--step", type=int, default=1, help="ask every n-th question only")
    parser.add_argument("--out", type=Path, default=Path("build/learning"), help="for the JSON and the plots")
    arguments = parser.parse_args()
    wanted = arguments.protocols.split(",")
    if unknown := [name for name in wanted if name not in protocols.PROTOCOLS]:
        raise SystemExit(f"--protocols: {unknown[0]!r}; allowed: {', '.join(protocols.PROTOCOLS)}")
    if arguments.splits < 1 or arguments.step < 1:
        raise SystemExit("--splits and --step: a whole number from 1 on")
    conversations = list(sample(load_locomo(arguments.data), arguments.step))
    everything: dict[str, dict[str, Comparison]] = {}
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="lethe-learning-") as folder, open_duckdb(arguments.extension, None) as connection:
            connection.execute("SET lethe_retrievals_kept = 1000000")
            lab = protocols.Lab(connection, Path(folder), conversations, arguments.splits)
            everything[name] = protocols.PROTOCOLS[name].run(lab)
        report(name, everything[name])
        plot(arguments.out / f"{name}.svg", name, everything[name])
        results = {one: asdict(result) for one, result in everything[name].items()}
        (arguments.out / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print()
    for protocol, results in everything.items():
        headline = results[protocols.PROTOCOLS[protocol].headline]
        for name, comparison in [("", headline), *results.items()]:
            key = ".".join(filter(None, [protocol, re.sub(r"[^a-z0-9]+", "_", name.lower())]))
            print(f"RESULT learning.{key}.ndcg10_gain {comparison.gain.mean:.4f}")
            print(f"RESULT learning.{key}.p {comparison.gain.p:.4f}")


if __name__ == "__main__":
    main()
