"""The quickstart deck on 1, 2 and 4 GPUs, compared with the host's goldens, with itself, and across back ends.

    python3 -m pytest training_test.py --tessera ... [--host-program ...] [--data FOLDER]
    PYTHONPATH=tests/harness python3 training_test.py TESSERA MPIEXEC [FOLDER] > goldens/quickstart.json    # the program of a host build

FOLDER has the corpus where the deck's own is not there; what crosses back ends needs the program of a host build, too.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import processes

HERE = os.path.dirname(os.path.realpath(__file__))
DECK = os.path.join(HERE, "..", "..", "inputs", "quickstart", "moe_text.yaml")
GOLDEN = os.path.join(HERE, "goldens", "quickstart.json")
RANKS = (1, 2, 4)
STEPS = 20
TOLERANCE = {"bf16": 1e-2, "fp32": 1e-4}  # relative, of each of the first losses
# Half the deck's learning rate: with the full rate bf16 losses of different rank counts on the host differ by 6e-3
# within 19 steps; with half of it by 2e-4.
CALM = {"optimizer.lr": 1e-3}


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


class Folder:
    """Training runs in a temporary folder."""

    def __init__(self, path, tessera, launcher, data=""):
        self.path, self.tessera, self.launcher, self.data = path, tessera, launcher, data

    def command(self, ranks, run, settings, *arguments, program=None):
        values = {"checkpoint.dir": os.path.join(self.path, run), "run.steps": STEPS, "batch.micro": 4,
                  "eval.every_steps": 10, "eval.batches": 2, "sample.tokens": 0, "run.threads": 1,
                  "data.eval_windows": "tail", **settings}  # as when the goldens were made
        if self.data:
            values["data.root"] = os.path.abspath(self.data)
        sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        return [self.launcher, "-n", str(ranks), program or self.tessera, "train", DECK, *sets, *arguments]

    def train(self, ranks, run, settings=None, *arguments, code=0, program=None):
        done = subprocess.run(self.command(ranks, run, settings or {}, *arguments, program=program), check=False,
                              capture_output=True, text=True, errors="replace", timeout=300)
        if done.returncode != code:
            raise AssertionError(f"{ranks} ranks, {settings}, {arguments}: ended with {done.returncode}, not {code}\n"
                                 f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def rows(self, run):
        with open(os.path.join(self.path, run, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def results(self, run, *left_out):
        """The rows without times, the number of restarts and the keys `left_out`."""
        times = ("step_ms", "save_blocked_ms", "tokens_per_s", "mfu", "time", "restart", *left_out)
        return [{key: value for key, value in row.items() if key not in times}
                for row in self.rows(run)]

    def library_plans(self, run):
        with open(os.path.join(self.path, run, "run.json"), encoding="utf-8") as file:
            return json.load(file)["library_plans"]

    def losses(self, run):
        return [row["loss"] for row in self.rows(run)]

    def digest(self, run):
        inspect = [self.tessera, "checkpoint", "inspect", os.path.join(self.path, run), "--json"]
        text = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
        return json.loads(text)["content_digest"]

    def first_trace(self, ranks, compute, beginning="", program=None):
        """Trace of a step that changes nothing: weights and masters of the beginning, gathered."""
        name = f"{ranks}{compute}{'host' if program else ''}{os.path.basename(beginning)}"
        trace = os.path.join(self.path, f"trace{name}.jsonl")
        self.train(ranks, f"still{name}",
                   {"optimizer.lr": 0, "optimizer.min_lr": 0, "run.steps": 1, "precision.compute": compute,
                    "debug.trace": trace, "checkpoint.init_from": beginning}, program=program)
        with open(trace, encoding="utf-8") as file:
            row = json.loads(file.readline())
        return {"weights": row["weights"], "masters": row["masters"]}, sorted(row["collectives"], key=json.dumps)


def make_golden(tessera, launcher, data=""):
    with tempfile.TemporaryDirectory(prefix="tessera-gpu-") as path:
        print(json.dumps(golden_of(Folder(path, tessera, launcher, data)), indent=0))


def golden_of(folder):
    golden = {"command": "training_test.py build/host/tessera mpiexec",
              "losses": {}, "initial": {}, "collectives": {}}
    folder.train(1, "start", {"run.steps": 0})
    golden["content_digest"] = folder.digest("start")
    for compute in TOLERANCE:
        folder.train(2, compute, {"precision.compute": compute, **CALM})
        golden["losses"][compute] = folder.losses(compute)
        for ranks in RANKS:
            golden["initial"][compute], golden["collectives"][f"{compute} {ranks}"] = folder.first_trace(ranks, compute)
    return golden


on_every_number = pytest.mark.parametrize("ranks", RANKS)


@pytest.mark.skipif(gpus() == 0, reason="no GPU here")
class OnGpus:
    @pytest.fixture(autouse=True)
    def on_gpus(self, request, pytestconfig):
        self.host = pytestconfig.option.host_program
        self.runs = Folder(self.folder, self.tessera, self.launcher, pytestconfig.option.data)
        if "ranks" in request.fixturenames and request.getfixturevalue("ranks") > gpus():
            pytest.skip(f"{gpus()} GPUs here")
        with open(GOLDEN, encoding="utf-8") as file:
            self.golden = json.load(file)

    def needs_a_host_build(self):
        if not self.host:
            pytest.skip("needs --host-program")

    def near_golden(self, losses, compute, first=1):
        expected = self.golden["losses"][compute][first - 1:]
        assert len(losses) == len(expected)
        for step, (loss, host) in enumerate(zip(losses, expected), first):
            assert abs(loss - host) / host < TOLERANCE[compute], (compute, step, loss, host)

    @on_every_number
    def test_initial_weights_and_what_is_gathered_are_the_hosts(self, ranks):
        self.runs.train(ranks, f"start{ranks}", {"run.steps": 0})
        assert self.runs.digest(f"start{ranks}") == self.golden["content_digest"]
        for compute in TOLERANCE:
            initial, collectives = self.runs.first_trace(ranks, compute)
            assert initial == self.golden["initial"][compute]
            assert collectives == self.golden["collectives"][f"{compute} {ranks}"]

    @on_every_number
    @pytest.mark.parametrize("compute", TOLERANCE)
    def test_what_is_gathered_from_a_checkpoint_is_the_hosts(self, ranks, compute):
        self.needs_a_host_build()
        trained = os.path.join(self.runs.path, "trained")
        self.runs.train(2, "trained", CALM, "--stop-at", "5", code=75, program=self.host)
        here = self.runs.first_trace(ranks, compute, trained)
        assert here == self.runs.first_trace(ranks, compute, trained, self.host)
        assert here[0] != self.golden["initial"][compute]

    @on_every_number
    @pytest.mark.parametrize("compute", TOLERANCE)
    def test_the_first_losses_are_the_hosts(self, ranks, compute):
        self.runs.train(ranks, compute, {"precision.compute": compute, **CALM})
        losses = self.runs.losses(compute)
        worst = max(abs(a - b) / b for a, b in zip(losses, self.golden["losses"][compute]))
        print(f"{ranks} GPUs, {compute}: losses differ from the host's by {worst:.1e} at most", flush=True)
        self.near_golden(losses, compute)

    @on_every_number
    def test_a_run_repeats_and_resumes_to_the_bit(self, ranks):
        whole, again, parts = (f"{name}{ranks}" for name in ("whole", "again", "parts"))
        for run in (whole, again):
            self.runs.train(ranks, run)
        assert self.runs.results(again) == self.runs.results(whole)
        assert self.runs.digest(again) == self.runs.digest(whole)
        self.runs.train(ranks, parts, {}, "--stop-at", "7", code=75)
        chosen = self.runs.library_plans(parts)
        self.runs.train(ranks, parts)
        assert self.runs.results(parts) == self.runs.results(whole)
        assert self.runs.digest(parts) == self.runs.digest(whole)
        kept = self.runs.library_plans(parts)
        assert chosen["chosen"] > 0
        assert (chosen["kept"], kept["kept"], kept["chosen"]) == (0, chosen["chosen"], 0)
        assert kept["plans"] == chosen["plans"]

    @on_every_number
    def test_overlap_and_trace_change_no_bit(self, ranks):
        ways = {"on": {}, "off": {"proof.gather_overlap": "false", "proof.reduce_overlap": "false"}, "trace": {}}
        ways["trace"] = {"debug.trace": os.path.join(self.runs.path, f"trace{ranks}.jsonl")}
        for name, settings in ways.items():
            self.runs.train(ranks, f"{name}{ranks}", {"debug.replica_hash_every": 5, **settings})
            assert self.runs.results(f"{name}{ranks}") == self.runs.results(f"on{ranks}"), name

    @on_every_number
    def test_saves_beside_training_hold_the_state_of_their_step(self, ranks):
        """Large tables and short sequences: the copy takes longer than the next step's way to its update, which waits for it."""
        sets = {"model.vocab": 200000, "model.seq_len": 16, "batch.global": 4, "batch.micro": 1, "run.steps": 9, "eval.every_steps": 0,
                "checkpoint.io": "direct", "checkpoint.every_steps": 2, "checkpoint.keep_every": 1}
        saved = []
        for name, how in (("waits", {}), ("beside", {"checkpoint.async": "true"})):
            said = self.runs.train(ranks, f"{name}{ranks}", {**sets, **how})
            saved.append(re.findall(r"saved \S*step_(\d+) \| (\w{16})", said))
            verified = subprocess.run([self.tessera, "checkpoint", "verify", os.path.join(self.runs.path, f"{name}{ranks}")], capture_output=True, text=True, check=False)
            assert verified.returncode == 0, verified.stdout + verified.stderr
        assert [int(step) for step, _ in saved[0]] == [2, 4, 6, 8, 9]
        assert saved[1] == saved[0]
        assert self.runs.results(f"beside{ranks}") == self.runs.results(f"waits{ranks}")

    @pytest.mark.parametrize("recipe", ("bf16", "mxfp8", "nvfp4", "fp8_block"))
    def test_rows_in_peers_memory_have_the_bits_of_an_exchange(self, recipe):
        """Experts over 2 GPUs: captured, launched kernel by kernel, and behind other steps of the exchange."""
        if gpus() < 2:
            pytest.skip("needs two GPUs")
        base = {"parallel.expert": 2, "precision.recipe": recipe, "proof.expert_rows": "exchange"}
        peers = {**base, "proof.expert_rows": "peers"}
        for name, settings in {"exchange": base, "captured": peers, "auto": {**base, "proof.expert_rows": "auto"}, "launched": {**peers, "proof.graph": "false"},
                               "little_room": {**peers, "parallel.expert_room": 1.99}}.items():
            self.runs.train(2, f"{name}.{recipe}", settings)
        self.runs.train(2, f"both.{recipe}", base, "--stop-at", "7", code=75)
        self.runs.train(2, f"both.{recipe}", peers)
        for name in ("captured", "launched", "little_room", "both"):
            rows, expected = (self.runs.results(f"{run}.{recipe}", "memory_bytes") for run in (name, "exchange"))
            assert rows == expected, name
            assert self.runs.digest(f"{name}.{recipe}") == self.runs.digest(f"exchange.{recipe}"), name
        memory = {name: self.runs.results(f"{name}.{recipe}")[-1]["memory_bytes"] for name in ("auto", "captured", "exchange")}
        assert memory["auto"] == memory["captured"] != memory["exchange"], "auto reaches these GPUs' memory"

    def test_rows_in_peers_memory_need_peers_that_are_reached(self):
        if gpus() < 2:
            pytest.skip("needs two GPUs")
        peers = {"parallel.expert": 2, "proof.expert_rows": "peers"}
        for settings in ({"proof.copy_engines": "false"}, {"proof.share_gpu": "true", "batch.micro": 1, "batch.global": 4 * (2 * gpus())}):
            ranks = 2 if "proof.copy_engines" in settings else 2 * gpus()
            refusal = self.runs.train(ranks, f"refused{ranks}", {**peers, **settings}, code=4)
            assert "proof.expert_rows: peers needs expert groups" in refusal, refusal
            self.runs.train(ranks, f"auto{ranks}", {**peers, **settings, "proof.expert_rows": "auto"})  # exchanges

    def test_more_ranks_than_gpus(self):
        ranks = gpus() + 1
        micro = {"batch.micro": 1, "batch.global": 4 * ranks}
        refusal = self.runs.train(ranks, "refused", micro, code=3)
        assert refusal.count("proof.share_gpu: false") == 1, refusal
        self.runs.train(ranks, "shared", {**micro, "proof.share_gpu": "true", "debug.replica_hash_every": 5})
        losses = self.runs.losses("shared")
        assert len(losses) == STEPS
        assert losses[-1] < losses[0] - 0.5

    @pytest.mark.parametrize("rows", ("", "exchange", "peers"))
    def test_a_rank_that_stands_still_ends_the_run(self, rows):
        if gpus() < 2:
            pytest.skip("needs two GPUs")
        spread = {"parallel.expert": 2, "proof.expert_rows": rows} if rows else {}
        log = os.path.join(self.runs.path, f"log{rows}")
        with open(log, "wb") as output:
            endless = self.runs.command(2, f"stuck{rows}", {"run.steps": 1000000, "comm.timeout_s": 5, **spread})
            run = subprocess.Popen(endless, stdout=output, stderr=output)
        rows = os.path.join(self.runs.path, f"stuck{rows}", "metrics.jsonl")
        deadline = time.monotonic() + 120
        while not (os.path.exists(rows) and os.path.getsize(rows)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        victim = self.rank_one()
        os.kill(victim, signal.SIGSTOP)
        try:
            code = run.wait(timeout=120)
        finally:
            for act in (lambda: os.kill(victim, signal.SIGKILL), run.kill):
                try:
                    act()
                except ProcessLookupError:
                    pass
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        assert code == 7, text[-3000:]
        assert re.search(re.compile(r"rank 0 has waited 5 s in [\w ]+ #\d+"), text), text[-3000:]

    def rank_one(self):
        for pid in processes.find(self.tessera, PMI_RANK="1"):
            return pid
        pytest.fail("no rank 1 runs")

    def test_checkpoints_cross_back_ends(self):
        self.needs_a_host_build()
        # The host runs to step 5, the GPU to 12, the host to the end.
        self.runs.train(2, "crossing", CALM, "--stop-at", "5", code=75, program=self.host)
        self.runs.train(1, "crossing", CALM, "--stop-at", "12", code=75)
        self.runs.train(2, "crossing", CALM, program=self.host)
        self.near_golden(self.runs.losses("crossing"), "bf16")


if __name__ == "__main__":
    make_golden(*sys.argv[1:])
