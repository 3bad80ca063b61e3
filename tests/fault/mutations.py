"""Mutation testing: puts faults into the program, one at a time, and checks that tests fail. A fault that no test detects
has survived.

usage: mutations.py --build FOLDER [--jobs N] [--limit SECONDS] [--trusted] [NAME...]
       mutations.py --table     # of all faults, as README.md shows them
       mutations.py --check     # whether each can still be put in, each mark has a mutation, and README.md has the table

FOLDER is a complete host build (build/host), which is not changed: for each fault the changed objects are compiled elsewhere
and linked before the libraries into separate test programs, so that several faults can be tried at once. The tests are
first run without faults, unless --trusted. Exit code: 1 if a fault survives, or cannot be tried.
"""
import argparse
import concurrent.futures
import functools
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from mutation_list import MUTATIONS

HERE = os.path.dirname(os.path.realpath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SOURCES = [f"{folder}/**/*.{end}" for folder in ("app", "core", "io", "kernels") for end in ("cpp", "hpp", "cu", "cuh")]
MARK = re.compile(r"(?P<code>^.*?) *// mutation: (?P<names>[\w.]+(?:, [\w.]+)*)(?=\n)")
TABLE = re.compile(r"(?<=<!-- faults -->\n).*?(?=<!-- /faults -->)", re.S)


class Unusable(Exception):
    """A fault that cannot be tried."""


def read_tree():
    """{file: its lines} of the program's sources."""
    tree = {}
    for path in (path for kind in SOURCES for path in glob.glob(os.path.join(SOURCE, kind), recursive=True)):
        with open(path, encoding="utf-8") as file:
            tree[os.path.relpath(path, SOURCE)] = file.read().splitlines(keepends=True)
    return tree


@functools.cache
def marks():
    """{name in a mark: places (file, number of the line that bears the mark or follows it)}."""
    found = {}
    for file, lines in read_tree().items():
        for number, line in enumerate(lines):
            if mark := MARK.search(line):
                for name in mark["names"].split(", "):
                    found.setdefault(name, []).append((file, number + (not mark["code"].strip())))
    return found


def place_of(name):
    places = marks().get(name, [])
    if len(places) != 1:
        raise Unusable(f"{len(places)} lines of the source are marked so: // mutation: {name}")
    return places[0]


def names_of(mutation):
    """Names in the marks of its edits."""
    count = len(mutation.edits)
    return [mutation.name] if count == 1 else [f"{mutation.name}.{number + 1}" for number in range(count)]


def patched(mutation):
    """{file: its text with the fault}."""
    texts, edits = {}, zip(map(place_of, names_of(mutation)), mutation.edits)
    for (file, at), edit in sorted(edits, key=lambda pair: pair[0], reverse=True):  # from the end of a file on
        if file not in texts:
            with open(os.path.join(SOURCE, file), encoding="utf-8") as source:
                texts[file] = source.read().splitlines(keepends=True)
        lines = [MARK.sub(lambda mark: mark["code"], line) for line in texts[file][at:at + edit.lines]]
        try:
            texts[file][at:at + edit.lines] = edit.of(lines)
        except ValueError as reason:
            raise Unusable(f"{file}:{at + 1} {reason}") from reason
    return {file: "".join(lines) for file, lines in texts.items()}


def run(command, cwd, limit, environment=None):
    """Runs a command: its exit code (None: time-out) and output. Ends its children too."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        out.seek(0)
        return code, out.read()


class Build:
    """Objects, programs and tests of a build folder."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="utf-8") as file:
            commands = [self.command_of(entry) for entry in json.load(file)]
        self.compile = {command[command.index("-o") + 1]: command for command in commands}
        self.sources = self.sources_of_objects()
        listed = self.tool("ctest", "--show-only=json-v1")
        self.tests = {test["name"]: test for test in json.loads(listed)["tests"]}

    @staticmethod
    def command_of(entry):
        return entry["arguments"] if "arguments" in entry else shlex.split(entry["command"])

    def tool(self, *command):
        return subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True).stdout

    def sources_of_objects(self):
        """{object: files that it depends on}, from ninja."""
        sources, current = {}, None
        for line in self.tool("ninja", "-t", "deps").splitlines():
            if line.startswith("    "):
                sources[current].add(os.path.realpath(os.path.join(self.folder, line.strip())))
            elif line:
                current = line.split(":")[0]
                sources[current] = set()
        return sources

    def objects_with(self, files, link):
        """Objects that include one of the files, of those that a link command takes, itself or in libraries; objects of tests keep
        the unchanged header."""
        paths, linked = {os.path.join(SOURCE, file) for file in files}, set(link.split())
        return sorted(one for one, made_of in self.sources.items() if one in self.compile and paths & made_of
                      and not one.startswith("tests/") and {one, library_of(one)} & linked)

    def link_command(self, program):
        return self.tool("ninja", "-t", "commands", program).splitlines()[-1]


