"""Training under the launcher, from outside: what a run writes and prints, its refusals, and how it ends after faults.
"""
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
import time

import pytest

import processes
import runs

NOBODY = 65534
TEXT = "".join(f"The quick brown fox number {i} jumps over the lazy dog.\n" for i in range(300))
DECK = """schema_version: 1
run: {name: tiny, steps: 6}
model: {layers: 2, hidden: 32, heads: 2, ffn: 64, seq_len: 32}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: 1}
eval: {every_steps: 3, batches: 2}
sample: {tokens: 20, prompt: "The "}
reduce: {bucket_mib: 0.01}
optimizer: {lr: 1.0e-2, warmup_steps: 1}
checkpoint: {dir: run}
"""
KEYS = ["step", "loss", "balance_loss", "z_loss", "expert_load", "grad_norm", "clip_coef", "lr", "tokens", "step_ms",
        "tokens_per_s", "mfu", "memory_bytes", "ranks", "time", "skipped", "spike", "restart"]


def bits(rows):
    """The rows without times."""
    return [{key: value for key, value in row.items() if key not in ("step_ms", "tokens_per_s", "mfu", "time")} for row in rows]


class Train(runs.InFolder):
    def setup_method(self):
        os.chmod(self.folder, 0o755)
        self.write("corpus.txt", TEXT)
        self.write("deck.yaml", DECK)

    def command(self, ranks, settings, deck="deck.yaml"):
        return [self.launcher, "-n", str(ranks), self.tessera, "train", deck, *self.overrides(settings)]

    @staticmethod
    def overrides(settings):
        return [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]

    def planned(self, ranks, deck="deck.yaml", **settings):
        """Output of `tessera plan`."""
        done = subprocess.run([self.tessera, "plan", deck, "--ranks", str(ranks), "--json", *self.overrides(settings)],
                              capture_output=True, text=True, timeout=300, cwd=self.folder,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def launch(self, ranks, deck="deck.yaml", before=(), **settings):
        """Runs to the end; fails if it hangs."""
        return subprocess.run([*before, *self.command(ranks, settings, deck)], capture_output=True, timeout=300,
                              cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, errors="replace")

    def trained(self, ranks, **settings):
        """A fresh run that succeeds; returns its output."""
        shutil.rmtree(self.path(settings.get("checkpoint__dir", "run")), ignore_errors=True)
        done = self.launch(ranks, **settings)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    def refused(self, code, *texts, ranks=(1, 2), deck="deck.yaml", before=(), left="run", **settings):
        """Checks on every number of ranks: the exit code, each text printed once, and no files left of a run."""
        for count in ranks:
            with self.subtests.test(ranks=count, texts=texts):
                done = self.launch(count, deck, before, **settings)
                assert done.returncode == code, (done.stdout, done.stderr)
                for text in texts:
                    assert done.stderr.count(text) == 1, (text, done.stderr)
                assert "step 1/" not in done.stdout
                if left and os.path.exists(self.path(left)):
                    assert (os.listdir(self.path(left)) if os.path.isdir(self.path(left)) else []) == []

    def refused_by_validate_too(self, code, *texts, **settings):
        """Problems that `validate` finds without a launch."""
        self.refused(code, *texts, **settings)
        before, _ = settings.pop("before", ()), settings.pop("left", None)
        found = os.listdir(self.folder)
        done = subprocess.run([*before, self.tessera, "validate", "deck.yaml", *self.overrides(settings)], capture_output=True, timeout=300,
                              cwd=self.folder, text=True)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        for text in texts:
            assert done.stderr.count(text) == 1, (text, done.stderr)
        assert os.listdir(self.folder) == found


class Runs(Train):
    def test_a_run_writes_its_record_and_learns(self):
        for ranks in (1, 2, 3, 4):
            with self.subtests.test(ranks=ranks):
                out = self.trained(ranks)
                written = os.listdir(self.path("run"))
                assert {"deck.resolved.yaml", "metrics.jsonl", "run.json"} <= set(written)
                assert not [name for name in written if name.startswith(".") or name.endswith(".tmp")]
                assert sum(name.startswith("events.out.tfevents.") for name in written) == 1
                self.check_page(self.read("run", "report.html"))
                self.check_rows(self.json_lines("run", "metrics.jsonl"))
                self.check_record(ranks)
                self.check_console(out)
                self.check_exposure(ranks, out)

    def check_rows(self, rows):
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        for row in rows:
            evaluated = ["eval_loss"] if row["step"] in (3, 6) else []
            assert list(row) == KEYS[:2] + evaluated + KEYS[2:]
            assert row["tokens"] == row["step"] * 12 * 32
            assert row["balance_loss"] is None
            assert row["skipped"] is False
            assert row["restart"] == 0
            assert row["tokens_per_s"] > 0
            assert round(abs(row["clip_coef"] - min(1, 1 / row["grad_norm"])), 4) == 0
        assert abs(rows[0]["loss"] - 5.545) <= 0.3  # log 256: the loss of an untrained model
        assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
        assert rows[5]["eval_loss"] < rows[2]["eval_loss"]
        assert (rows[0]["lr"], rows[-1]["lr"]) == (0.01, 0)

    def test_the_share_of_a_peak_is_the_models_flops_over_time(self):
        self.trained(2, run__mfu_peak="0.001")
        flops = self.planned(2)["model_flops_per_step"]
        for row in self.json_lines("run", "metrics.jsonl"):
            share = flops / (1e-3 * row["step_ms"] * 2 * 1e9)
            assert abs(row["mfu"] / share - 1) <= 1e-3

    def check_page(self, page):
        for part in ("Loss", "evaluation", "Gradient norm", "Throughput", "Time by region", "gradient", "6 of 6"):
            assert part in page
        assert page.count("<svg") == page.count("</svg>")
        for elsewhere in ("<script", "http", "src=", "href"):
            assert elsewhere not in page

    def check_record(self, ranks):
        record = json.loads(self.read("run", "run.json"))
        assert record["ranks"] == ranks
        assert [place["rank"] for place in record["rank_map"]] == list(range(ranks))
        assert record["command_line"][1:] == ["train", "deck.yaml"]
        assert (record["seed"], record["threads_per_rank"]) == (1234, 1)
        assert (record["data"]["files"], record["data"]["tokens"]) == (1, len(TEXT))
        assert record["environment"]["OMP_NUM_THREADS"] == "1"
        for text in (record["data"]["hash"], record["deck"]["hash"], record["deck"]["resolved_hash"]):
            assert re.search("^[0-9a-f]{16}$", text)
        assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", record["started"])

    def check_console(self, out):
        assert "\033" not in out
        assert re.search(r"step 1/6 \| loss 5\.\d{4} \| norm .* ms \| .* tok/s \| .* KiB \| ETA ", out)
        assert re.search(r"step 3/6 \| loss \S+ \| eval \d\.\d{4} \|", out)
        assert re.search(r"step 6/6 \| loss \S+ \| eval \d\.\d{4} \|", out)
        assert re.search(r"(?s)\nsample: The .{10,}$", out)
        for part in ("time by region", "waiting", "collectives of one step", "memory was asked for 0 times after the second step", "report: ",
                     f"corpus:   1 file, {len(TEXT):,} tokens; 455 windows of 32 tokens for training, 50 for evaluation; "
                     "0.16 epochs in 6 steps of 12 sequences"):
            assert part in out
        start = out.split("step 1/6")[0].splitlines()
        assert len(start) <= 15, out
        for line, name in zip(start, ("run", "model", "work", "memory", "received", "corpus")):
            assert line.startswith(name + ":"), (line, name)
        assert "  lr: 0.01  # deck" in self.read("run", "deck.resolved.yaml")
        assert "collectives of one step" in self.read("run", "plan.txt")

    def check_exposure(self, ranks, out):
        found = re.findall(r"communication was under way for \d+\.\d{3} s on average, (\d+\.\d)% of it exposed", out)
        assert len(found) == (1 if ranks > 1 else 0), out
        for share in found:
            assert float(share) <= 100

    def test_the_resolved_deck_is_a_deck_that_resolves_to_itself(self):
        self.trained(2, optimizer__lr="0.02")
        once = self.read("run", "deck.resolved.yaml")
        assert "  lr: 0.02  # override\n" in once
        first = self.json_lines("run", "metrics.jsonl")
        done = self.launch(2, deck="run/deck.resolved.yaml", checkpoint__dir="again")
        assert done.returncode == 0, done.stderr
        values = [[line.split("  # ")[0] for line in text.splitlines() if "  dir: " not in line]
                  for text in (once, self.read("again", "deck.resolved.yaml"))]
        assert values[0] == values[1]
        assert bits(self.json_lines("again", "metrics.jsonl")) == bits(first)

    def test_the_same_run_gives_the_same_bits(self):
        for ranks in (1, 2, 3):
            for name in ("a", "b"):
                self.trained(ranks, checkpoint__dir=name)
            assert bits(self.json_lines("a", "metrics.jsonl")) == bits(self.json_lines("b", "metrics.jsonl"))

    def test_threads_give_the_same_loss(self):
        self.trained(1)
        one = self.json_lines("run", "metrics.jsonl")
        done = subprocess.run(self.command(1, {"checkpoint.dir": "two"}), capture_output=True, timeout=300,
                              cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "2"})
        assert (done.returncode, done.stderr) == (0, b"")
        for a, b in zip(one, self.json_lines("two", "metrics.jsonl"), strict=True):
            assert abs(a["loss"] - b["loss"]) <= 0.02

    def test_a_clip_of_0_clips_nothing(self):
        self.trained(1)
        clipped = self.json_lines("run", "metrics.jsonl")
        self.trained(1, optimizer__clip=0)
        free = self.json_lines("run", "metrics.jsonl")
        assert {row["clip_coef"] for row in free} == {1}
        assert clipped[0]["clip_coef"] < 1
        assert (free[0]["loss"], free[0]["grad_norm"]) == (clipped[0]["loss"], clipped[0]["grad_norm"])
        assert free[-1]["loss"] != clipped[-1]["loss"]

    def test_threads_that_wait_sleep_soon_unless_the_user_said_otherwise(self):
        said = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
        own = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
        for asked, found in (({}, own), ({"OMP_WAIT_POLICY": "passive"},) * 2, ({"GOMP_SPINCOUNT": "50"},) * 2,
                             ({"LD_PRELOAD": "vgpreload_none.so"}, {})):  # as valgrind does, which would not follow
            for ranks in (1, 2):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                environment = {name: value for name, value in os.environ.items() if name not in said}
                done = subprocess.run(self.command(ranks, {"run.steps": 1}), capture_output=True, timeout=300, cwd=self.folder,
                                      text=True, env={**environment, **asked, "OMP_NUM_THREADS": "2"})
                assert done.returncode == 0, done.stderr
                record = json.loads(self.read("run", "run.json"))
                assert {name: record["environment"][name] for name in said if name in record["environment"]} == found
                assert (record["ranks"], record["command_line"][1:3]) == (ranks, ["train", "deck.yaml"])

    def test_no_evaluation_without_windows_for_it(self):
        done = self.launch(1, data__eval_fraction="0")
        assert "no evaluation: data.eval_fraction 0" in done.stderr
        assert "nan" not in done.stdout
        assert not any("eval_loss" in row for row in self.json_lines("run", "metrics.jsonl"))

    def test_a_key_without_effect_is_told_of_and_allowed(self):
        done = self.launch(2, optimizer__decay_steps=3)
        assert done.returncode == 0
        assert done.stderr.count("optimizer.decay_steps: has an effect only with schedule wsd") == 1

    def test_products_without_instructions_are_told_of_once(self):
        info = subprocess.run([self.tessera, "info", "--json"], capture_output=True, text=True, timeout=300, check=True).stdout
        slow = {"bf16": not json.loads(info)["bf16_instructions"], "fp32": False}
        for compute in slow:
            out = self.trained(2, precision__compute=compute)
            assert out.count("speed: ") == int(slow[compute]), out

    def test_the_run_does_what_the_plan_says(self):
        for ranks in (1, 2, 3, 4):
            with self.subtests.test(ranks=ranks):
                self.check_plan(ranks)

    def held(self, out):
        """Bytes by category, as a run allocated them."""
        text = out.split("memory of one rank, the most that any allocated\n")[1]
        return {name: int(size) for name, size in re.findall(r"^  (\w+) +(\d+) bytes$", text, re.MULTILINE)}

    def test_a_mixture_learns_in_the_memory_that_was_planned(self):
        self.write("mixture.yaml", DECK.replace("seq_len: 32", "seq_len: 32, norm: rms, activation: swiglu, moe: {experts: 4, top_k: 2}"))
        for ranks, compute in itertools.product((1, 2, 4), ("bf16", "fp32")):
            with self.subtests.test(ranks=ranks, compute=compute):
                plan = self.planned(ranks, deck="mixture.yaml", precision__compute=compute)
                out = self.trained(ranks, deck="mixture.yaml", precision__compute=compute)
                assert self.held(out) == plan["memory"]
                assert "memory was asked for 0 times after the second step" in out
                rows = self.json_lines("run", "metrics.jsonl")
                assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
                for row in rows:
                    assert 1 <= row["balance_loss"] < 4 and row["z_loss"] > 0, row

    def check_plan(self, ranks):
        plan = self.planned(ranks)
        assert plan["ranks"] == ranks
        assert len(plan["groups"]) >= 6
        out = self.trained(ranks)
        table = {op: (int(count), int(size))
                 for op, count, size in re.findall(r"^  (\w+) +(\d+) calls? +(\d+) bytes$", out, re.MULTILINE)}
        assert {c["op"] for c in plan["collectives"]} <= set(table)
        for op, row in table.items():
            of_op = [c for c in plan["collectives"] if c["op"] == op]
            assert row == (sum(c["count"] for c in of_op), sum(c["bytes"] * c["count"] for c in of_op)), op
        assert self.held(out) == plan["memory"]
        self.trained(ranks, debug__trace="trace.jsonl", eval__every_steps=0)
        planned = sorted((c["group"], c["op"], c["bytes"] * c["count"]) for c in plan["collectives"]
                         if (c["group"], c["op"]) != (-1, "all_gather"))  # the report's sums are not traced
        assert bool(planned) == (ranks > 1)
        assert ("all_to_all" in {op for _, op, _ in planned}) == (ranks > 1)
        trace = self.json_lines("trace.jsonl")
        assert [row["step"] for row in trace] == [1, 2, 3, 4, 5, 6]
        for row in trace:
            assert sorted((c["group"], c["op"], c["bytes"]) for c in row["collectives"]) == planned

    def test_a_trace_names_every_tensor(self):
        debug = {"debug__trace": "trace.jsonl", "debug__replica_hash_every": 1, "debug__spot_check_every": 1}
        assert self.held(self.trained(2, **debug)) == self.planned(2, **debug)["memory"]
        for row in self.json_lines("trace.jsonl"):
            names = list(row["masters"])
            assert "layers.1.mlp.down.weight" in names
            assert len(names) == 29
            assert (list(row["gradients"]), list(row["weights"])) == (names, names)
            for digest in (*row["masters"].values(), *row["gradients"].values(), row["logits"],
                           *(weight["rowwise"] for weight in row["weights"].values())):
                assert re.search("^[0-9a-f]{16}$", digest)


