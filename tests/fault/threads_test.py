"""Environments in which OpenMP gives a parallel region fewer threads than run.threads. Each run either ends at once with
a message that names the cause, or has the bits of a run that nothing disturbs.
"""
import itertools
import json
import os
import random
import subprocess

OPENMP = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED")
DECK = """schema_version: 1
run: {name: small, steps: 6, threads: 2}
model: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 96, seq_len: 32, norm: rms, position: rotary, activation: swiglu}
data: {files: [text.txt], eval_fraction: 0.2}
batch: {global: 8, micro: 4}
eval: {every_steps: 3, batches: 2}
optimizer: {lr: 0.01, warmup_steps: 2}
"""


class Threads:
    def setup_method(self):
        for name, text in (("deck.yaml", DECK), ("text.txt", "a few words of a small text, " * 400)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        self.undisturbed = self.run_in("undisturbed")
        assert self.undisturbed.returncode == 0, self.undisturbed.stderr
        self.loss = self.evaluation_of("undisturbed")

    def call(self, *arguments, ranks=1, **variables):
        environment = {key: value for key, value in os.environ.items() if key not in OPENMP} | variables
        start = [self.launcher, "-n", str(ranks)] if ranks > 1 else []
        return subprocess.run([*start, self.tessera, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True,
                              timeout=300, check=False)

    def run_in(self, name, **variables):
        return self.call("train", "deck.yaml", "--set", f"checkpoint.dir={name}", **variables)

    def evaluation_of(self, name, **variables):
        done = self.call("eval", "deck.yaml", "--checkpoint", name, "--json", **variables)
        return done.returncode, done.stderr if done.returncode else json.loads(done.stdout)["eval_loss"]

    def rows(self, name):
        with open(os.path.join(self.folder, name, "metrics.jsonl"), encoding="utf-8") as file:
            return [[row.get(key) for key in ("step", "loss", "grad_norm", "eval_loss")] for row in map(json.loads, file)]

    def test_teams_keep_their_size_or_the_run_ends(self):
        wanted = self.rows("undisturbed")
        assert len(wanted) == 6
        drawn = random.Random(7).sample(list(itertools.product((None, "1", "2", "9"), (None, "true"), (None, "0", "1"))), 9)
        for number, (limit, dynamic, levels) in enumerate([("1", None, None), (None, "true", "0"), *drawn]):
            variables = {"OMP_THREAD_LIMIT": limit, "OMP_DYNAMIC": dynamic, "OMP_MAX_ACTIVE_LEVELS": levels,
                         "LD_PRELOAD": os.path.join(self.build, "tests/fault/libbusy_machine.so") if dynamic else None, "TESSERA_TEST_BUSY_AFTER": str(number * 150)}
            variables = {key: value for key, value in variables.items() if value is not None}
            with self.subtests.test(variables):
                name = f"run-{number}"
                done = self.run_in(name, **variables)
                if limit == "1":
                    assert done.returncode == 4, done.stderr
                    assert "2 are asked for (run.threads, OMP_NUM_THREADS), and 1 start; OMP_THREAD_LIMIT is 1" in done.stderr
                    assert not os.path.exists(os.path.join(self.folder, name))
                    code, message = self.evaluation_of("undisturbed", **variables)
                    assert code == 4, message
                else:
                    assert done.returncode == 0, done.stderr
                    assert self.rows(name) == wanted
                    assert self.evaluation_of("undisturbed", **variables) == self.loss

    def test_every_rank_is_refused_with_one_message(self):
        done = self.call("train", "deck.yaml", ranks=2, OMP_THREAD_LIMIT="1")
        assert done.returncode == 4, done.stderr
        assert done.stderr.count("OMP_THREAD_LIMIT is 1") == 1, done.stderr
