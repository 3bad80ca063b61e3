#!/usr/bin/env python3
"""Checks the tree against rules.py and against rules that no pattern can express. Prints `file:line: rule: reason`, exits 1 if anything is found.

    lint.py [ROOT]
"""
import hashlib
import pathlib
import re
import subprocess
import sys
from typing import Iterable, Iterator, NamedTuple

import documents
import prose
import rules
import source


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.reason}"


def read_tree(root: pathlib.Path) -> dict[str, str]:
    """Path -> text of every file that git tracks or does not ignore; a binary file (it holds a zero byte) has none."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout.split("\0")
    files = {path: (root / path).read_bytes() for path in sorted(set(listed)) if path and (root / path).is_file()}
    return {path: "" if b"\0" in data else data.decode("utf-8", errors="replace") for path, data in files.items()}


READS = {"code": source.code, "include": source.without_comments, "text": lambda text: text}


def by_pattern(path: str, text: str) -> Iterator[Finding]:
    """Findings of rules.RULES in one file."""
    if path.startswith("tests/lint/"):
        return
    for rule in rules.RULES:
        if not re.search(rule.where, path) or re.search(rule.allowed, path):
            continue
        read = path if rule.reads == "path" else READS[rule.reads](text)
        for match in re.finditer(rule.pattern, read):
            yield Finding(path, read.count("\n", 0, match.start()) + 1, rule.name, rule.reason)


def by_size(path: str, text: str) -> Iterator[Finding]:
    if not re.search(rules.CPP, path):
        return
    lines, functions = text.count("\n"), source.functions(text)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > rules.MOST_COLUMNS:
            yield Finding(path, number, "line-size", f"{len(line)} columns; at most {rules.MOST_COLUMNS}")
    if lines > rules.MOST_LINES_OF_FILE:
        yield Finding(path, 1, "file-size", f"{lines} lines; at most {rules.MOST_LINES_OF_FILE}")
    for f in functions:
        if f.lines > rules.MOST_LINES_OF_FUNCTION:
            yield Finding(path, f.line, "function-size", f"{f.name}: {f.lines} lines; at most {rules.MOST_LINES_OF_FUNCTION}")
    if path.startswith("app/") and re.search(r"\bengine_?\.step\(", source.code(text)) and lines > rules.MOST_LINES_OF_LOOP_FILE:
        yield Finding(path, 1, "loop-size", f"the training loop's file has {lines} lines; at most {rules.MOST_LINES_OF_LOOP_FILE}")


def by_core_order(path: str, text: str) -> Iterator[Finding]:
    """core/<folder> includes only the folders before it in rules.CORE_ORDER."""
    rank = {folder: i for i, row in enumerate(rules.CORE_ORDER) for folder in row}
    parts = path.split("/")
    if parts[0] != "core" or len(parts) < 3 or not re.search(rules.CPP, path):
        return
    read = source.without_comments(text)
    for match in re.finditer(r'#include "core/(\w+)/', read):
        own, other = parts[1], match[1]
        line = read.count("\n", 0, match.start()) + 1
        if own not in rank or other not in rank:
            yield Finding(path, line, "core-order", f"core/{own if own not in rank else other} has no place in CORE_ORDER")
        elif own != other and rank[other] >= rank[own]:
            yield Finding(path, line, "core-order", f"core/{own} must not include core/{other}")


def by_params_order(path: str, text: str) -> Iterator[Finding]:
    """core/params/<name> includes only files of its own floor in rules.PARAMS_ORDER and of those below."""
    floor = {name: i for i, row in enumerate(rules.PARAMS_ORDER) for name in row}
    own = re.match(r"core/params/(?:(wires)/|(param_sync)\w*\.|(\w+)\.)[\w.]*pp$", path)
    if not own:
        return
    name = own[1] or own[2] or own[3]
    read = source.without_comments(text)
    if name not in floor:
        yield Finding(path, 1, "params-order", f"{name} has no floor in PARAMS_ORDER")
        return
    for match in re.finditer(r'#include "core/params/(\w+)', read):
        if floor.get(match[1], -1) > floor[name]:
            line = read.count("\n", 0, match.start()) + 1
            yield Finding(path, line, "params-order", f"{name} must not include {match[1]}, which stands above it")


COLLECTIVE = re.compile(r"(\.|->)submit\s*\(|\bcontrol\w*(\(\))?\s*(\.|->)\s*\w+\s*\(")


def without_lambdas(body: str) -> str:
    """A function's body with its lambdas' bodies blanked: exceptions of a lambda reach the lambda's caller."""
    for match in re.finditer(r"\[[^\[\]]*\]\s*(\([^()]*\))?\s*(mutable\s*)?\{", body):
        depth, end = 1, match.end()
        while depth and end < len(body):
            depth += (body[end] == "{") - (body[end] == "}")
            end += 1
        body = body[:match.end()] + re.sub(r"[^\n]", " ", body[match.end():end]) + body[end:]
    return body