def token_file(tokens, magic=20240520):
    header = struct.pack("<3i", magic, 1, len(tokens)).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}H", *tokens)


class Refusals(Train):
    """Bad input: found before training starts, alike on every rank."""

    def unprivileged(self):
        """Command prefix that drops privileges if root runs the tests, so that permissions apply."""
        if os.geteuid() != 0:
            return []
        if not shutil.which("setpriv"):
            pytest.skip("root without setpriv: permissions do not bind")
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        for program in (self.tessera, shutil.which(self.launcher)):  # setpriv itself could still start them; the launcher would hang
            if subprocess.run([*prefix, "test", "-x", program]).returncode != 0:
                pytest.skip("an unprivileged user may not run " + program)
        return prefix

    def test_the_corpus(self):
        self.refused_by_validate_too(5, "gone cannot be read: No such file or directory", data__root="gone")
        self.refused_by_validate_too(5, "*.md: fits no file below", "none: no such file below", data__files="[\"*.md\", \"*.txt\", none]")
        self.write("empty.txt", "")
        self.refused_by_validate_too(5, "the corpus is empty", data__files="[empty.txt]")
        self.write("short.txt", "A short text of forty bytes, more or les")
        self.refused_by_validate_too(5, "the corpus has 40 tokens, but model.seq_len 64 needs at least 130", data__files="[short.txt]",
                     model__seq_len=64)

    def test_a_corpus_that_may_not_be_read(self):
        before = self.unprivileged()
        os.chmod(self.path("corpus.txt"), 0)
        self.refused_by_validate_too(5, "corpus.txt: cannot be read: Permission denied", before=before)

    def test_token_files(self):
        tokens = {"data__kind": "tokens", "data__files": "[tokens.bin]", "sample__tokens": 0}
        self.write("tokens.bin", token_file(list(range(300)) * 4))
        self.refused(3, "model.vocab", **tokens)
        self.refused(5, "tokens.bin: token 256 at position 256 is outside the vocabulary; model.vocab is 256 and must "
                     "be at least 300", model__vocab=256, **tokens)
        assert "step 6/6" in self.trained(2, model__vocab=300, **tokens)
        shutil.rmtree(self.path("run"))
        self.write("tokens.bin", token_file([1, 2, 3] * 100, magic=7))
        self.refused(5, "tokens.bin: not a token file", model__vocab=256, **tokens)

    def test_a_batch_that_the_ranks_do_not_divide(self):
        self.refused(3, "batch.global: 12 sequences cannot be shared by 2 ranks in micro-batches of 4: use batch.micro 1, 2, 3 "
                     "or 6, or batch.global 8 or 16", ranks=[2], batch__micro=4)
        self.refused(3, "batch.global: 2 sequences cannot be shared by 3 ranks in micro-batches of 1: no batch.micro divides it: "
                     "use batch.global 3", ranks=[3], batch__global=2)

    def test_a_model_that_no_machine_holds(self):
        """Some 370 TB of weights, gradients and optimizer state."""
        self.refused_by_validate_too(3, " not fit ", "`tessera plan` shows what the memory is for", model__hidden=131072, model__layers=100,
                     model__ffn=524288)

    def test_decks(self):
        bomb = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))
        for name, text, said in (("empty", "", ":1:1: is empty"), ("binary", b"\x89PNG\r\n\x1a\n\x00\x01", ":"),
                                 ("nested", "a: " + "[" * 5000, ":"), ("bomb", bomb, ":1:1: run.steps: missing")):
            self.write(name + ".yaml", text)
            self.refused(3, name + ".yaml" + said, deck=name + ".yaml")
        self.refused(3, "gone.yaml: cannot be read: No such file or directory", deck="gone.yaml")
        os.mkdir(self.path("folder.yaml"))
        self.refused(3, "folder.yaml: is a folder", deck="folder.yaml")
        os.mkfifo(self.path("pipe.yaml"))
        self.refused(3, "pipe.yaml: is a pipe", deck="pipe.yaml")
        os.truncate(self.write("huge.yaml", ""), 1 << 30)
        self.refused(3, "huge.yaml: is larger than 1 MiB", deck="huge.yaml")

    def test_a_wrong_command_line_is_told_by_one_rank_of_a_launch(self):
        for verb in ("train", "eval", "audit", "generate"):
            done = subprocess.run([self.launcher, "-n", "3", self.tessera, verb, "--not-an-option"], capture_output=True, text=True, timeout=300,
                                  cwd=self.folder)
            assert (done.returncode, done.stderr.count("--not-an-option")) == (2, 1), (verb, done.stdout, done.stderr)

    def test_everything_that_is_wrong_with_a_deck_once(self):
        self.write("bad.yaml", DECK + "evaluation: {batches: 1}\n")
        self.refused(3, "bad.yaml:11:1: evaluation: unknown key, did you mean eval?",
                     "--set optimizer.lr=fast: optimizer.lr: fast is not a number", deck="bad.yaml",
                     optimizer__lr="fast")

    def test_ranks_that_were_started_one_by_one(self):
        """Like srun with the wrong --mpi, or another library's launcher: that counts the tasks, but MPI has one rank."""
        info = subprocess.run([self.tessera, "info", "--json"], capture_output=True, timeout=60, text=True)
        assert json.loads(info.stdout)["launcher"] == self.launcher
        for variable, tasks in (("SLURM_STEP_NUM_TASKS", 2), ("OMPI_COMM_WORLD_SIZE", 7)):
            done = subprocess.run([self.tessera, "train", "deck.yaml"], capture_output=True, timeout=300, cwd=self.folder, text=True,
                                  env={**os.environ, variable: str(tasks)})
            assert done.returncode == 4, (done.stdout, done.stderr)
            assert done.stderr.count(f"started as {tasks} separate runs of one rank each ({variable}={tasks})") == 1
            assert done.stderr.count(f"start it with {self.launcher} -n {tasks}, or under Slurm with srun --mpi=pmi2") == 1
            assert not os.path.exists(self.path("run"))

    def test_a_run_directory_that_is_none(self):
        self.write("file", "")
        self.refused_by_validate_too(4, "checkpoint.dir: ", "is a file", checkpoint__dir="file")
        self.refused_by_validate_too(4, "checkpoint.dir: ", "is a file", checkpoint__dir="file/below/it")
        assert os.path.getsize(self.path("file")) == 0
        self.refused_by_validate_too(4, "checkpoint.dir: ", "cannot be made: File name too long", left="", checkpoint__dir="x" * 300)

    def test_a_run_directory_that_is_read_only(self):
        before = self.unprivileged()
        os.mkdir(self.path("closed"), 0o555)
        self.refused_by_validate_too(4, "checkpoint.dir: nothing can be written in closed: Permission denied", before=before,
                     left="closed", checkpoint__dir="closed")
        self.refused_by_validate_too(4, "checkpoint.dir: closed/run cannot be made: Permission denied", before=before, left="closed",
                     checkpoint__dir="closed/run")
        os.makedirs(self.path("hidden", "run"))
        os.chmod(self.path("hidden"), 0)
        self.refused_by_validate_too(4, "hidden/run", "Permission denied", before=before, left="", checkpoint__dir="hidden/run")

    def test_steps_that_cannot_be_read_are_kept(self):
        before = self.unprivileged()
        self.trained(1, checkpoint__every_steps=2)
        for folder, _, files in os.walk(self.path("run")):
            os.chmod(folder, 0o777)
            for name in files:
                os.chmod(os.path.join(folder, name), 0o666)
        newest = max(name for name in os.listdir(self.path("run")) if name.startswith("step_"))
        for path, mode, said in ((("run", newest, "model.h5"), 0, "this user may not read it"), (("run", newest), 0, "cannot be listed"),
                                 (("run",), 0o333, "run: cannot be listed")):
            kept = os.stat(self.path(*path)).st_mode
            os.chmod(self.path(*path), mode)
            try:
                done = self.launch(2, before=before)
            finally:
                os.chmod(self.path(*path), kept)
            assert done.returncode == 4, (path, done.stdout, done.stderr)
            assert said in done.stderr
        assert os.path.exists(self.path("run", newest, "model.h5"))
        assert self.launch(2, before=before).returncode == 0

    def test_files_of_another_kind_are_kept(self):
        for key in ("debug.trace", "debug.profile"):
            self.refused_by_validate_too(2, f"{key} deck.yaml: is there, and is another kind of file",
                                         **{key.replace(".", "__"): "deck.yaml"})
        assert self.read("deck.yaml") == DECK

    def test_a_file_that_is_evaluated_on_too(self):
        self.write("deck.yaml", DECK.replace("eval_fraction: 0.1", "eval_files: [corpus.txt]"))
        self.refused_by_validate_too(3, "corpus.txt is trained on too: leave it out of data.files")
        for name, link in (("soft.txt", os.symlink), ("hard.txt", os.link)):
            link(self.path("corpus.txt"), self.path(name))
            self.write("deck.yaml", DECK.replace("eval_fraction: 0.1", f"eval_files: [{name}]"))
            self.refused_by_validate_too(3, f"{name} is trained on too, as ")

    def test_a_file_that_is_no_text(self):
        for head in (b"\x1f\x8b\x08", b"\x93NUMPY", b"\x88\xd8\x34\x01", b"a\0b"):
            with open(self.path("other.bin"), "wb") as file:
                file.write(head + os.urandom(20000))
            self.refused_by_validate_too(5, "other.bin: is ", data__files="[other.bin]")

    def test_a_trace_that_cannot_be_written(self):
        self.refused_by_validate_too(4, "debug.trace: gone/trace.jsonl cannot be written: No such file or directory",
                                     debug__trace="gone/trace.jsonl")
        self.refused(4, "debug.trace: ", debug__trace=self.folder)

    def test_a_profile_that_cannot_be_written(self):
        self.refused(4, "debug.profile: gone/p.json cannot be written: No such file or directory", debug__profile="gone/p.json")
        self.refused(3, "debug.profile: is the file of debug.trace too: name another", debug__profile="one",
                     debug__trace="one")


