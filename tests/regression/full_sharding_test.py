"""Full sharding changes no bit: compared with `sharding: optimizer` if a rank has one micro-batch a step, and between its
own ways of gathering if it has three. The trace and the plan show which copies travel; memory falls with the number of
ranks.


With TESSERA_MATRIX=whole: every recipe, way to hold weights, recomputation, granularity, model and number of ranks,
TESSERA_MATRIX_JOBS runs side by side: minutes on 32 cores. TESSERA_MATRIX_PART=i/n: every n-th of them, from the i-th on.
"""
import concurrent.futures
import itertools
import json
import os
import re
import threading
import typing

from recipes_test import MODELS, RECIPES
import runs

WHOLE = os.environ.get("TESSERA_MATRIX") == "whole"
JOBS = int(os.environ.get("TESSERA_MATRIX_JOBS", "1"))
DECK = """schema_version: 1
run: {name: full, seed: 11, steps: 4, threads: 1}
model: {layers: 2, seq_len: 32, MODEL}
data: {files: ["*.txt"], eval_fraction: 0.1}
batch: {global: 12, micro: MICRO}
eval: {every_steps: 0, batches: 1}
optimizer: {lr: 0.01, warmup_steps: 2}
checkpoint: {dir: DIR, io: direct}
precision: {recipe: RECIPE}
"""
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")
MODES = {
    "none": (),
    "selective": ("recompute.mode=selective", "recompute.modules=[attention, mlp, moe]"),
    "norms": ("recompute.mode=selective", "recompute.modules=[norm]"),
    "activations": ("recompute.mode=selective", "recompute.modules=[norm, activation]"),
    "full": ("recompute.mode=full",),
}
SETTINGS = {
    "adamw": (),
    "muon": ("optimizer.matrices=muon",),
    "tied": ("model.tied_head=true",),
    "head": ("precision.quantize_head=true",),
    "ends": ("precision.bf16_first=1",),
    "spread": ("parallel.expert=2", "model.moe.experts=4"),
}
EVENTS = ("nothing", "often", "nan", "redo")
GRANULARITIES = ("auto", "block", "module")


def core(rows):
    return [{key: row[key] for key in CORE} for row in rows]


