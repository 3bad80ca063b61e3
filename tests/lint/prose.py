#!/usr/bin/env python3
"""Prose of the tree: Markdown has one sentence a line, and sentences of comments are short.

    prose.py FILE.md...     rewrites Markdown in that form; tables, code, headings and quotations stay as they are

A difference of one word then moves one line. `mistakes()` is what the lint reports.
"""
import re
import sys
from typing import Iterator

MOST_WORDS = 25    # of a sentence in a comment of the sources

ITEM = re.compile(r"( *)([-*+]|\d+[.)])( +)(?=\S)")
ALONE = re.compile(r" *(#{1,6} |\||>|<|\[[^\]]+\]: |[-*_=]{3,} *$|!\[[^\]]*\]\([^)]*\) *$)")
FENCE = re.compile(r" *(```|~~~)")
SPAN = re.compile(r"`+[^`]*`+|\[[^\]]*\]\([^)]*\)")
# The end of a sentence, and a beginning that is no mark of Markdown.
END = re.compile(r"(?<=[.!?])(?P<closing>[\"')\]*_]*) +(?=[\"'(\[*_]*[A-Z0-9`\x00])(?!\d+[.)] )(?!\* )")
LEAD = re.compile(r"\*\*[^*]+\*\*")    # "**Layout.** Parameters lie ..."
NO_END = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|approx|resp|Fig|Sec|No|Dr)|\b[A-Z]|(?<!\.)\.\.)\.$")


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph. Code and links are not looked into."""
    kept = SPAN.findall(text)
    masked = SPAN.sub("\x00", text)
    found, begin = [], 0
    for end in END.finditer(masked):
        if NO_END.search(masked[begin:end.start()]):
            continue
        found.append(masked[begin:end.end("closing")])
        begin = end.end()
    found.append(masked[begin:])
    if len(found) > 1 and LEAD.fullmatch(found[0]):
        found[:2] = [" ".join(found[:2])]
    spans = iter(kept)
    return [re.sub("\x00", lambda _: next(spans), sentence) for sentence in found]


def reflowed(text: str) -> str:
    """The same Markdown with each sentence of a paragraph or list item on a line of its own."""
    out: list[str] = []
    paragraph: list[str] = []
    head = indent = ""

    def close():
        nonlocal paragraph, head, indent
        if paragraph:
            first, *others = sentences(" ".join(paragraph))
            out.extend([head + first, *(indent + sentence for sentence in others)])
        paragraph, head, indent = [], "", ""

    fence, blank = "", True
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if fence or mark:
            close()
            out.append(line)
            if mark:
                fence = "" if fence and line.strip().startswith(fence) else fence or mark[1]
            blank = False
            continue
        item = ITEM.match(line)
        code = line.startswith(" " * (4 if blank else len(indent) + 4)) and (blank or paragraph) and not (item and paragraph)
        if not line.strip() or ALONE.match(line) or code:
            close()
            out.append(line)
            blank = True
            continue
        blank = False
        if item:
            close()
            head, indent = item[0], " " * len(item[0])
            paragraph = [line[item.end():].strip()]
        elif paragraph:
            paragraph.append(line.strip())
        else:
            head = indent = re.match(" *", line)[0]
            paragraph = [line.strip()]
        if line.endswith("  ") or line.endswith("\\"):    # a line break of Markdown
            paragraph[-1] += "  " if line.endswith("  ") else ""
            close()
    close()
    return "\n".join(out)


COMMENT = re.compile(r"\s*//[/!]?(?!<)(\s*)(.*)$")
TRAILING = re.compile(r"(?<![:\"'])//[/!]?<?\s(.*)$")
WORD = re.compile(r"(?<![\w.])[A-Za-z][A-Za-z'-]+(?![\w(]*\()")    # formulas and calls are not counted


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each paragraph of comments. What is indented by more than one blank is a list or a sample."""
    begun, lines, was_listed = 0, [], False
    for number, line in enumerate(text.split("\n") + [""], 1):
        match = COMMENT.match(line)
        listed = match and len(match[1]) > 1
        ends = not match or not match[2].strip() or listed or was_listed or re.match(r"[-*] |\d+\. ", match[2])
        was_listed = listed
        if lines and ends:
            yield begun, " ".join(lines)
            lines = []
        if match and match[2].strip():
            begun = begun if lines else number
            lines.append(match[2].strip())
        elif not match and (trailing := TRAILING.search(line)):
            yield number, trailing[1]


def long_sentences(text: str) -> Iterator[tuple[int, int]]:
    """(line of the comment, words) of each sentence of C++ comments that is too long."""
    for line, comment in comments(text):
        for sentence in re.split(r"(?<=[.?!])\s+(?=[*A-Za-z0-9`(])", re.sub(r'"[^"]*"', "", comment)):
            words = len(WORD.findall(sentence))
            if words > MOST_WORDS:
                yield line, words


def mistakes(path: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) in one file."""
    if path.endswith(".md"):
        for number, (now, then) in enumerate(zip(text.split("\n"), reflowed(text).split("\n")), 1):
            if now != then:
                yield number, "one sentence a line: run tests/lint/prose.py on this file"
                return
    elif re.search(r"\.(hpp|cpp|cu|cuh)$", path):
        for line, words in long_sentences(text):
            yield line, f"a sentence of {words} words; at most {MOST_WORDS}: split it"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            before = file.read()
        with open(name, "w", encoding="utf-8") as file:
            file.write(reflowed(before))
