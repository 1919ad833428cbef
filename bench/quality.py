#!/usr/bin/env python3
"""How well lethe finds what answers a question, on a data set of your choice, through SQL as a user would.

    python bench/quality.py --data locomo10.json --extension build/lethe.duckdb_extension
    python bench/quality.py --data longmemeval_s.json --extension … --protocol one_store --step 5
    python bench/quality.py --data locomo10.json --extension … --compare lethe_answer_weight=0

Reads LoCoMo, LongMemEval, folders in BEIR's layout and JSON lines (bench/datasets.py tells how each looks). Each conversation
becomes a store of its own (`own`, the LMEB protocol), or all of them one (`one_store`); every question is asked with
memory_search(question, 60), and nothing is learned. NDCG, recall, MRR and hits are told for each kind of question, as `micro`
(every question but the adversarial ones) and as `macro` (the kinds' mean), with 95 % bootstrap intervals; then how often the
first answer was right, stale, or from the wrong place. Abstention questions, whose answer was never said, count there only.

With `--compare`, every question is asked once more with other settings: a gain is what `--settings` are better by, pair by
pair, and p how often signs by the toss of a coin make as large a one. Stores are kept in `--cache`, so a run that was stopped
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
import numpy as np

from datasets import FORMATS, Conversation, guess_format, load, merge, sample, set_name
from evaluation import MEASURES, Judged, judge, threshold, with_abstention
from significance import Estimate, all_alike, differences, estimates, scopes
from stores import Settings, Shelf, ask, open_duckdb, set_all

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

CACHE = Path("~/.cache/lethe/quality").expanduser()
RESULTS = {"macro_ndcg10": "ndcg@10", "macro_recall10": "recall@10"}
BEHAVIOURS = ["exact_episode", "sibling_confusion", "wrong_family", "stale_fact", "abstain"]

Table = dict[str, list[Estimate]]
"""For each scope an estimate for each of MEASURES."""


@dataclass(frozen=True)
class Run:
    """All questions, asked with some settings."""

    settings: Settings
    judged: list[Judged]
    table: Table
    behaviours: dict[str, Estimate]
    counts: dict[str, int]
    """How many questions each scope and each behaviour is about."""
    threshold: float | None


@dataclass(frozen=True)
class Gain:
    """What one run is better by than another."""

    table: Table
    behaviours: dict[str, Estimate]


def protocol_of(name: str, conversations: Iterable[Conversation], protocol: str) -> Iterable[Conversation]:
    return [merge(name, conversations)] if protocol == "one_store" else conversations


def ask_all(
    shelf: Shelf, conversations: Iterable[Conversation], variants: list[Settings], say: Callable[[str], None]
) -> list[Run]:
    """Asks every question of its store with each of the settings."""
    names = dict.fromkeys(name for settings in variants for name in settings)
    for settings in variants:
        # What is wrong with one is told before any store is made.
        set_all(shelf.connection, settings, names)
    judged: list[list[Judged]] = [[] for _ in variants]
    for number, conversation in enumerate(conversations, 1):
        title = f"store {number}, {conversation.name}: {len(conversation.turns)} turns"
        say(title)
        with shelf.opened(conversation):
            for settings, mine in zip(variants, judged):
                set_all(shelf.connection, settings, names)
                answers = ask(shelf.connection, conversation.questions, lambda done, title=title: say(f"{title}, {done} asked"))
                mine += judge(conversation, conversation.questions, answers)
    return [summarise(settings, with_abstention(mine)) for settings, mine in zip(variants, judged)]


def summarise(settings: Settings, judged: list[Judged]) -> Run:
    ranked = [one for one in judged if one.measures]
    if not ranked:
        raise SystemExit("no question with evidence: nothing to measure")
    kinds = [one.kind for one in ranked]
    wanted = scopes(kinds)
    counts = {scope: sum(kind in weights for kind in kinds) for scope, weights in wanted.items()}
    behaviours: dict[str, Estimate] = {}
    for name, mine in by_behaviour(judged):
        shown = np.array([[one.behaviours[name]] for one in mine], float)
        kinds_shown = [one.kind for one in mine]
        behaviours[name] = estimates(kinds_shown, shown, all_alike(kinds_shown))["all"][0]
        counts[name] = len(mine)
    return Run(settings, judged, estimates(kinds, scores(ranked), wanted), behaviours, counts, threshold(judged))


def scores(ranked: list[Judged]) -> np.ndarray:
    return np.array([[one.measures[name] for name in MEASURES] for one in ranked])


def by_behaviour(judged: list[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    """Each behaviour that some question can show, and the questions that can."""
    for name in BEHAVIOURS:
        if mine := [one for one in judged if name in one.behaviours]:
            yield name, mine


def gain(run: Run, other: Run) -> Gain:
    """Pair by pair: both asked the same questions in the same order."""
    pairs = [(one, against) for one, against in zip(run.judged, other.judged, strict=True) if one.measures]
    kinds = [one.kind for one, _ in pairs]
    gains = scores([one for one, _ in pairs]) - scores([against for _, against in pairs])
    against = {one.id: one for one in other.judged}
    behaviours: dict[str, Estimate] = {}
    for name, mine in by_behaviour(run.judged):
        changes = np.array([[float(one.behaviours[name]) - against[one.id].behaviours[name]] for one in mine])
        kinds_shown = [one.kind for one in mine]
        behaviours[name] = differences(kinds_shown, changes, all_alike(kinds_shown))["all"][0]
    return Gain(differences(kinds, gains, scopes(kinds)), behaviours)


# --- What is told ---------------------------------------------------------------------------------


def print_run(run: Run) -> None:
    print(f"settings: {' '.join(f'{name}={value}' for name, value in run.settings.items()) or 'defaults'}")
    print(f"{'':22}{'questions':>10}" + "".join(f"{name:>22}" for name in MEASURES))
    for scope, row in run.table.items():
        print(f"{scope:22}{run.counts[scope]:>10}" + "".join(f"{interval(one):>22}" for one in row))
    print()
    for name, one in run.behaviours.items():
        note = f"  best score under {run.threshold:.4f}" if name == "abstain" else ""
        print(f"{name:22}{run.counts[name]:>10}{interval(one):>22}{note}")
    print()


def print_gain(result: Gain) -> None:
    print("gain of the first settings over the second, 95 % interval, p")
    for scope, row in result.table.items():
        for name, one in zip(MEASURES, row):
            if scope in ("micro", "macro") or name == "ndcg@10":
                print(f"{scope:22}{name:>10} {interval(one, '+'):>24}  p {one.p:.4f}")
    for name, one in result.behaviours.items():
        print(f"{name:22}{'':>10} {interval(one, '+'):>24}  p {one.p:.4f}")
    print()


def interval(one: Estimate, sign: str = "") -> str:
    return f"{one.mean:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]"


def print_results(prefix: str, run: Run, compared: Gain | None) -> None:
    for name, measure in RESULTS.items():
        column = list(MEASURES).index(measure)
        print(f"RESULT {prefix}.{name} {run.table['macro'][column].mean:.4f}")
        if compared:
            difference = compared.table["macro"][column]
            print(f"RESULT {prefix}.{name}.gain {difference.mean:.4f}")
            print(f"RESULT {prefix}.{name}.p {difference.p:.4f}")


def write_json(path: Path, about: dict, runs: list[Run], compared: Gain | None) -> None:
    """Everything measured, question by question. What was asked and answered is not in it: data sets are others' own."""
    document = about | {
        "measures": list(MEASURES),
        "runs": [asdict(run) for run in runs],
        "gain": asdict(compared) if compared else None,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def plot(path: Path, title: str, measure: str, runs: list[Run]) -> None:
    """A bar with its interval for each scope, side by side for two runs."""
    matplotlib.rcParams["svg.hashsalt"] = "lethe"
    names, column = list(runs[0].table), list(MEASURES).index(measure)
    width = 0.8 / len(runs)
    figure, axes = plt.subplots(figsize=(1.5 + 0.9 * len(names), 4))
    for number, (run, label) in enumerate(zip(runs, ("settings", "compared with"))):
        row = [run.table[scope][column] for scope in names]
        means = [one.mean for one in row]
        # Rounding can put a mean of equal values a hair outside its interval.
        errors = np.maximum(0, [[one.mean - one.low for one in row], [one.high - one.mean for one in row]])
        places = np.arange(len(names)) + (number - (len(runs) - 1) / 2) * width
        axes.bar(places, means, width, yerr=errors, capsize=3, label=label)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel(measure)
    axes.set_title(title)
    if len(runs) > 1:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def progress(text: str) -> None:
    """Tells a terminal how far it is, and nobody else."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# --- The command line -----------------------------------------------------------------------------


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("lethe_"):
        raise argparse.ArgumentTypeError(f"{text!r} is not like lethe_candidates=1000")
    return name, value


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number}; 1 is the least")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a file or folder")
    parser.add_argument("--format", choices=FORMATS, help="of the data (default: guessed from it)")
    parser.add_argument("--extension", type=Path, required=True, help="lethe.duckdb_extension")
    parser.add_argument("--model", help="encoder: a model directory or an installed model's name (default: lethe's)")
    parser.add_argument("--create", default="", help="arguments of memory_create, like 'context := 0' (default: none)")
    parser.add_argument("--protocol", choices=["own", "one_store"], default="own")
    parser.add_argument("--settings", type=setting, nargs="+", default=[], metavar="name=value", help="to ask with")
    parser.add_argument("--compare", type=setting, nargs="+", metavar="name=value", help="settings to compare with")
    parser.add_argument("--step", type=at_least_one, default=1, help="ask every n-th question only")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where stores are kept; may be deleted (default: {CACHE})")
    parser.add_argument("--out", type=Path, default=Path("build/quality"), help="for the JSON and the plots")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    form = options.format or guess_format(options.data)
    name = set_name(options.data, form)
    variants = [dict(options.settings)] + ([dict(options.compare)] if options.compare else [])
    conversations = sample(protocol_of(name, load(options.data, form), options.protocol), options.step)
    with open_duckdb(options.extension, options.model, options.cache / "index") as connection:
        shelf = Shelf(options.cache / name, connection, options.create)
        runs = ask_all(shelf, conversations, variants, progress)
    progress("")
    compared = gain(*runs) if options.compare else None

    for run in runs:
        print_run(run)
    if compared:
        print_gain(compared)
    about = {"set": name, "format": form, "protocol": options.protocol, "step": options.step}
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{options.protocol}"
    write_json(options.out / f"{stem}.json", about | {"store": shelf.made, "versions": shelf.versions}, runs, compared)
    for measure in RESULTS.values():
        plot(options.out / f"{stem}-{measure.replace('@', '')}.svg", f"{name}, {options.protocol}", measure, runs)
    print_results(f"quality.{name}" + (".one_store" if options.protocol == "one_store" else ""), runs[0], compared)


if __name__ == "__main__":
    main()