def library_of(unit):
    """kernels/libtessera_kernels.a of kernels/CMakeFiles/tessera_kernels.dir/base/error.cpp.o."""
    folder, _, rest = unit.partition("CMakeFiles/")
    return f"{folder}lib{rest.partition('.dir/')[0]}.a"


class Mutant:
    """A fault with its objects and programs, in a separate folder."""

    def __init__(self, build, mutation, folder):
        self.build, self.folder, self.texts = build, folder, patched(mutation)
        self.programs, self.objects = {}, {}
        for file, text in self.texts.items():
            path = os.path.join(folder, "tree", file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)

    def object(self, unit, limit):
        if unit not in self.objects:
            out = os.path.join(self.folder, f"{len(self.objects)}.o")
            self.made(self.compile_command(unit, out), limit)
            self.objects[unit] = out
        return self.objects[unit]

    def compile_command(self, unit, out):
        command = list(self.build.compile[unit])
        command[command.index("-o") + 1] = out
        at = command.index("-c") + 1
        file = os.path.relpath(command[at], SOURCE)
        changed = os.path.join(self.folder, "tree", file)
        command[at] = changed if os.path.exists(changed) else command[at]
        first = next(i for i, word in enumerate(command) if word.startswith(("-I", "-isystem", "-D")))
        command.insert(first, "-I" + os.path.join(self.folder, "tree"))
        return [word for word in command if word != "-Werror"]

    def made(self, command, limit):
        code, said = run(command, self.build.folder, limit)
        if code != 0:
            raise Unusable("does not build: " + (said[-1500:] if code else "the time is up"))

    def program(self, path, limit):
        """Links a program of the build with the fault."""
        if path not in self.programs:
            name = os.path.relpath(path, self.build.folder)
            out = os.path.join(self.folder, os.path.basename(name))
            command = self.build.link_command(name)
            place = f" -o {name} "
            if command.count(place) != 1:
                raise Unusable(f"{name} is linked in a way that is not understood: {command}")
            units = self.build.objects_with(self.texts, command)
            if not units:
                raise Unusable(f"{name} is made of no object with " + ", ".join(self.texts))
            objects = " ".join(shlex.quote(self.object(unit, limit)) for unit in units)
            self.made(["sh", "-c", command.replace(place, f" {objects} -o {shlex.quote(out)} ")], limit)
            self.programs[path] = out
        return self.programs[path]


def command_of(build, wanted, program):
    """A ctest test, or the part of it named after a blank: command, folder, environment."""
    name, _, part = wanted.partition(" ")
    if name not in build.tests:
        raise Unusable(f"there is no test {name}")
    test = build.tests[name]
    properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
    environment = {**os.environ, **dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))}
    own = [os.path.isfile(word) and os.access(word, os.X_OK) and word.startswith(build.folder + os.sep)
           for word in test["command"]]
    if not any(own):
        raise Unusable(f"{name} runs no program of the build")
    command = [program(word) if ours else word for word, ours in zip(test["command"], own)]
    nodes = [word for word in command if re.search(r"_test\.py(::|$)", word)]
    if part and nodes:
        at = command.index(nodes[0])
        command[at:at + len(nodes)] = [nodes[0].partition("::")[0] + "::" + part.replace(".", "::")]
    elif part:
        environment["GTEST_FILTER"] = part
    return command, properties.get("WORKING_DIRECTORY", build.folder), environment


