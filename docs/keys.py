#!/usr/bin/env python3
"""Writes docs/keys.md from the output of `tessera explain`; with --check, checks that the file is current.

    docs/keys.py build/host/tessera [--check]
"""
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).with_name("keys.md")
HEAD = """# Every key of a deck

Made from `tessera explain` by `docs/keys.py PROGRAM`; `tessera explain KEY` says the same of one. "resume" says whether a resumed run may change the key (`--allow-change`: where that option names it).
A deck is YAML; `--set KEY=VALUE` on the command line overrides it.
Unknown keys, wrong types and values out of range are refused, all at once, with line and column.
"""
TABLE = ["", "| key | what | default | allowed | resume |", "|---|---|---|---|---|"]


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(text: str) -> str:
    """Markdown of explain's sections and keys; the tables of recipes after them stay as printed."""
    keys, _, tables = text.partition("\nWhat products")
    lines, section, pending, fresh = [HEAD.rstrip("\n")], "", None, True
    for line in keys.splitlines():
        if match := re.fullmatch(r"([a-z_.]+): (.*)", line):
            section, fresh = match[1] + ".", True
            lines += ["", f"## {match[1]}", *(match[2] + ".").replace(". ", ".\n").splitlines()]
        elif match := re.fullmatch(r" +default (.*); allowed (.*); (fixed|may change(?:, its contents: --allow-change)?|--allow-change)", line):
            if not pending:
                raise ValueError(f"a default without its key: {line}")
            lines += TABLE if fresh else []
            lines.append(f"| `{section}{pending[0]}` | {cell(pending[1])} | {cell(match[1])} | {cell(match[2])} | {match[3]} |")
            pending, fresh = None, False
        elif match := re.fullmatch(r"  (\S+) +(.*)", line):
            pending = (match[1], match[2])
        elif line.strip():
            raise ValueError(f"cannot be read: {line}")
    return "\n".join([*lines, "", "## Recipes", "```", ("What products" + tables).rstrip("\n"), "```", ""])


def main() -> int:
    program = sys.argv[1]
    text = subprocess.run([program, "explain"], check=True, capture_output=True, text=True).stdout
    if "--check" not in sys.argv[2:]:
        PAGE.write_text(page(text), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page(text):
        print(f"{PAGE.name} is not what this program explains: run docs/keys.py {program}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
