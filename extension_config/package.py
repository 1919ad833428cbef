#!/usr/bin/env python3
"""Make a library a DuckDB extension: append the footer by which LOAD knows it.

    python extension_config/package.py target/release/liblethe.so build/lethe.duckdb_extension

DuckDB reads the last 512 bytes of the file: eight fields of 32 bytes, padded with zeros, the eighth first, and 256 bytes
for a signature, zeros here (LOAD then needs allow_unsigned_extensions). In front stands the head of a WebAssembly custom
section of that length, which makes the same footer valid in a .wasm file. What the fields say comes from extension.json.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIELD, FIELDS, SIGNATURE = 32, 8, 256
SECTION = b"duckdb_signature"


class PackageError(Exception):
    """Something the person running this can act on; the text says how."""


def leb128(number: int) -> bytes:
    """Seven bits a byte, lowest first; the high bit says that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(text: str) -> bytes:
    encoded = text.encode("ascii")
    if len(encoded) > FIELD:
        raise PackageError(f"'{text}' is {len(encoded)} bytes long; a field of the footer holds {FIELD}.")
    return encoded.ljust(FIELD, b"\0")


def footer(config: dict, platform_name: str) -> bytes:
    fields = [
        "4",  # marks a DuckDB extension
        platform_name,
        config["c_api_version"],  # for abi C_STRUCT; any other would state DuckDB's version here
        f"v{config['version']}",
        config["abi"],
        "", "", "",
    ]
    content = b"".join(field(text) for text in reversed(fields)) + bytes(SIGNATURE)
    payload = leb128(len(SECTION)) + SECTION + leb128(len(content)) + content
    return b"\0" + leb128(len(payload)) + payload


def check_version(config: dict) -> None:
    crate = tomllib.loads((HERE.parent / "Cargo.toml").read_text())["package"]["version"]
    if config["version"] != crate:
        raise PackageError(f"extension.json has version {config['version']}, Cargo.toml {crate}: make them equal.")


def platform_of(config: dict, machine: str) -> str:
    if found := config["platforms"].get(machine):
        return found
    raise PackageError(f"This machine is {machine}; extension.json knows the platforms of {', '.join(config['platforms'])}.")


def package(library: Path, output: Path) -> str:
    """Writes `output`, whole or not at all, and returns what its footer says."""
    config = json.loads((HERE / "extension.json").read_text())
    check_version(config)
    tail = footer(config, platform_of(config, platform.machine()))
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the output, so that the rename is within one file system; and a process that has the old file mapped keeps it.
    handle, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}-")
    try:
        with open(handle, "wb") as out, library.open("rb") as source:
            shutil.copyfileobj(source, out)
            out.write(tail)
        os.chmod(name, 0o644)
        os.replace(name, output)
    except BaseException:
        os.unlink(name)
        raise
    return ", ".join(text for text in re.findall("[!-~]+", tail[-FIELD * FIELDS - SIGNATURE :].decode("ascii"))[::-1])


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a library a DuckDB extension.")
    parser.add_argument("library", type=Path, help="what cargo built: liblethe.so")
    parser.add_argument("output", type=Path, help="where to write lethe.duckdb_extension")
    arguments = parser.parse_args()
    try:
        stated = package(arguments.library, arguments.output)
    except (PackageError, OSError) as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.1f} MB ({stated})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