def outcome(build, wanted, program, limit):
    """Result (passed, failed, did not end or was skipped), duration, and the first line that gives the reason."""
    command, folder, environment = command_of(build, wanted, program)
    begin = time.monotonic()
    code, said = run(command, folder, limit, environment)
    why = re.search(r"^.*(Failure|Error|error|terminate|not finite|disagree|skipped).*$", said, re.M)
    what = "did not end" if code is None else "failed" if code else "passed"
    if code == 77 or "no test was run" in said:
        what = "was skipped"
    return what, time.monotonic() - begin, why[0].strip()[:160] if why else said.strip()[-160:].replace("\n", " | ")


def tried(build, mutation, limit):
    """(whether every test detected it, lines of the report)."""
    with tempfile.TemporaryDirectory(prefix=f"fault-{mutation.name}-") as folder:
        try:
            mutant = Mutant(build, mutation, folder)
            found = [(test, *outcome(build, test, lambda path: mutant.program(path, limit), limit))
                     for test in mutation.tests]
        except Unusable as reason:
            return False, [f"UNUSABLE  {mutation.name}: {reason}"]
    seen = all(what in ("failed", "did not end") for _, what, _, _ in found)
    lines = [f"{'seen' if seen else 'SURVIVED'}  {mutation.name}"]
    return seen, lines + [f"      {what} in {seconds:.0f} s: {test}: {why}" for test, what, seconds, why in found]


def sound(build, mutations, pool, limit):
    """Whether all their tests pass without a fault."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    results = pool.map(lambda test: (test, *outcome(build, test, lambda path: path, limit)), tests)
    broken = [result for result in results if result[1] != "passed"]
    for test, what, seconds, why in broken:
        print(f"UNSOUND  {test} {what} in {seconds:.0f} s without any fault: {why}", flush=True)
    return not broken


def table():
    rows = ["| fault | put in | test that fails |", "|---|---|---|"]
    for mutation in MUTATIONS:
        files = ", ".join(dict.fromkeys(f"`{place_of(name)[0]}`" for name in names_of(mutation)))
        tests = ", ".join(f"`{test}`" for test in mutation.tests)
        rows.append(f"| `{mutation.name}`: {mutation.fault} | {files} | {tests} |")
    return "\n".join(rows) + "\n"


def check():
    """Problems with the list, in words."""
    problems = []
    for mutation in MUTATIONS:
        try:
            patched(mutation)
        except (Unusable, OSError) as reason:
            problems.append(f"{mutation.name}: {reason}")
        if not mutation.tests:
            problems.append(f"{mutation.name}: no test is to see it")
    rows = {name for mutation in MUTATIONS for name in names_of(mutation)}
    problems += [f"{file}:{line + 1}: no mutation has the name of the mark, {name}"
                 for name, places in marks().items() if name not in rows for file, line in places]
    names = [mutation.name for mutation in MUTATIONS]
    problems += [f"{name}: two faults have this name" for name in set(names) if names.count(name) > 1]
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        shown = TABLE.search(file.read())
    if not problems and (not shown or shown[0] != table()):
        problems.append("README.md does not show the table that mutations.py --table prints")
    return problems


def main():
    parser = argparse.ArgumentParser(description="Puts faults in and sees tests fail.")
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "host"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds for a compilation, a link or a test")
    parser.add_argument("--trusted", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.table:
        return print(table(), end="")
    if asked.check:
        return sys.exit("\n".join(check()) or 0)
    unknown = set(asked.names) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        sys.exit("no such fault: " + ", ".join(sorted(unknown)))
    chosen = [mutation for mutation in MUTATIONS if not asked.names or mutation.name in asked.names]
    build = Build(asked.build)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        ok = asked.trusted or sound(build, chosen, pool, asked.limit)
        seen = 0
        for future in concurrent.futures.as_completed([pool.submit(tried, build, one, asked.limit) for one in chosen]):
            found, lines = future.result()
            seen += found
            print("\n".join(lines), flush=True)
    print(f"{seen} of {len(chosen)} faults are seen")
    sys.exit(0 if ok and seen == len(chosen) else 1)


if __name__ == "__main__":
    main()
