"""The command line without a launcher: exit codes, messages and output of every verb but train.
"""
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile

import pytest

SMALL = """schema_version: 1
run: {name: small, steps: 10}
model: {layers: 2, hidden: 64, heads: 4, seq_len: 32}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 2}
"""


class Cli:
    def write(self, text, name="deck.yaml"):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def call(self, *arguments, stdout=subprocess.PIPE, **environment):
        return subprocess.run([self.tessera, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300,
                              cwd=self.folder, env={**os.environ, **environment})

    def expect(self, code, *arguments, **environment):
        done = self.call(*arguments, **environment)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        if code == 0:
            assert done.stderr == ""
        else:
            assert done.stdout == ""
            assert done.stderr != ""
        return done

    def refused(self, text, *arguments):
        return self.expect(3, "validate", self.write(text), *arguments).stderr.splitlines()


class Usage(Cli):
    def test_every_verb_has_help(self):
        for verb in ([], ["train"], ["eval"], ["plan"], ["validate"], ["explain"], ["compare"], ["info"], ["quantize"], ["checkpoint"]):
            done = self.expect(0, *verb, "--help")
            assert "Usage: tessera" in done.stdout
        for option in ("--set", "DECK"):
            for verb in ("train", "eval", "plan", "validate"):
                assert option in self.expect(0, verb, "--help").stdout

    def test_help_of_an_unknown_verb(self):
        for first, *arguments in (["anything: unknown verb, there are train, eval, audit, generate, plan, validate, explain, compare, info, checkpoint, quantize",
                                   "anything", "--help"],
                                  ["trian: unknown verb, did you mean train?", "trian", "-h"],
                                  ["trian: unknown verb, did you mean train?", "--help", "trian"],
                                  ["verfy: unknown verb, did you mean verify?", "checkpoint", "verfy", "--help"]):
            assert self.expect(2, *arguments).stderr.splitlines()[0] == first
        self.expect(0, "checkpoint", "verify", "--help")
        self.expect(0, "train", "deck.yaml", "--help")

    def test_version(self):
        assert re.search(r"^tessera \d+\.\d+\.\d+\n$", self.expect(0, "--version").stdout)

    def test_wrong_usage(self):
        deck = self.write(SMALL)
        for arguments in ([], ["trian"], ["validate"], ["validate", deck, "another"], ["validate", deck, "--sett", "a=b"],
                          ["validate", deck, "--set"], ["validate", deck, "--set", "run.steps"], ["plan", deck],
                          ["plan", deck, "--ranks", "0"], ["plan", deck, "--ranks", "two"], ["info", "--yaml"],
                          ["explain", "a", "b"]):
            self.expect(2, *arguments)

    def test_an_unknown_verb_or_option_is_named_with_its_nearest(self):
        deck = self.write(SMALL)
        for first, *arguments in (["trian: unknown verb, did you mean train?", "trian", deck],
                                  ["lst: unknown verb, did you mean ls?", "checkpoint", "lst", "."],
                                  ["--rseume: unknown option, did you mean --resume?", "train", "--rseume", "auto", deck],
                                  ["--formt: unknown option, did you mean --format?", "quantize", "in", "--formt=mxfp8"],
                                  ["--yaml: unknown option, there are --help, --json", "info", "--yaml"],
                                  ["a verb is needed: ls, inspect, verify, diff, convert, rm", "checkpoint"]):
            assert self.expect(2, *arguments).stderr.splitlines()[0] == first
        assert "a verb is needed: train, eval, " in self.expect(2).stderr
        assert "DECK is required" in self.expect(2, "validate").stderr

    def test_of_many_ranks_the_first_speaks(self):
        deck = self.write(SMALL)
        for arguments in (["train"], ["train", deck, "--sett", "a=b"], ["train", deck, "--set", "run.steps"], ["eval", deck]):
            for rank in ("0", "1"):
                done = self.call(*arguments, PMI_RANK=rank)
                assert (done.returncode, done.stdout, bool(done.stderr)) == (2, "", rank == "0"), arguments
        self.expect(2, "validate", PMI_RANK="1")

    def test_a_full_disk_behind_stdout_is_noticed(self):
        if not os.path.exists("/dev/full"):
            pytest.skip("no /dev/full")
        with open("/dev/full", "w") as full:
            for arguments in (["info"], ["explain"]):
                assert self.call(*arguments, stdout=full).returncode == 4, arguments


TEXT = "the tiles of a mosaic\n" * 100


class Validate(Cli):
    def setup_method(self):
        self.write(TEXT, "corpus.txt")

    def test_prints_the_resolved_deck(self):
        done = self.expect(0, "validate", self.write(SMALL), "--set", "optimizer.lr=1e-3", OMP_NUM_THREADS="3")
        for line in ("  steps: 10  # deck", "  lr: 0.001  # override", "  head_dim: 16  # derived", "  seed: 1234  # default",
                     "  threads: 3  # derived", f'  root: "{os.path.realpath(self.folder)}"  # derived'):
            assert line + "\n" in done.stdout

    def test_the_resolved_deck_resolves_to_itself(self):
        once = self.expect(0, "validate", self.write(SMALL)).stdout
        twice = self.expect(0, "validate", self.write(once, "resolved.yaml")).stdout
        values = [[line.split("  # ")[0] for line in text.splitlines()] for text in (once, twice)]
        assert values[0] == values[1]
        assert len(values[0]) > 60

    def test_threads_are_the_cores_without_omp(self):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        done = subprocess.run([self.tessera, "validate", self.write(SMALL)], capture_output=True, text=True, env=environment)
        assert f"  threads: {len(os.sched_getaffinity(0))}  # derived\n" in done.stdout

    def test_prints_the_corpus(self):
        """2200 tokens are 68 windows of 32, or 66 that share no token, 3 of them (5%) for evaluation; 10 steps of 8 visit 65 windows
        1.23 times."""
        deck = self.write(SMALL)
        for windows, trained, epochs in (("tail", 65, 1.23), ("drawn", 63, 1.27)):
            assert (f"# corpus:   1 file, 2,200 tokens; {trained} windows of 32 tokens for training, 3 for evaluation; {epochs} epochs in 10 steps of 8 " "sequences; eval: 3 of 3 windows, 96 tokens\n"
                    in self.expect(0, "validate", deck, "--set", f"data.eval_windows={windows}").stdout)
        assert (self.expect(0, "validate", deck).stdout.replace("# default", "# override")
                == self.expect(0, "validate", deck, "--set", "data.eval_windows=drawn").stdout.replace("# default", "# override"))

    def test_checks_what_train_would(self):
        deck = self.write(SMALL.replace("]}", "], eval_fraction: 0.1}") + "checkpoint: {dir: run}\n")
        before = sorted(os.listdir(self.folder))
        place = os.path.join(self.folder, "deck.yaml") + ":"
        folder = os.path.realpath(self.folder)
        rest = "(folders that begin with '.' or 'build', links to folders and the run directory are left out)"
        for code, settings, lines in (
                (5, ["data.root=gone"], [f"--set data.root=gone: data.root: {folder}/gone cannot be read: No such file or directory"]),
                (5, ['data.files=["*.md", "*.txt", "none.txt"]'],
                 [f'--set data.files=["*.md", "*.txt", "none.txt"]: data.files: *.md: fits no file below {folder} {rest}',
                  f'--set data.files=["*.md", "*.txt", "none.txt"]: data.files: none.txt: no such file below {folder} {rest}']),
                (5, ["data.files=[/gone/a.txt]"], ["--set data.files=[/gone/a.txt]: data.files: /gone/a.txt: No such file or directory"]),
                (5, ["model.seq_len=2000"], ["the corpus has 2200 tokens, but model.seq_len 2000 needs at least 4002"]),
                (4, ["checkpoint.dir=corpus.txt/run"], ["is a file, and the run directory corpus.txt/run needs a directory there"]),
                (4, ["checkpoint.dir=" + "x" * 300], ["cannot be made: File name too long"]),
                (3, ["model.hidden=131072", "model.layers=100"], ["1 rank of ", "`tessera plan` shows what the memory is for"]),
                (5, ["data.root=gone", "checkpoint.dir=corpus.txt"], ["gone cannot be read", "corpus.txt is a file"])):
            with self.subtests.test(settings=settings):
                said = self.expect(code, "validate", deck, *(word for text in settings for word in ("--set", text))).stderr
                for line in lines:
                    assert said.count(line) == 1, said
        self.write(SMALL.replace('"*.txt"', '"*.txt", "*.md"'))
        assert f"{place}4:15: data.files: *.md: fits no file" in self.expect(5, "validate", deck).stderr
        assert sorted(os.listdir(self.folder)) == before

    def test_a_run_directory_is_no_folder_of_another_kind(self):
        deck = self.write(SMALL.replace("]}", "], eval_fraction: 0.1}"))
        for name in ("report.html", "manifest.json", "config.json"):
            os.mkdir(os.path.join(self.folder, "other"))
            path = self.write("mine", os.path.join("other", name))
            said = self.expect(5, "validate", deck, "--set", "checkpoint.dir=other").stderr
            assert f"checkpoint.dir: other holds {name} and is no run directory" in said
            said = self.expect(5, "train", deck, "--set", "checkpoint.dir=other").stderr
            assert "name another directory" in said
            with open(path) as file:
                assert file.read() == "mine"
            assert os.listdir(os.path.dirname(path)) == [name]
            self.write("{}", os.path.join("other", "run.json"))
            self.expect(0, "validate", deck, "--set", "checkpoint.dir=other")
            shutil.rmtree(os.path.dirname(path))

    def test_the_name_of_a_run_is_no_way_out_of_its_folder(self):
        deck = self.write(SMALL.replace("]}", "], eval_fraction: 0.1}"))
        for name in ("..", "a/../../b"):
            assert "run.name: holds .., and the run directory" in self.expect(3, "validate", deck, "--set", f"run.name={name}").stderr
            self.expect(0, "validate", deck, "--set", f"run.name={name}", "--set", "checkpoint.dir=run")
        self.expect(0, "validate", deck, "--set", "run.name=study/a..b")

    def test_a_snapshot_for_which_the_host_has_no_memory(self):
        """A model that takes three quarters of the memory, and with a snapshot of its state more than there is."""
        deck = self.write(SMALL)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        planned = lambda *sets: json.loads(self.expect(0, "plan", deck, "--json", "--ranks", "1", *(word for text in sets for word in ("--set", text))).stdout)
        small = planned("model.ffn=100000", "checkpoint.async=true")
        total = sum(small["memory"].values())
        assert small["host_memory"]["snapshot"] == small["memory"]["masters"] + small["memory"]["optimizer"]
        assert planned("model.ffn=100000")["host_memory"] == {"snapshot": 0}
        large = f"model.ffn={int(100000 * 0.75 * memory / total)}"
        assert small["host_memory"]["snapshot"] > 0.4 * total
        self.expect(0, "validate", deck, "--set", large)
        said = self.expect(3, "validate", deck, "--set", large, "--set", "checkpoint.async=true").stderr
        assert re.search(r"checkpoint.async: copies of the state by 1 rank, \S+ GiB each, do not fit .*: use checkpoint.async: false\n", said)

    def test_the_ranks_that_are_to_be(self):
        deck = self.write(SMALL)
        self.expect(0, "validate", deck, "--ranks", "4")
        assert ("8 sequences cannot be shared by 3 ranks in micro-batches of 2: no batch.micro divides it: use batch.global 6 or 12"
                in self.expect(3, "validate", deck, "--ranks", "3").stderr)
        assert "by 8 ranks in micro-batches of 2: use batch.micro 1, or batch.global 16" in self.expect(3, "validate", deck, "--ranks", "8").stderr

    def test_absolute_paths_are_taken_as_they_are(self):
        with tempfile.TemporaryDirectory(prefix="tessera-elsewhere-") as folder:
            os.mkdir(os.path.join(folder, "build"))
            path = self.write(TEXT, os.path.join(folder, "build", "other.text"))
            deck = self.write(SMALL.replace('"*.txt"', f'"*.txt", {path}'))
            assert "# corpus:   2 files, 4,400 tokens;" in self.expect(0, "validate", deck).stdout

    def test_a_key_without_a_value_is_reported_at_its_line(self):
        text = SMALL.replace("run: {name: small, steps: 10}", "run:\n  name: small\n  steps:\n\n\n  seed: 3")
        assert self.refused(text)[0].split("deck.yaml:")[1] == "4:3: run.steps: has no value: an integer is needed, allowed 0 to 1000000000000"

    def test_clipping_may_be_turned_off(self):
        assert "  clip: 0  # override\n" in self.expect(0, "validate", self.write(SMALL), "--set", "optimizer.clip=0").stdout
        assert "0: no limit" in self.expect(0, "explain", "optimizer.clip").stdout

    def test_set_takes_one_value_each(self):
        self.write(TEXT, "a.txt")
        self.write(TEXT, "b.txt")
        deck = self.write(SMALL)
        done = self.expect(0, "validate", "--set", "run.steps=7", "--set", "data.files=[a.txt, b.txt]", deck)
        assert "  steps: 7  # override\n" in done.stdout
        assert '  files: ["a.txt", "b.txt"]  # override\n' in done.stdout

    def test_reports_everything_at_once(self):
        lines = self.refused(SMALL + "optimizer: {lr: fast}\nevaluation: {batches: 1}\n", "--set", "model.heads=5")
        path = os.path.join(self.folder, "deck.yaml")
        assert (lines
                == [f"{path}:6:17: optimizer.lr: fast is not a number, allowed 0 to 1000", f"{path}:7:1: evaluation: unknown key, did you mean eval?", "--set model.heads=5: model.heads: 5 heads do not divide hidden 64: change one of them, or give model.head_dim"])

    def test_what_is_no_deck(self):
        bomb = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))
        for text in ("", "# nothing\n", "hello", "[1, 2]", "a: [", b"\x00\x01\x02", b"\x89PNG\r\n\x1a\n", b"\xff\xfe", "\t",
                     "a: " + "[" * 5000, "- " * 5000, bomb, SMALL + "run: {}\n", "#" * (1 << 21)):
            with self.subtests.test(text=text[:20]):
                self.refused(text)

    def test_what_cannot_be_read(self):
        assert "No such file" in self.expect(3, "validate", "gone.yaml").stderr
        assert "folder" in self.expect(3, "validate", self.folder).stderr
        if os.geteuid() != 0:
            deck = self.write(SMALL)
            os.chmod(deck, 0)
            assert "Permission denied" in self.expect(3, "validate", deck).stderr

    def test_a_run_that_this_user_may_not_read(self):
        os.mkdir(os.path.join(self.folder, "run"))
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.join(self.folder, "run"), 0)
        another = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for verb, *more in (["compare", "run"], ["checkpoint", "ls"], ["checkpoint", "verify"], ["checkpoint", "inspect"],
                            ["checkpoint", "rm", "1"], ["quantize", "--format", "mxfp8", "--out", "out.h5"]):
            words = [verb, *more[:1], "run", *more[1:]] if verb == "checkpoint" else [verb, "run", *more]
            try:
                done = subprocess.run([self.tessera, *words], capture_output=True, text=True, timeout=300, cwd=self.folder, **another)
            except PermissionError:
                pytest.skip("another user may not start the program")
            assert (done.returncode, done.stdout) == (4, ""), (words, done)
            assert "this user may not read it" in done.stderr, (words, done)
        os.chmod(os.path.join(self.folder, "run"), 0o700)

    def test_says_what_has_no_effect(self):
        done = self.call("validate", self.write(SMALL), "--set", "optimizer.decay_steps=3")
        assert done.returncode == 0
        assert "optimizer.decay_steps: has an effect only with schedule wsd" in done.stderr
        # Where the deck gives a value that is the default, too; a resolved deck gives all, and says nothing more.
        deck = self.write(SMALL + "optimizer: {muon: {momentum: 0.95}}\n")
        done = self.call("validate", deck)
        assert re.search(r":\d+:\d+: optimizer.muon.momentum: has an effect only with matrices: muon \(allowed\)\n", done.stderr)
        assert self.expect(0, "validate", self.write(done.stdout, "resolved.yaml")).stderr == ""
        for values in (["optimizer.muon.scale=rms"], ["precision.bf16_last=1", "checkpoint.keep_last=5"], ["model.rope_base=500000"]):
            sets = [word for value in values for word in ("--set", value)]
            said = self.call("validate", self.write(SMALL), *sets).stderr
            assert said.count("has an effect only") == len(values), said
            for value in values:
                assert value.split("=")[0] + ": has an effect only" in said


