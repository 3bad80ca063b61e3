"""Checks that everything that documents name exists: files, links, symbols of the code, keys of the deck.

Of every Markdown file the code between single backticks is read, and what is fenced or indented not (commands and samples name files that
a run makes). In it, a path is whatever begins with a folder of the house, or is a name with the ending of a source; braces and stars are
those of the shell, and an ending may be left out. A symbol is a qualified name, a name with parentheses behind it, or a name in capitals and small letters; each part
of it must occur in the sources. A key is a dotted name that begins with a section of the deck, and must stand in KEYS.
"""
import fnmatch
import itertools
import posixpath
import re
from typing import Iterator

HOUSE = ("app", "core", "io", "kernels", "inputs", "tests", "jobscripts", "docs", "examples", "python")
KEYS = "docs/keys.md"
SECTIONS = "run|model|recompute|data|batch|eval|sample|precision|gather|reduce|optimizer|parallel|comm|checkpoint|debug"
SOURCES = re.compile(r"\.(hpp|cpp|cu|cuh|py|cmake|sh)$|CMakeLists\.txt$")
KEY = re.compile(rf"(?:{SECTIONS})(?:\.[a-z0-9_]+)+")
SUFFIX = re.compile(r"\.(hpp|cpp|cu|cuh|py|md|sh|txt|json|jsonl|yaml|h5|html|sbatch|bin|idx|cmake|def|log)$")
SYMBOL = re.compile(r"~?[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*(?:\(\))?")
CAMEL = re.compile(r"[A-Z]\w*[a-z]\w*[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*")


def spans(text: str) -> Iterator[tuple[int, str]]:
    """(line, code) of every code span outside of fenced and indented blocks."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", line):
                yield number, match[1]


def links(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        for match in re.finditer(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:|#", match[1]):
                yield number, match[1].split("#")[0]


def expanded(path: str) -> list[str]:
    """a/{b,c}.hpp -> a/b.hpp, a/c.hpp"""
    parts = re.split(r"\{([^}]*)\}", path)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


class Tree:
    """Everything that can be named: paths of files and folders, words of the sources, keys."""

    def __init__(self, tree: dict[str, str]):
        self.paths = set(tree)
        for path in tree:
            while path := posixpath.dirname(path):
                self.paths.add(path)
        self.words = set()
        for path, text in tree.items():
            if SOURCES.search(path):
                self.words.update(re.findall(r"[A-Za-z_]\w*", text))
        self.keys = set()
        for key in re.findall(r"`([\w.]+)`", tree.get(KEYS, "")):
            self.keys.update(itertools.accumulate(key.split("."), lambda section, name: f"{section}.{name}"))

    def has_path(self, path: str) -> bool:
        if "*" in path:
            return any(fnmatch.fnmatchcase(known, path) for known in self.paths)
        return path.rstrip("/") in self.paths or any(path + suffix in self.paths for suffix in (".hpp", ".cpp"))

    def missing(self, folder: str, code: str) -> str:
        """The thing that a span names and that does not exist; empty if it exists, or if the span names nothing checkable."""
        if re.search(r"[<>\s$|=]", code) or "..." in code:
            return ""
        if "/" in code and code.split("/")[0] in HOUSE:
            gone = [path for path in expanded(code) if not self.has_path(path)]
            return f"{gone[0]} is no file or folder" if gone else ""
        if KEY.fullmatch(code) and not SUFFIX.search(code):
            known = not self.keys or code in self.keys
            return "" if known else f"{code} is no key of the deck ({KEYS})"
        if re.search(r"\.(hpp|cpp|cu|cuh)$", code) and "/" not in code:
            near = posixpath.join(folder, code)
            known = all(self.has_path(path) for path in expanded(near)) or any(fnmatch.fnmatchcase(path, "*/" + code) for path in self.paths)
            return "" if known else f"{code} is no file"
        symbol = SYMBOL.fullmatch(code)
        if symbol and ("::" in code or code.endswith("()") or CAMEL.fullmatch(code)):
            gone = [] if code.startswith("std::") else [word for word in re.findall(r"[A-Za-z_]\w*", code) if word not in self.words]
            return f"{gone[0]} is no name in the sources" if gone else ""
        return ""


def mistakes(tree: dict[str, str]) -> Iterator[tuple[str, int, str]]:
    """(document, line, what is wrong)"""
    known = Tree(tree)
    for path, text in tree.items():
        if not path.endswith(".md") or path == "CHANGELOG.md":
            continue
        folder = posixpath.dirname(path)
        for line, code in spans(text):
            if wrong := known.missing(folder, code):
                yield path, line, wrong
        for line, target in links(text):
            if not known.has_path(posixpath.normpath(posixpath.join(folder, target))):
                yield path, line, f"the link to {target} leads nowhere"
