"""Extracts code from documents, so that tests can run it as it stands there."""
import contextlib
import io
import os
import re

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def section(text, name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def indented(text):
    """Blocks of lines that are code, without their indentation."""
    return [re.sub("^    ", "", block, flags=re.MULTILINE) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)]


def fenced(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(lines, folder):
    """Runs lines of Python in a folder; returns the names that they define and their output."""
    names, printed, here = {}, io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(lines, names)
    finally:
        os.chdir(here)
    return names, printed.getvalue()