def by_throws(path: str, text: str) -> Iterator[Finding]:
    """Between two collectives no rank may throw by itself: only Control::agree throws."""
    if not re.match(r"^(app|core|io)/.*\.(cpp|hpp)$", path) or path.startswith("core/comm/"):
        return
    for f in source.functions(text):
        body = without_lambdas(f.body)
        calls = [m.end() for m in COLLECTIVE.finditer(body)]
        if len(calls) >= 2 and re.search(r"\bthrow\b|\brequire\s*\(", body[calls[0]:calls[-1]]):
            yield Finding(path, f.line, "throw-between-collectives", f"{f.name}: return Problems, let Control::agree throw")


def by_kernel(tree: dict[str, str]) -> Iterator[Finding]:
    """Every public kernel header has a namesake in tests/reference, a test and a bench line. Headers that only their own folder includes are not public;
    kernels/no_gpu.cpp speaks for all folders."""
    included = {(path.rsplit("/", 1)[0], m[1]) for path, text in tree.items() for m in re.finditer(r'#include "([\w/.]+)"', text)}
    benches = "\n".join(text for path, text in tree.items() if re.match(r"^tests/bench/.*_bench\.cpp$", path))
    for path, text in tree.items():
        match = re.match(r"^(kernels/(?!base/)\w+)/(\w+)\.hpp$", path)
        if not match or not re.search(r"\bvoid\s+\w+\(\s*Stream\s*&\s*\w+\s*,", source.code(text)):
            continue
        if {folder for folder, header in included if header == path} - {"kernels"} == {match[1]}:
            continue
        name = match[2]
        if f"tests/reference/{name}.hpp" not in tree:
            yield Finding(path, 1, "kernel-reference", f"needs tests/reference/{name}.hpp")
        if f"tests/unit/kernels/{name}_test.cpp" not in tree:
            yield Finding(path, 1, "kernel-test", f"needs tests/unit/kernels/{name}_test.cpp")
        if f'#include "{path}"' not in benches:
            yield Finding(path, 1, "kernel-bench", "needs a line in tests/bench/*_bench.cpp")


def by_folder(tree: dict[str, str]) -> Iterator[Finding]:
    """Every source folder has a README that says what lives there and what does not."""
    folders = {"/".join(parts[:depth]) for parts in (path.split("/") for path in tree) if parts[0] in documents.HOUSE
               for depth in (1, 2) if len(parts) > depth}
    for folder in sorted(folders):
        lines = [line for line in tree.get(f"{folder}/README.md", "").splitlines() if line.strip()]
        if len(lines) < rules.LEAST_LINES_OF_README:
            yield Finding(f"{folder}/README.md", 1, "folder-readme", f"says in {rules.LEAST_LINES_OF_README} lines or more what lives there, "
                          "what does not, what to read first, how to extend it")


def by_document(tree: dict[str, str]) -> Iterator[Finding]:
    for path, line, wrong in documents.mistakes(tree):
        yield Finding(path, line, "document", wrong)


def by_prose(path: str, text: str) -> Iterator[Finding]:
    """Sentences of comments are short, and Markdown has one a line."""
    for line, wrong in prose.mistakes(path, text):
        yield Finding(path, line, "prose", wrong)


REASONS = "tests/oracle/refreshed.txt"


def golden_hashes(root: pathlib.Path, paths: Iterable[str]) -> dict[str, str]:
    """Path -> SHA-256 of every file of goldens."""
    return {path: hashlib.sha256((root / path).read_bytes()).hexdigest() for path in paths
            if path.startswith("tests/oracle/") and path != REASONS and not path.endswith((".py", ".md"))}


def by_goldens(hashes: dict[str, str], reasons: str) -> Iterator[Finding]:
    """Every golden has its line in REASONS: hash, file, and a date with the reason of its last refresh."""
    told = {}
    for number, line in enumerate(reasons.splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  (\S+)  \d{4}-\d\d-\d\d \S.{9,}", line)
        if match:
            told["tests/oracle/" + match[2]] = (number, match[1])
        elif not line.startswith("#"):
            yield Finding(REASONS, number, "golden-reason", "a line reads: sha256  file  date reason")
    for path, digest in hashes.items():
        number, expected = told.pop(path, (1, None))
        if digest != expected:
            yield Finding(path, 1, "golden-reason", f"{'was refreshed' if expected else 'is new'}: {REASONS}:{number} must give its hash and the reason")
    for path, (number, _) in told.items():
        yield Finding(REASONS, number, "golden-reason", f"{path} is gone")


def lint(tree: dict[str, str], hashes: dict[str, str]) -> list[Finding]:
    found = [finding for path, text in tree.items() for check in (by_pattern, by_size, by_core_order, by_params_order, by_throws, by_prose)
             for finding in check(path, text)]
    return found + [*by_kernel(tree), *by_folder(tree), *by_document(tree), *by_goldens(hashes, tree.get(REASONS, ""))]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    tree = read_tree(root)
    if not any(re.search(rules.SOURCE, path) for path in tree):
        print(f"lint: no sources below {root}", file=sys.stderr)
        return 2
    found = lint(tree, golden_hashes(root, tree))
    for finding in found:
        print(finding)
    print(f"lint: {len(tree)} files, {len(rules.RULES)} patterns, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