class Explain(Cli):
    def test_a_key(self):
        done = self.expect(0, "explain", "optimizer.schedule").stdout
        for text in ("optimizer.schedule", "a choice", "cosine | linear | constant | wsd", "fixed"):
            assert text in done
        assert "effect" not in done

    def test_a_section_and_all(self):
        assert "  effect   only with position rotary (model.position)\n" in self.expect(0, "explain", "model.rope_base").stdout
        section = self.expect(0, "explain", "model").stdout
        assert re.search("rope_base .*; has an effect only with position rotary ", section)
        assert "model.moe:" in section
        assert "top_k" in section
        assert "optimizer" not in section
        everything = self.expect(0, "explain").stdout
        for key in ("schema_version", "heads", "balance_coef", "max_skips", "replica_hash_every"):
            assert f"  {key} " in everything
        gathers = everything.split("What is gathered, for each weight and step\n")[1].split("\n\n")[0].splitlines()
        rows = [line.split() for line in gathers[1:-1]]
        forward = {tuple(row[:3]): float(row[7]) for row in rows if row[3] == "forward"}
        quantized = {"fp8_block": 1, "fp8_tensor": 1, "mxfp8": 2 + 1 / 16, "mxfp8_2d": 1, "mxfp6_e3m2": 2 + 1 / 16, "mxfp6_e3m2_2d": 1,
                     "mxfp6_e2m3": 2 + 1 / 16, "mxfp6_e2m3_2d": 1, "mxfp4": 1 + 1 / 16, "mxfp4_2d": 0.5, "nvfp4": 0.5, "nvfp4_46": 0.5}
        expected = {("bf16", "bf16", "bf16"): 2, ("fp32", "fp32", "fp32"): 4}
        for recipe, size in quantized.items():
            expected |= {(recipe, "bf16", "bf16"): 2, (recipe, "quantized", "bf16"): 2,
                         (recipe, "quantized", "quantized"): size}
        assert forward == expected
        backward = {tuple(row[:3]): float(row[7]) for row in rows if row[3] == "backward"}
        assert backward == dict.fromkeys(expected, 0)
        visits = everything.split("What `sharding: full` gathers, for each weight and micro-batch\n")[1].splitlines()
        assert sum(line.split()[0] == "mxfp8" and "quantized" in line for line in visits if line) == 4

    def test_values_of_a_deck_and_where_they_come_from(self):
        with open(os.path.join(self.folder, "mine.yaml"), "w") as file:
            file.write(f"base: {os.path.basename(self.write(SMALL))}\nrun: {{seed: 5}}\n")
        mine = os.path.join(self.folder, "mine.yaml")
        for key, text in (("run.seed", f"value    5, deck: {mine}:2:13"), ("run.steps", f"value    10, base: {self.write(SMALL)}:2:"),
                          ("optimizer.lr", "value    0.5, override: --set optimizer.lr=0.5"), ("optimizer.eps", "value    1e-08, default")):
            assert text in self.expect(0, "explain", key, "--deck", mine, "--set", "optimizer.lr=0.5").stdout
        assert f"value 5, deck: {mine}:2:13" in self.expect(0, "explain", "run", "--deck", mine).stdout
        assert "other.yaml" in self.expect(0, "explain", "base").stdout

    def test_an_unknown_key(self):
        assert "did you mean optimizer.lr?" in self.expect(2, "explain", "optimizer.rl").stderr
        self.expect(2, "explain", "pipeline")