class Bench(runs.Runs):
    def run_of(self, name, recipe, model, ranks, *settings, micro=None, code=0, extra=(), fault=""):
        """The rows of a run's trace; `micro` sequences a micro-batch, by default one micro-batch a rank."""
        deck = self.write(name + ".yaml", DECK.replace("MODEL", MODELS[model]).replace("WEIGHTS", "single")
                          .replace("RECIPE", recipe).replace("MICRO", str(micro or 12 // ranks)).replace("DIR", self.path(name)))
        trace = self.path(name + ".trace")
        words = [word for setting in (*settings, f"debug.trace={trace}") for word in ("--set", setting)]
        self.train(code, ranks, deck, *extra, *words, fault=fault)
        return self.traced(trace, fault)

    def full(self, name, recipe, model, ranks, *settings, **more):
        return self.run_of(name, recipe, model, ranks, "sharding=full", *settings, **more)

    def losses(self, name):
        return [row.get("eval_loss") for row in self.json_lines(name, "metrics.jsonl")]


class Case(typing.NamedTuple):
    recipe: str
    held: str
    mode: str
    granularity: str
    model: str
    ranks: int
    event: str = "nothing"
    settings: str = "adamw"
    micros: int = 1  # micro-batches of a rank


# Cases with each recipe, way to hold weights, recomputation, granularity, model, number of ranks and event at least
# once.
SOME = (
    Case("bf16", "bf16", "selective", "auto", "dense", 2, "often", "tied"),
    Case("fp8_block", "quantized", "full", "module", "odd", 3, "redo"),
    Case("mxfp8", "quantized", "selective", "auto", "moe", 2, "nan", "spread"),
    Case("mxfp8_2d", "bf16", "norms", "block", "dense", 2, "nothing", "ends"),
    Case("nvfp4", "quantized", "none", "module", "moe", 4, "often", "spread"),
    Case("nvfp4_46", "quantized", "full", "block", "odd", 3, "nan"),
    Case("mxfp8", "quantized", "none", "block", "odd", 3, "nothing", "muon"),
    Case("mxfp8", "quantized", "full", "block", "dense", 2, "often", "head", 3),
    Case("mxfp8", "quantized", "selective", "module", "dense", 2, "nothing", "head", 3),
    Case("bf16", "bf16", "activations", "auto", "odd", 3, "redo"),
)


def legal(case):
    """Whether a case's settings suit its model, ranks and recipe."""
    if case.settings in ("head", "ends") and case.recipe == "bf16":
        return False
    return case.settings != "spread" or (case.model == "moe" and case.ranks % 2 == 0)


def every():
    ways = itertools.product(("bf16", *RECIPES), ("bf16", "quantized"), MODES, GRANULARITIES, MODELS, (2, 3, 4), (1, 3))
    events, settings = itertools.cycle(EVENTS), itertools.cycle(SETTINGS)
    for recipe, held, mode, granularity, model, ranks, micros in ways:
        if (recipe, mode, model) == ("bf16", "activations", "dense"):  # a gelu of a product cannot be made again
            continue
        case = Case(recipe, held, mode, granularity, model, ranks, next(events), next(settings), micros)
        if (recipe, held) != ("bf16", "quantized"):
            yield case if legal(case) else case._replace(settings="adamw")


class Same(Bench):
    """Runs whose traces must be equal (core() of their rows)."""

    def setup_method(self):
        super().setup_method()
        self.made, self.lock, self.numbers = {}, threading.Lock(), itertools.count()

    def one(self, case, *settings):
        name = f"run{next(self.numbers)}"
        fault = {"nan": f"step3:{case.ranks - 1}:nan", "redo": "step3:all:redo"}.get(case.event, "")
        rows = self.run_of(name, case.recipe, case.model, case.ranks, *SETTINGS[case.settings], *settings, fault=fault,
                           micro=12 // case.ranks // case.micros)
        return core(rows), name

    def first(self, case):
        """The trace that a case is compared with, made once for all cases that share it: weights held in bf16, no
        recomputation, and sharding `optimizer` if a rank has one micro-batch."""
        sharding = "optimizer" if case.micros == 1 else "full"
        event = "nan" if case.event == "nan" else "nothing"
        key = (case.recipe, case.model, case.ranks, event, case.settings, case.micros)
        with self.lock:
            future, mine = self.made.get(key), key not in self.made
            if mine:
                future = self.made[key] = concurrent.futures.Future()
        if mine:
            try:
                plain = case._replace(event=event)
                future.set_result(self.one(plain, "precision.primary_weights=bf16", f"sharding={sharding}")[0])
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def check(self, number, case):
        first = self.first(case)
        assert [row["step"] for row in first] == [1, 2, 3, 4]
        assert first[0]["masters"] != first[-1]["masters"]
        often = ("eval.every_steps=1", "checkpoint.every_steps=1") if case.event == "often" else ()
        rows, name = self.one(case, "sharding=full", f"precision.primary_weights={case.held}", *MODES[case.mode],
                              f"gather.granularity={case.granularity}", f"proof.gather_overlap={str(number % 2 == 0).lower()}",
                              f"proof.reduce_overlap={str(number % 3 > 0).lower()}", "debug.replica_hash_every=2", *often)
        for row, wanted in zip(rows, first, strict=True):
            for key in CORE:
                assert row[key] == wanted[key], (case, "step", wanted["step"], key)
        if case.event == "nan":
            assert rows[2]["masters"] == rows[1]["masters"]
        if often:
            assert None not in self.losses(name)

    def check_all(self, cases):
        failures, done = [], 0
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            futures = {pool.submit(self.check, number, case): case for number, case in enumerate(cases)}
            for future in concurrent.futures.as_completed(futures):
                done += 1
                if future.exception():
                    failures.append(f"{futures[future]}: {future.exception()}")
                    print(failures[-1][:600], flush=True)
                if WHOLE and done % 20 == 0:
                    print(f"{done} of {len(cases)} cases, {len(failures)} failures", flush=True)
        assert failures == []
        assert done >= 8

    def test_bits(self):
        self.check_all(runs.part_of(every()) if WHOLE else SOME)


class Saved(Bench):
    def test_checkpoints_cross_over(self):
        """Resumes with the same sharding and with the other one, bit for bit if a rank has one micro-batch."""
        recipes = ("bf16", *RECIPES) if WHOLE else ("mxfp8",)
        for recipe, ranks in itertools.product(recipes, (2, 4) if WHOLE else (2,)):
            whole = core(self.run_of(f"{recipe}{ranks}", recipe, "moe", ranks))
            for first, then in (("full", "full"), ("full", "optimizer"), ("optimizer", "full")):
                name = f"{recipe}{ranks}.{first}.{then}"
                self.run_of(name, recipe, "moe", ranks, "sharding=" + first, code=75, extra=("--stop-at", "2"))
                rest = core(self.run_of(name, recipe, "moe", ranks, "sharding=" + then))
                assert rest == whole[2:], name
                assert self.final(name) == self.final(f"{recipe}{ranks}")

    def test_any_ranks_load_what_any_saved(self):
        """Masters and moments, loaded and saved again, keep the digest of the first save."""
        stop = dict(code=75, extra=("--stop-at", "1"))
        self.train_to("base", "bf16", 2, "optimizer", **stop)
        want = self.final("base")
        cases = (("nvfp4", 3, "full"), ("mxfp8", 4, "full"), ("fp8_block", 1, "full"), ("mxfp8_2d", 2, "optimizer"))
        for (recipe, ranks, sharding), source in zip(cases if WHOLE else cases[:3], ("base", *map(str, range(9)))):
            name = str(cases.index((recipe, ranks, sharding)))
            self.train_to(name, recipe, ranks, sharding, code=75, extra=("--resume", source, "--stop-at", "1"))
            assert self.final(name) == want, (recipe, ranks, sharding)

    def train_to(self, name, recipe, ranks, sharding, code, extra):
        """A run that takes no step leaves no row."""
        try:
            self.run_of(name, recipe, "moe", ranks, "sharding=" + sharding, code=code, extra=extra)
        except FileNotFoundError:
            assert "--resume" in extra

    def test_evaluation_and_samples_end_with_fewer_windows_than_ranks(self):
        losses, texts = {}, {}
        for sharding in ("optimizer", "full"):
            self.run_of(sharding, "bf16", "moe", 3, "sharding=" + sharding, "eval.every_steps=2", "run.steps=2",
                        "data.eval_fraction=0.004", "sample.tokens=8", "sample.every_steps=1")
            losses[sharding] = self.losses(sharding)
        assert losses["full"] == losses["optimizer"]
        assert losses["full"][1] is not None
        for name in losses:
            texts[name], _ = self.run_to_its_end(0, 2, "generate", name, "--prompt", "the ", "--tokens", "8")
        assert texts["full"] == texts["optimizer"]


class Moved(Bench):
    """All-gathers in the trace and in the plan."""

    def gathers(self, rows):
        """Bytes by group, in order, of the all-gathers of the first step's weights."""
        return [(c["group"], c["bytes"]) for c in rows[0]["collectives"] if c["op"] == "all_gather"]

    def planned(self, name, ranks, *settings):
        out, _ = self.run_to_its_end(0, 1, "plan", self.path(name + ".yaml"), "--ranks", str(ranks), "--json",
                                     *itertools.chain.from_iterable(("--set", one) for one in settings))
        return json.loads(out)

    def moves(self, recipe, mode, granularity, micro, model="dense"):
        settings = ("sharding=full", *MODES[mode], f"gather.granularity={granularity}", "proof.reduce_overlap=false", "run.steps=2")
        name = f"{recipe}.{mode}.{granularity}.{micro}.{model}"
        rows = self.run_of(name, recipe, model, 2, *settings, micro=micro)
        plan = self.planned(name, 2, *settings)
        found = self.gathers(rows)
        assert len(found) == sum(one["count"] for one in plan["gathers"]), name
        if recipe == "bf16":  # else slices are uneven, and the plan is that of the rank that needs most
            assert sum(size for _, size in found) == sum(one["bytes"] * one["count"] for one in plan["gathers"])
        assert plan["granularity"]["unit"] >= plan["granularity"]["module"]
        assert plan["granularity"]["used"] == ("block" if granularity == "block" else "module")
        return found, plan["gathers"]

    def test_copies(self):
        """mxfp8 gathers rowwise copies in forward, columnwise ones in backward, and rowwise ones again for recomputation."""
        def sides(gathers, half):
            return [one["side"] for one in gathers if one["pass"] == half and one["unit"].startswith("block")]

        for mode, granularity, forward, backward in (
                ("none", "block", {"rowwise"}, {"columnwise"}),
                ("full", "block", {"rowwise"}, {"rowwise", "columnwise"}),
                ("selective", "block", {"rowwise"}, {"rowwise, columnwise"}),
                ("selective", "auto", {"rowwise"}, {"rowwise", "columnwise"})):
            found, plan = self.moves("mxfp8", mode, granularity, 6)
            assert set(sides(plan, "forward")) == forward, (mode, granularity)
            assert set(sides(plan, "backward")) == backward, (mode, granularity)
            assert ({one["unit"].partition(" ")[2] for one in plan if one["unit"].startswith("block")}
                    == ({"0", "1"} if granularity == "block" else {"0 attention", "0 mlp", "1 attention", "1 mlp"}))
        for recipe in ("bf16", "fp8_block", "fp8_tensor", "mxfp8_2d", "nvfp4") if WHOLE else ("nvfp4",):
            found, plan = self.moves(recipe, "none", "block", 6)
            assert len(sides(plan, "forward")) == len(sides(plan, "backward")), recipe

    def test_bytes_times_micro_batches(self):
        once, _ = self.moves("mxfp8", "none", "block", 6)
        thrice, _ = self.moves("mxfp8", "none", "block", 2)
        assert thrice == 3 * once
        self.moves("bf16", "none", "block", 2, "moe")  # experts of the first block stay for the next micro-batch

    def test_a_run_tells_what_its_plan_tells(self):
        """Both tell of the rank that needs most, where ranks are uneven."""
        model = "hidden: 64, heads: 2, ffn: 128, norm: rms, position: rotary, activation: swiglu, moe: {experts: 4, top_k: 2, bias: true}"
        deck = self.write("uneven.yaml", DECK.replace("MODEL", model).replace("RECIPE", "fp8_block").replace("MICRO", "3").replace("DIR", self.path("uneven")))
        told = {}
        for verb, ranks, *arguments in (("plan", 1, "--ranks", "4"), ("train", 4)):
            out, _ = self.run_to_its_end(0, ranks, verb, deck, "--set", "sharding=full", *arguments)
            told[verb] = re.findall(r"^(?:memory: |received:|uneven: ).*", out, re.M)
        assert len(told["plan"]) == 3 and "which needs most" in told["plan"][0], told
        assert told["train"] == told["plan"]
        with open(self.path("uneven", "metrics.jsonl")) as file:
            row = json.loads(file.readline())
        planned = json.loads(self.run_to_its_end(0, 1, "plan", deck, "--set", "sharding=full", "--ranks", "4", "--json")[0])
        assert row["memory_bytes"] == sum(planned["memory"].values())

    def test_memory_falls_with_ranks(self):
        """All memory halves with twice the ranks, except two slots, unshared memory, and the gradients received from the other ranks: 1/2, 3/4, 7/8 of a group's at 2, 4, 8 ranks."""
        self.run_of("many", "bf16", "odd", 2, "run.steps=1", "model.layers=12", "sharding=full", micro=3)
        kept = ("weights", "gradients", "masters", "optimizer")
        of = {ranks: self.planned("many", ranks, "model.layers=12", "sharding=full", "batch.global=24")["memory"] for ranks in (2, 4, 8)}
        for category in kept:
            assert abs(of[4][category] / of[2][category] - 0.5) <= 0.02, category
        received = 4 * (of[4]["staging"] - of[2]["staging"])  # both slots, of a whole group
        assert received > 0
        for ranks in (2, 4, 8):
            rest = of[ranks]["staging"] - received * (ranks - 1) / ranks
            assert abs(rest / (of[2]["staging"] - received / 2) - 1) <= 0.05, ranks
        assert received < of[2]["staging"]


class Limited(Bench):
    """Ranks with a limit on their memory."""
    DEEP = ("model.layers=36", "model.hidden=384", "model.heads=6", "model.ffn=1536", "batch.global=4", "batch.micro=1",
            "run.steps=1", "optimizer.warmup_steps=0", "optimizer.moments=bf16", "precision.compute=fp32")

    def deep(self):
        """The deck of a deep model, and what one of 4 ranks needs for it by sharding, bytes by category."""
        deck = self.write("deep.yaml", DECK.replace("MODEL", MODELS["dense"]).replace("RECIPE", "bf16").replace("MICRO", "1")
                          .replace("DIR", self.path("deep")))
        words = [word for setting in self.DEEP for word in ("--set", setting)]
        plan = lambda sharding: json.loads(self.run_to_its_end(
            0, 1, "plan", deck, "--ranks", "4", "--json", *words, "--set", "sharding=" + sharding)[0])["memory"]
        return [deck, *words], {sharding: plan(sharding) for sharding in ("optimizer", "full")}

    def limit(self, size, rank="*"):
        """Limits memory to `size` bytes, of each rank or of one. Stacks of libraries' threads, one a core, count too."""
        mine = f"case ${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} in {rank}) ulimit -S -s 2048; ulimit -d {size // 1024};; esac"
        self.wrapper = ("/bin/sh", "-c", mine + '; exec "$@"', "limited")

    def test_one_rank_without_memory_ends_all(self):
        """If the plan exceeds the limit, and if only the plan with the rest of the process's memory does."""
        run, needed = self.deep()
        whole = sum(needed["optimizer"].values())
        for size, code, text in ((whole - 1024, 3, "of a rank do not fit what a process may have"),
                                 (whole + 4 * 2**20, 4, "that the rank holds")):
            self.limit(size, rank=2)
            _, err = self.train(code, 4, *run)
            assert re.search(f"^rank 2: .*{text}.*\n$", err)

    def test_a_model_that_no_rank_holds_trains(self):
        """Each rank's limit is less than whole weights and gradients need."""
        run, needed = self.deep()
        self.limit(needed["optimizer"]["weights"] + needed["optimizer"]["gradients"])
        assert "sharding full" in self.train(3, 4, *run)[1]
        self.train(0, 4, *run, "--set", "sharding=full")
        assert self.json_lines("deep", "metrics.jsonl")[-1]["step"] == 1


class Refused(Bench):
    def refused(self, *settings):
        deck = self.write("refused.yaml", DECK.replace("MODEL", MODELS["dense"]).replace("RECIPE", "mxfp8")
                          .replace("MICRO", "1").replace("DIR", self.path("refused")))
        _, err = self.run_to_its_end(3, 1, "train", deck, *itertools.chain.from_iterable(("--set", one) for one in settings))
        return err

    def test_what_contradicts_itself(self):
        for settings, text in (
                (("gather.granularity=block",), "or sharding full"),
                (("sharding=full", "proof.wire=bf16"), "use wire auto, primary_weights bf16, or sharding optimizer"),
                (("sharding=full", "proof.cuts=flat"), "use cuts tile"),
                (("sharding=full", "proof.staging=ring"), "nothing is staged"),
                (("sharding=full", "checkpoint.quantized=true"), "`tessera quantize` on the step"),
                (("sharding=half",), "optimizer")):
            assert text in self.refused(*settings), settings
