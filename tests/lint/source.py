"""C++ for the lint: text without comments or strings, and where functions begin and end.

An approximation by braces, not a parser: it may miss an unusually written function, but no plain one.
"""
import re
from dataclasses import dataclass

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/'
    r'|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def without_comments(text: str) -> str:
    """The same text, every comment replaced by blanks: lines and columns stay."""
    return TOKEN.sub(lambda m: _blank(m[0]) if m[0].startswith("/") else m[0], text)


def code(text: str) -> str:
    """The same text without comments and without the contents of strings."""
    return TOKEN.sub(lambda m: _blank(m[0]) if m[0].startswith("/") else m[0][0] + _blank(m[0][1:-1]) + m[0][-1], text)


@dataclass(frozen=True)
class Function:
    name: str
    line: int    # of its head, from 1
    lines: int   # head and body
    body: str    # as code()


def _kind(head: str) -> str:
    """Kind of the brace after `head`: namespace, class, function or value."""
    head = head.strip()
    if not head or head.startswith(","):    # what follows a member initialiser: a_{1} {
        return "function"
    while head.startswith("template"):
        depth = 0
        for i, c in enumerate(head):
            depth += (c == "<") - (c == ">" and head[i - 1] != "-")
            if c == ">" and depth == 0:
                break
        else:
            return "value"
        head = head[i + 1:].strip()
    head = re.sub(r"\[\[.*?\]\]|alignas\s*\([^)]*\)", "", head)
    if re.match(r"(inline\s+)?namespace\b|extern\s+\"", head):
        return "namespace"
    if re.match(r"(class|struct|union)\b", head):
        return "class"
    if re.match(r"enum\b", head) or re.search(r"(=|\breturn)\s*$", head) or "(" not in head:
        return "value"
    return "function"


def functions(text: str) -> list[Function]:
    text = code(text)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: _blank(m[0]), text, flags=re.M)
    found, scopes, start, opened = [], [], 0, 0
    for m in re.finditer(r"[;{}]", text):
        at, inside = m.start(), bool(scopes) and scopes[-1][0] in ("function", "value")
        if m[0] == "{":
            head = re.sub(r"\b(public|private|protected)\s*:(?!:)", lambda label: _blank(label[0]), text[start:at])
            if inside or head.count("(") != head.count(")"):
                scopes.append(("value", start, ""))
            else:
                begin = start + len(head) - len(head.lstrip())
                name = re.search(r"([\w:~]+|operator\S+)\s*\(", head)
                scopes.append((_kind(head), begin, name[1] if name else ""))
                opened = at
                start = at + 1
        elif m[0] == "}":
            kind, begin, name = scopes.pop() if scopes else ("value", at, "")
            if kind == "function":
                found.append(Function(name, text.count("\n", 0, begin) + 1, text.count("\n", begin, at) + 1, text[opened:at]))
            if not (scopes and scopes[-1][0] in ("function", "value")) and kind != "value":
                start = at + 1
        elif not inside and text[start:at].count("(") == text[start:at].count(")"):
            start = at + 1
    return found