class Quantize(Cli):
    def source(self):
        """A safetensors file with a matrix of small integers and a vector."""
        values = struct.pack("<2048f", *[(i * 37) % 11 - 5 for i in range(2048)])
        header = json.dumps({"w": {"dtype": "F32", "shape": [32, 64], "data_offsets": [0, 8192]},
                             "b": {"dtype": "F32", "shape": [4], "data_offsets": [8192, 8208]}}).encode()
        return self.write(struct.pack("<Q", len(header)) + header + values + bytes(16), "in.safetensors")

    def test_reports_errors_and_what_was_left(self):
        done = self.expect(0, "quantize", self.source(), "--format", "mxfp8", "--out", "out.h5", "--json")
        report = json.loads(done.stdout)
        assert [(t["name"], t["format"], t["directions"]) for t in report["tensors"]] == [("w", "mxfp8", ["rowwise", "columnwise"])]
        assert report["tensors"][0]["max_rel_error"] == 0  # small integers are exact in E4M3
        assert sorted(os.listdir(self.folder)) == ["in.safetensors", "out.h5"]

    def test_refusals(self):
        source = self.source()
        self.expect(2, "quantize", source, "--format", "bf16", "--out", "out.h5")
        assert "is no run or step" in self.expect(2, "quantize", source, "--out", "out.h5").stderr
        self.expect(5, "quantize", source, "--format", "mxfp8", "--out", "out.h5", "--tensor", "absent")
        values = bytes(4 * 64)
        names = ["layers.0.attention.qkv.weight", "layers.1.attention.qkv.weight", "layers.0.mlp.up.weight"]
        header = json.dumps({name: {"dtype": "F32", "shape": [1, 64], "data_offsets": [i * 256, i * 256 + 256]}
                             for i, name in enumerate(names)}).encode()
        named = self.write(struct.pack("<Q", len(header)) + header + values * 3, "named.safetensors")
        for asked, said in (("layers.1.attention.qvk.weight", "did you mean layers.1.attention.qkv.weight or layers.0.attention.qkv.weight?"),
                            ("/layers.0.mlp.up.wieght", "did you mean layers.0.mlp.up.weight?"),
                            ("attention.qkv", "did you mean layers.0.attention.qkv.weight or layers.1.attention.qkv.weight?"),
                            ("embedding", "no such tensor among its 3\n")):
            assert said in self.expect(5, "quantize", named, "--format", "mxfp8", "--out", "out.h5", "--tensor", asked).stderr
        self.expect(5, "quantize", source, "--format", "mxfp8", "--out", source)
        self.expect(5, "quantize", self.write("no tensors", "x.safetensors"), "--format", "mxfp8", "--out", "out.h5")
        assert "out.h5" not in os.listdir(self.folder)


