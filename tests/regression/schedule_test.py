"""precision.schedule: a run whose recipe changes equals one that is stopped and resumed with the other recipe by hand, however
often it is stopped, on any ranks and however weights are held.
"""
import itertools
import json
import os

import runs

CHANGES = ((3, "nvfp4"), (6, "{base: mxfp8, weight: {forward: bf16}}"))
SCHEDULE = "precision.schedule=[" + ", ".join(f"{{from_step: {step}, recipe: {recipe}}}" for step, recipe in CHANGES) + "]"
STEPS = 8
MODEL = ("--set", "model.hidden=64", "--set", "model.ffn=64", "--set", "reduce.order=batch", "--set", "sample.tokens=0",
         "--set", "checkpoint.keep_last=20")


class Schedule(runs.Runs):
    def deck(self, directory, weights=None):
        return super().deck(directory, weights)

    def scheduled(self, directory, ranks, *arguments, code=0, weights=None):
        deck = self.deck(directory, weights)
        return self.train(code, ranks, deck, "--set", SCHEDULE, *MODEL, *arguments)

    def result(self, directory):
        return self.rows(directory), self.final(directory)

    def by_hand(self, directory, ranks, *arguments, weights=None):
        deck, recipe = self.deck(directory, weights), "bf16"
        for step, later in CHANGES:
            self.train(75, ranks, deck, "--set", f"precision.recipe={recipe}", *MODEL, *arguments, "--stop-at", str(step - 1))
            recipe = later
        self.train(0, ranks, deck, "--set", f"precision.recipe={recipe}", *MODEL, *arguments)
        return self.result(directory)

    def test_a_change_is_a_stop_and_a_resume(self):
        for kind, weights, sets in (("dense", None, ()), ("experts", "single", ("--set", "optimizer.matrices=muon"))):
            run, plain = kind, kind + "-plain"
            out, _ = self.scheduled(run, 2, *sets, weights=weights)
            assert "recipes:  bf16, from step 3 on nvfp4, from step 6 on {base: mxfp8" in out
            assert out.count("resumed from") == 2
            assert self.result(run) == self.by_hand(kind + "-hand", 2, *sets, weights=weights)
            self.train(0, 2, self.deck(plain, weights), *MODEL, *sets)
            assert self.rows(plain)[:2] == self.rows(run)[:2]
            assert self.rows(plain)[2] != self.rows(run)[2]

    def test_a_run_that_is_stopped_anywhere(self):
        self.scheduled("whole", 2)
        whole = self.result("whole")
        for stop, ranks in zip((1, 2, 3, 5, 6), itertools.cycle((2, 1, 3))):
            name = f"stopped{stop}"
            self.scheduled(name, ranks, "--stop-at", str(stop), code=75)
            out, _ = self.scheduled(name, 2)
            assert "nothing to do" not in out
            assert self.result(name) == whole, (stop, ranks)

    def test_ways_that_change_no_bit(self):
        self.scheduled("run", 2)
        wanted = self.result("run")
        for i, (ranks, sets) in enumerate((
                (1, ()), (3, ("precision.primary_weights=bf16",)), (2, ("sharding=full",)),
                (2, ("sharding=full", "precision.primary_weights=bf16", "recompute.mode=full")),
                (3, ("proof.gather_overlap=false", "proof.reduce_overlap=false")), (2, ("checkpoint.async=true", "checkpoint.io=direct")))):
            arguments = [word for one in sets for word in ("--set", one)]
            self.scheduled(f"other{i}", ranks, *arguments)
            assert self.result(f"other{i}") == wanted, (ranks, sets)

    def test_a_checkpoint_is_evaluated_in_the_recipe_of_its_step(self):
        self.scheduled("run", 2)
        losses = {row["step"]: row.get("eval_loss") for row in self.json_lines("run", "metrics.jsonl")}
        for step, recipe in ((2, "bf16"), (3, "nvfp4"), (6, "{base: mxfp8, weight: {forward: bf16}}")):
            out, _ = self.run_to_its_end(0, 1, "eval", self.deck("run", None), "--set", SCHEDULE, *MODEL, "--checkpoint",
                                         self.path("run", f"step_{step:08}"), "--json")
            found = json.loads(out)
            assert (found["recipe"], found["checkpoint_recipe"]) == (recipe, recipe)
            if losses[step] is not None:
                assert found["eval_loss"] == losses[step], step

    def test_a_damaged_step_leads_back_over_a_change(self):
        self.scheduled("whole", 2)
        self.scheduled("run", 2, "--stop-at", "4", code=75)
        for step in (3, 4):
            path = self.path("run", f"step_{step:08}", "model.h5")
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                file.write(os.urandom(256))
        _, err = self.scheduled("run", 2)
        assert "trying the checkpoint before" in err
        assert self.result("run") == self.result("whole")

    def test_a_step_damaged_at_a_change_leads_back_over_it(self):
        """Once, by the command that runs after the save at the change; and such commands run to their end."""
        self.scheduled("whole", 2)
        self.write("damage.sh", "sleep 1; echo $TESSERA_STEP >> saved; [ $TESSERA_STEP = 5 ] && [ ! -e once ] || exit 0\ntouch once\n"
                   "head -c 256 /dev/urandom | dd of=$TESSERA_CHECKPOINT/model.h5 bs=1 seek=40000 conv=notrunc 2>/dev/null\n")
        _, err = self.scheduled("run", 2, "--set", "run.on_save=sh damage.sh")
        assert "step_00000005" in err
        assert "trying the checkpoint before" in err
        assert self.result("run") == self.result("whole")
        saved = self.read("saved").split()
        assert saved.count("5") == 2
        assert saved[-1] == "8"

    def test_an_audit_keeps_to_one_recipe(self):
        self.scheduled("run", 2)
        _, err = self.run_to_its_end(2, 1, "audit", self.path("run"))
        assert "the recipe changes after step 5 (precision.schedule): audit up to that step with --to 5, and what follows " "with --from 5" in err
        for first, last in ((3, 5), (5, 8)):
            out, _ = self.run_to_its_end(0, 1, "audit", self.path("run"), "--from", str(first), "--to", str(last))
            assert "equal" in out

    def test_the_plan_shows_each_segment(self):
        deck = self.deck("run", None)
        out, _ = self.run_to_its_end(0, 1, "plan", deck, "--ranks", "2", "--set", SCHEDULE, *MODEL)
        for line in ("steps 1 to 2, recipe bf16: ", "steps 3 to 5, recipe nvfp4: ", "steps 6 to 8, recipe {base: mxfp8"):
            assert "segment:  " + line in out

    def test_refusals(self):
        deck = self.deck("run", None)
        for schedule, said in (
                ("[{from_step: 1, recipe: nvfp4}]", "precision.schedule[0].from_step: 1"),
                ("[{recipe: nvfp4}]", "precision.schedule[0].from_step: missing"),
                ("[{from_step: 4, recipe: nvfp4}, {from_step: 4, recipe: bf16}]", "each must come later"),
                ("[{from_step: 4, recipe: {weight: nvfp4_1d}}]", "precision.schedule[0].recipe.weight.forward: nvfp4_1d has blocks"),
                ("[{from_step: 4, recipe: nvfp4, layers: [{blocks: ['7'], recipe: bf16}]}]", "precision.schedule[0].layers[0].blocks"),
        ):
            _, err = self.run_to_its_end(3, 2, "train", deck, *MODEL, "--set", "precision.schedule=" + schedule)
            assert said in err
            assert not os.path.exists(self.path("run"))
