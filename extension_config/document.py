#!/usr/bin/env python3
"""Write what functions.json says of each SQL function and setting into the documentation.

    python extension_config/document.py [--check]

docs/reference.md is written whole. In README.md, the lines between these markers are, where it has them:

    <!-- functions:begin -->
    <!-- functions:end -->
    <!-- settings:begin -->
    <!-- settings:end -->

With --check nothing is written: what is not up to date is named, and makes the exit code 1.
"""
from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README, REFERENCE = HERE.parent / "README.md", HERE.parent / "docs" / "reference.md"

Entry = dict[str, Any]
"""A function, setting, parameter or column of functions.json."""


class DocumentError(Exception):
    """Something the person running this can act on; the text says how."""


def code(text: str) -> str:
    return f"`{text}`"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def call(function: Entry) -> str:
    """`memory_retrieve(query, k)`: named arguments are left to the tables."""
    return f"{function['name']}({', '.join(parameter['name'] for parameter in function['positional'])})"


def functions_table(functions: list[Entry]) -> str:
    def row(function: Entry) -> list[str]:
        return [code(call(function)), ", ".join(code(named["name"]) for named in function["named"]), function["does"]]

    return table(["function", "named arguments", "does"], map(row, functions))


def settings_table(settings: list[Entry]) -> str:
    def row(setting: Entry) -> list[str]:
        default = code(setting["default"]) if setting["default"] else "empty"
        return [code(setting["name"]), default, setting["range"] or setting["type"], setting["meaning"]]

    return table(["setting", "default", "range", "meaning"], map(row, settings))


def section(function: Entry) -> str:
    parts = [f"## {call(function)}", function["does"], f"```sql\n{function['example']};\n```"]
    arguments = [*function["positional"], *function["named"]]
    if arguments:
        rows = [[code(a["name"]), a["type"], a.get("default", "by position"), a["meaning"]] for a in arguments]
        parts.append(table(["argument", "type", "default", "meaning"], rows))
    if "returns" in function:
        parts.append(f"Returns {code(function['returns'])}.")
    else:
        parts.append("Columns: " + ", ".join(column(c) for c in function["columns"]) + ".")
    return "\n\n".join(parts)


def column(entry: Entry) -> str:
    when = f" (with {entry['with']})" if "with" in entry else ""
    return f"{code(entry['name'])} {entry['type']}{when}"


def reference(described: Entry) -> str:
    parts = [
        "# Reference",
        "Written by `make docs` from `extension_config/functions.json`; a test holds that against what LOAD registers.\n"
        "Arguments with a default are given by name, `session := 's9'`. Types are DuckDB's; TIMESTAMP is UTC.",
        *map(section, described["functions"]),
        "## Settings",
        "`SET name = value`, `RESET name`. A value out of range is refused when a function reads it.",
        settings_table(described["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def between_markers(text: str, name: str, content: str) -> str:
    start, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    counts = text.count(start), text.count(end)
    if counts == (0, 0):
        return text
    if counts != (1, 1) or text.index(start) > text.index(end):
        raise DocumentError(f"README.md has {start} {counts[0]} times and {end} {counts[1]} times; one of each is needed, in that order.")
    return re.sub(f"{re.escape(start)}.*{re.escape(end)}", lambda _: f"{start}\n{content}\n{end}", text, flags=re.DOTALL)


def documents() -> dict[Path, str]:
    """What each file ought to hold."""
    described = json.loads((HERE / "functions.json").read_text())
    wanted = {REFERENCE: reference(described)}
    if README.exists():
        text = README.read_text()
        text = between_markers(text, "functions", functions_table(described["functions"]))
        wanted[README] = between_markers(text, "settings", settings_table(described["settings"]))
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description="Write functions.json into the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if something would change")
    check = parser.parse_args().check
    try:
        stale = {path: text for path, text in documents().items() if not path.exists() or path.read_text() != text}
    except DocumentError as error:
        print(f"document: {error}", file=sys.stderr)
        return 1
    for path, text in stale.items():
        if check:
            print(f"document: {path.name} is not what functions.json says; `make docs` writes it anew.", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote {path.relative_to(HERE.parent)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
