"""Invalid checkpoints, and checkpoints of other runs: a message that names the path, the right exit code, and no file changed.
"""
import hashlib
import json
import os
import shutil

import runs

STEP = "step_00000002"


class BadCheckpoints(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.train(75, 2, self.deck("a"), "--stop-at", "2")
        self.own = self.deck("a")

    def files(self):
        """Every file below with content and modification time; folders by name only, since a run's lock changes their times."""
        found = {}
        for folder, _, names in os.walk(self.folder):
            found[folder] = None
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[path] = os.stat(path).st_mtime_ns, hashlib.sha256(file.read()).hexdigest()
        return found

    def refused(self, code, words, verb, *arguments, ranks=1):
        with self.subtests.test(verb=verb, arguments=arguments):
            before = self.files()
            if verb in ("train", "eval"):
                out, err = self.run_to_its_end(code, ranks, verb, *arguments)
                assert out == ""
            else:
                told = self.tool(code, verb, *arguments)
                err = told if isinstance(told, str) else "\n".join(told["failures"])
            for word in words:
                assert word in err
            assert self.files() == before

    def everywhere(self, path, words):
        """Checks that every verb that reads the path refuses it."""
        elsewhere = ["--set", "checkpoint.dir=new"]
        self.refused(5, words, "train", self.own, "--resume", path, *elsewhere)
        self.refused(5, ["checkpoint.init_from: ", *words], "train", self.own, "--set", f"checkpoint.init_from={path}",
                     *elsewhere, ranks=2)
        self.refused(5, words, "eval", self.own, "--checkpoint", path, "--json")
        for verb in ("inspect", "verify"):
            self.refused(5, words, verb, path)
        self.refused(5, words, "diff", "a", path)
        self.refused(5, words, "convert", path, "out")
        self.refused(5, words, "convert", path, "out", "--to", "safetensors")

    def of_version(self, name, version):
        shutil.copytree(self.path("a", STEP), self.path(name))
        with open(self.path(name, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        manifest["format_version"] = version
        with open(self.path(name, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump(manifest, file)

    def test_paths_that_are_no_checkpoint(self):
        os.mkdir(self.path("empty"))
        for path in ("nowhere", "corpus.txt", f"a/{STEP}/model.h5"):
            self.everywhere(path, [f"{path}: is neither a checkpoint nor a run directory"])
        self.everywhere("nowhere", ["directory: nothing is there"])
        self.everywhere("empty", ["empty: holds no manifest.json"])
        for left in ("LOCK", "run.json"):
            os.mkdir(self.path(f"begun-{left}"))
            self.write(f"begun-{left}/{left}", "")
            self.everywhere(f"begun-{left}", [f"begun-{left}: is a run directory without a saved step"])
        self.refused(5, ["is neither"], "ls", "corpus.txt")
        assert self.tool(0, "ls", "empty") == []

    def test_a_folder_of_hugging_face(self):
        self.tool(0, "convert", "a", "hf", "--to", "safetensors")
        words = ["hf: is a Hugging Face folder, which has neither digests nor the state of a run: convert it first"]
        for verb in ("inspect", "verify"):
            self.refused(5, words, verb, "hf")
        self.refused(5, words, "diff", "a", "hf")
        self.refused(5, words, "train", self.own, "--resume", "hf", "--set", "checkpoint.dir=new", ranks=2)

    def test_future_versions(self):
        for name, version in (("next", [1, 99]), ("later", [2, 0])):
            self.of_version(name, version)
            self.everywhere(name, [f"{name}/manifest.json: format {version[0]}.{version[1]}, this build reads 1.0-"])

    def test_another_model(self):
        keys = ["model.ffn: is 64, and was 48", "model.heads: is 2, and was 4"]
        other = ["--set", "model.ffn=64", "--set", "model.heads=2"]
        for where in ([], ["--resume", "a", "--set", "checkpoint.dir=new"]):
            self.refused(3, keys, "train", self.own, *where, *other, ranks=2)
        table = ["is of another model: ", "key: model.head_dim was 8, is 16 in the deck",
                 "shape: /model/layers.1.moe.experts.down.weight is [4,32,48], the model has [4,32,64]"]
        self.refused(5, table, "eval", self.own, "--checkpoint", "a", *other)
        self.refused(5, table, "train", self.own, "--set", "checkpoint.init_from=a", "--set", "checkpoint.dir=new", *other)
        dense = ["missing: /model/layers.0.mlp.down.weight", "extra: /model/layers.0.moe.router.weight",
                 "key: model.moe.top_k was 2, is absent in the deck"]
        self.refused(5, dense, "eval", self.deck("dense", ""), "--checkpoint", "a")
        self.refused(3, ["model.moe.top_k: is absent, and was 2"], "train", self.deck("dense", ""), "--resume", "a")

    def test_a_tied_model(self):
        self.train(75, 2, self.deck("tied"), "--set", "model.tied_head=true", "--stop-at", "2")
        self.refused(5, ["missing: /model/head.weight (there tied to /model/embed.tokens)"], "eval", self.own, "--checkpoint", "tied")

    def test_another_corpus(self):
        with open(self.path("corpus.txt"), "a", encoding="utf-8") as file:
            file.write("one line more\n")
        for ranks in (1, 2):
            self.refused(5, ["data.files: the corpus has hash ", f"{STEP} was saved"], "train", self.own, ranks=ranks)

    def test_state_that_is_not_whole(self):
        for name, how, said in (("weights", "--weights-only", "weights alone"), ("narrow", "--dtype=bf16", "/model/embed.tokens in bf16")):
            self.tool(0, "convert", "a", name, how)
            self.refused(5, [f"{name}: holds {said}, from which no run goes on; checkpoint.init_from starts one"], "train", self.own, "--resume",
                         name, "--set", "checkpoint.dir=new", ranks=2)

    def test_another_steps_name(self):
        self.refused(5, ["step_00000009/: is the name of another step than 2"], "convert", "a", "a/step_00000009/")
        shutil.copytree(self.path("a", STEP), self.path("step_00000009"))
        self.everywhere("step_00000009", ["step_00000009: holds step 2: it was renamed"])

    def test_destinations(self):
        for path in ("a", f"a/{STEP}", "corpus.txt"):
            for target in ("tessera", "safetensors"):
                self.refused(5, ["exists already"], "convert", "a", path, "--to", target)
        self.refused(4, ["nodir/out: cannot be made"], "convert", "a", "nodir/out")
        self.refused(2, ["DST: is empty"], "convert", "a", "")
