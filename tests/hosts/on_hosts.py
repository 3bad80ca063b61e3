"""Tests whose runs have their ranks on several hosts, which namespaces of one machine simulate."""
import pytest

import runs
from hosts import Hosts, impossible

PATIENCE = 300
PLACES = {"one": {"h1": 4}, "two": {"h1": 2, "h2": 2}, "three": {"h1": 2, "h2": 1, "h3": 1}}
CORE = ("step", "loss", "norm", "logits", "gradients", "masters")  # what a trace says of a step, but for its collectives
DECK = """schema_version: 1
run: {name: small, steps: 4, threads: 1}
model: {layers: 2, hidden: 64, heads: 4, seq_len: 32, norm: rms, activation: swiglu, position: rotary, ffn: 64MOE}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 1}
eval: {every_steps: 2, batches: 1}
reduce: {bucket_mib: 0.01}
optimizer: {lr: 0.01, warmup_steps: 2}
parallel: {expert: EXPERT}
precision: {recipe: RECIPE, primary_weights: WEIGHTS}
sharding: SHARDING
checkpoint: {dir: DIR, every_steps: 2, io: IO}
debug: {trace: DIR.jsonl}
"""


def words(*settings):
    return [word for setting in settings for word in ("--set", setting)]


class OnHosts(runs.InFolder):
    count = 3

    def setup_method(self):
        super().setup_method()
        if why := impossible(self.launcher):
            pytest.skip(why)
        self.hosts = self.at_end.enter_context(Hosts(self.folder, self.count))

    def deck(self, name, recipe="bf16", sharding="optimizer", experts=0, io="mpio", directory=None):
        """experts: ranks that hold the experts between them; 0: a dense model."""
        values = {"MOE": ", moe: {experts: 4, top_k: 2}" if experts else "", "EXPERT": str(max(1, experts)), "RECIPE": recipe,
                  "WEIGHTS": "bf16" if recipe == "bf16" else "quantized", "SHARDING": sharding, "DIR": directory or name, "IO": io}
        text = DECK
        for key, value in values.items():
            text = text.replace(key, value)
        return self.write(name + ".yaml", text)

    def start(self, places, *arguments, verb="train", out="run", **environment):
        return self.hosts.start(self.launcher, places, self.tessera, verb, *arguments, out=out, environment=environment)

    def said(self, out="run"):
        return self.read(out + ".out"), self.read(out + ".err")

    def run_to_its_end(self, code, places, *arguments, out="run", seconds=PATIENCE, **options):
        assert self.start(places, *arguments, out=out, **options).wait(seconds) == code, self.said(out)
        return self.said(out)
