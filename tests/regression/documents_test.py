"""Checks that the program accepts the decks and commands in the documents.
"""
import glob
import os
import re
import subprocess

import documents
import runs


def commands(text):
    """Arguments after each `tessera` in a line of code or a code span, the verb first."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in [*spans, *"".join(documents.indented(text)).splitlines()]:
        if not line.lstrip().startswith("python3"):  # whose arguments are a program and a launcher
            for match in re.finditer(r"(?:^|[ /])tessera ((?:checkpoint )?[a-z]+)(?![\w/]| *[=:(])", line.split("#")[0]):
                yield match[1]


class Documents(runs.InFolder):
    def test_the_tutorials_first_deck_is_one(self):
        decks = [block for block in documents.indented(documents.read("docs/tutorial.md")) if "schema_version" in block]
        assert len(decks) == 2  # the second begins from a converted model: tutorial_test.py
        os.mkdir(self.path("my_texts"))
        self.write("my_texts/a.txt", runs.CORPUS)
        done = subprocess.run([self.tessera, "validate", self.write("notes.yaml", decks[0]), "--ranks", "2"], capture_output=True, text=True, timeout=runs.PATIENCE)
        assert (done.returncode, done.stderr) == (0, "")

    def test_every_verb_is_one(self):
        known = set()
        for verb, form in (([], "{}"), (["checkpoint"], "checkpoint {}")):
            told = subprocess.run([self.tessera, *verb, "--help"], capture_output=True, text=True, check=True, timeout=runs.PATIENCE).stdout
            known |= {form.format(name) for name in re.findall(r"^  ([a-z]+)  +[A-Z]", told, re.MULTILINE)}
        assert "checkpoint diff" in known
        pages = ["README.md", "TESTING.md", *(os.path.relpath(path, documents.ROOT) for path in glob.glob(os.path.join(documents.ROOT, "docs", "**", "*.md"), recursive=True))]
        found = {verb for page in pages for verb in commands(documents.read(page))}
        assert len(found) > 8
        assert found - known - {"checkpoint"} == set()
