"""Checkpoints of every format version load for ever; see checkpoints/README.md.
"""
import glob
import json
import os
import re
import tarfile

import runs

HERE = os.path.dirname(os.path.abspath(__file__))


class OldCheckpoints(runs.Runs):
    def test_all_load(self):
        archives = sorted(glob.glob(os.path.join(HERE, "checkpoints", "format-*.tar.gz")))
        self.train(0, 1, self.deck("now", ""), "--set", "run.steps=0")
        own = self.tool(0, "inspect", "now")["format_version"]
        assert f"format-{own}.tar.gz" in map(os.path.basename, archives), "this build's own version is not among them: see make.py"
        for archive in archives:
            self.folder = self.path(os.path.basename(archive).removesuffix(".tar.gz"))
            with tarfile.open(archive) as packed:
                packed.extractall(self.folder)
            with open(self.path("expected.json")) as file:
                expected = json.load(file)
            assert sorted(expected) == ["discrete", "single"]
            for layout in expected:
                with self.subtests.test(archive=archive, layout=layout):
                    self.check(layout, expected[layout])

    def check(self, layout, expected):
        assert self.tool(0, "verify", layout) == {"ok": True, "failures": []}
        told = self.tool(0, "inspect", layout)
        # A later build may tell more; the format version is that of the file.
        assert {key: told[key] for key in expected if key != "eval_loss"} == {key: expected[key] for key in expected if key != "eval_loss"}
        self.tool(0, "convert", layout, layout + "-converted", "--experts", "discrete")
        deck = layout + ".yaml"
        out, _ = self.run_to_its_end(0, 2, "eval", deck, "--checkpoint", layout, "--json")
        assert round(abs(json.loads(out)["eval_loss"] - expected["eval_loss"]), 3) == 0
        # Loaded and saved again the state is the same, for every number of ranks, both layouts and both ways of
        # reading.
        for ranks, weights, io in ((1, "discrete", "mpio"), (2, "discrete", "direct"), (3, "single", "mpio")):
            target = f"{layout}-{ranks}"
            out, _ = self.train(75, ranks, deck, "--resume", layout, "--stop-at", "3", "--set", f"checkpoint.dir={target}", "--set", f"model.moe.weights={weights}",
                       "--set", f"checkpoint.io={io}")
            assert re.search(rf"\nbuilt differently than step {told['step']}: \w+(-dirty\S*)? -> \w+", out)
            assert self.tool(0, "inspect", target)["content_digest"] == expected["content_digest"]
            if "eval_windows" not in self.read(layout, "step_00000003", "deck.yaml"):
                assert "data.eval_windows: tail, as the weights were trained" in out
        out, _ = self.train(0, 3, deck, "--set", f"checkpoint.dir={target}", "--set", "model.moe.weights=single")  # saved by this build
        assert "resumed from" in out
        assert "built differently" not in out
        self.train(0, 2, deck)
        assert self.tool(0, "inspect", layout)["step"] == 4
        out, _ = self.train(0, 2, deck, "--set", f"checkpoint.init_from={layout}", "--set", "checkpoint.dir=fresh-" + layout)
        assert "starts with the weights of" in out