class Faults(Train):
    """Faults during a run."""

    def small_disk(self, pages):
        folder = self.path("disk")
        os.mkdir(folder)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={pages * os.sysconf('SC_PAGE_SIZE')}", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("this user or machine mounts no tmpfs")
        self.at_end.callback(subprocess.run, ["umount", "-l", folder], check=True)
        return folder

    def test_a_full_disk_before_the_run(self):
        folder = self.small_disk(4)
        with pytest.raises(OSError), open(os.path.join(folder, "filler"), "wb", buffering=0) as filler:
            while True:
                if filler.write(b"." * 4096) < 4096:
                    raise OSError("full")
        self.refused(4, "checkpoint.dir: nothing can be written in disk: No space left on device", left="",
                     checkpoint__dir="disk")
        assert os.listdir(folder) == ["filler"]

    def test_a_disk_that_fills_up_during_the_run(self):
        folder = self.small_disk(1024)  # enough for the checkpoint, or the run is refused

        def fill():
            while not os.path.exists(os.path.join(folder, "run", "metrics.jsonl")):
                time.sleep(0.01)
            with open(os.path.join(folder, "filler"), "wb", buffering=0) as filler, contextlib.suppress(OSError):
                while filler.write(bytes(4096)) == 4096:
                    pass

        for ranks in (1, 2):
            shutil.rmtree(self.path("disk", "run"), ignore_errors=True)
            filler = threading.Thread(target=fill)
            filler.start()
            done = self.launch(ranks, checkpoint__dir="disk/run", run__steps=1000000)
            filler.join()
            os.remove(os.path.join(folder, "filler"))
            assert done.returncode == 4, (done.stdout, done.stderr)
            assert done.stderr.count("metrics.jsonl") == 1, done.stderr
            assert "No space left on device" in done.stderr
            steps = [row["step"] for row in self.json_lines("disk", "run", "metrics.jsonl")]
            assert steps == list(range(1, len(steps) + 1))
            assert len(steps) < 1000000

    def test_numbers_that_explode(self):
        for ranks in (1, 2):
            shutil.rmtree(self.path("run"), ignore_errors=True)
            done = self.launch(ranks, optimizer__lr=1000, optimizer__schedule="constant", optimizer__max_skips=3,
                               run__steps=300)
            assert done.returncode == 6, (done.stdout, done.stderr)
            assert done.stderr.count("3 steps in a row") == 1, done.stderr
            assert "optimizer.max_skips" in done.stderr
            rows = self.json_lines("run", "metrics.jsonl")
            assert [row["skipped"] for row in rows[-4:]] == [False, True, True, True]
            assert rows[-1]["grad_norm"] is None
            page = self.read("run", "report.html")
            assert "3 steps in a row had gradients that are not finite" in page
            assert f"{len(rows)} of 300" in page
            assert "Time by region" in page
            assert "time by region" in done.stdout

    def test_a_last_save_that_fails_has_a_report(self):
        done = subprocess.run(self.command(2, {}), capture_output=True, timeout=300, cwd=self.folder, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "TESSERA_FAULT": "payload:1:eio"})
        assert done.returncode == 4, (done.stdout, done.stderr)
        page = self.read("run", "report.html")
        assert "6 of 6" in page
        assert "Input/output error" in page

    def test_a_rank_that_is_killed_ends_the_run(self):
        with open(self.path("log"), "wb") as log:
            run = subprocess.Popen(self.command(2, {"run__steps": 1000000}), cwd=self.folder, stdout=log, stderr=log,
                                   start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            deadline = time.monotonic() + 300
            while not os.path.exists(self.path("run", "metrics.jsonl")) or not self.read("run", "metrics.jsonl"):
                assert time.monotonic() < deadline, self.read("log")
                time.sleep(0.05)
            victims = [pid for pid in processes.find(self.tessera, self.folder) if processes.rank_of(pid) == 1]
            assert len(victims) == 1
            os.kill(victims[0], signal.SIGKILL)
            assert run.wait(timeout=300) != 0
            while processes.find(self.tessera, self.folder):
                assert time.monotonic() < deadline, "ranks are left over"
                time.sleep(0.05)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