class Info(Cli):
    def test_json(self):
        info = json.loads(self.expect(0, "info", "--json", OMP_NUM_THREADS="2").stdout)
        assert info["threads"] == 2
        assert info["back_end"] in ("OpenMP", "Serial", "Cuda")
        for key in ("version", "git_sha", "compiler", "build_type", "mpi", "waiting"):
            assert info[key], key
        for name in ("Kokkos", "oneDNN", "HDF5", "yaml-cpp", "fmt", "CLI11", "nlohmann_json"):
            assert re.search(r"^\d+\.\d+", info["libraries"][name])

    def test_how_threads_wait(self):
        said = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
        for asked, waiting in (({}, "GOMP_SPINCOUNT=1000 KMP_BLOCKTIME=0"), ({"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY=active"),
                               ({"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "1"}, "GOMP_SPINCOUNT=7 KMP_BLOCKTIME=1")):
            environment = {name: value for name, value in os.environ.items() if name not in said} | asked
            done = subprocess.run([self.tessera, "info"], capture_output=True, text=True, timeout=300, env=environment)
            assert f"\nwaiting    {waiting}\n" in done.stdout

    def test_a_cpu_without_instructions_for_bf16_is_told_of_once(self):
        if json.loads(self.expect(0, "info", "--json").stdout)["back_end"] == "Cuda" or platform.machine() != "x86_64":
            pytest.skip("oneDNN's products are those of host builds, and held to AVX2 on x86-64 alone")
        held = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        assert json.loads(self.expect(0, "info", "--json", **held).stdout)["bf16_instructions"] is False
        assert self.expect(0, "info", **held).stdout.count("precision.compute: fp32 is as fast or faster") == 1

    def test_text(self):
        text = self.expect(0, "info").stdout
        assert "Kokkos" in text
        # MFU is shown if, and only if, the peak is known.
        peak = json.loads(self.expect(0, "info", "--json").stdout)["peak_flops"]
        assert ("none: the peak of this hardware is not known" if peak is None else peak["device"]) in text


class Inputs(Cli):
    FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "inputs")
    # Deck whose data must be made first, with settings that do without them.
    UNMADE = {"tokens/prose.yaml": ["--set", "data.tokenizer=", "--set", "sample.tokens=0", "--set", "model.vocab=4096"],
              "tokens/sums.yaml": ["--set", "data.tokenizer="],
              "operation/new_tokens.yaml": ["--set", "data.tokenizer=", "--set", "sample.tokens=0"]}

    def decks(self):
        names = [os.path.relpath(os.path.join(folder, name), self.FOLDER) for folder, _, names in os.walk(self.FOLDER)
                 for name in names if name.endswith(".yaml")]
        assert len(names) > 20
        return [(os.path.join(self.FOLDER, name), self.UNMADE.get(name, [])) for name in sorted(names)]

    def test_every_deck_is_sound(self):
        for deck, settings in self.decks():
            self.expect(0, "plan", deck, "--ranks", "1" if "/bench/" in deck else "2", *settings)
