"""A start on a machine whose units multiply codes checks them: right ones are used, wrong ones are not, and it is said and
recorded. The units are software (with_units), so their runs have the bits of decoded products.
"""
import contextlib
import glob
import itertools
import json
import os
import re

import recipes_test
import runs

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
NO_ALPHA, FORGETS_BETA, REFUSES = "3", "6", "9"  # of test::Mistake


def routes(plan):
    """The routes of plan.txt's products of codes."""
    return set(re.findall(r" x \d+: (native|decoded)", plan))


class Units(recipes_test.Bench):
    @contextlib.contextmanager
    def units(self, mistake):
        """Runs are those of a machine with such units; None: without."""
        own = self.tessera
        if mistake is not None:
            self.tessera, os.environ["UNITS_MISTAKE"] = os.path.join(self.build, "tests/regression/with_units"), mistake
        try:
            yield
        finally:
            self.tessera = own

    def ran(self, recipe, name, ranks=1, units=None, *settings):
        """The trace, what was printed, and run.json, of a run with such units; None: without."""
        with self.units(units):
            trace = self.run_of(name, recipe, "dense", ranks, "run.steps=3", *settings)
        with open(self.path(name + "/run.json")) as file:
            return trace, self.said, json.load(file), self.read(name, "plan.txt")

    def run_to_its_end(self, *arguments, **settings):
        self.said = "".join(super().run_to_its_end(*arguments, **settings))
        return self.said, ""

    def test_right_units_are_used(self):
        for recipe, ranks in (("mxfp8_2d", 2), ("nvfp4", 1)):
            with self.subtests.test(recipe=recipe):
                plain, _, record, plan = self.ran(recipe, recipe + "_plain", ranks)
                assert "units" not in record
                assert routes(plan) == {"decoded"}
                trace, said, record, plan = self.ran(recipe, recipe + "_units", ranks, "0")
                assert trace == plain
                assert {unit["route"] for unit in record["units"]} == {"native"}
                assert len(record["units"]) == 3
                assert record["starts"][-1]["units"] == record["units"]
                assert said.count("units:    checked") == 1
                assert routes(plan) == {"native"}

    def test_wrong_units_are_not_used(self):
        for recipe, mistake, wrong, ranks in (("nvfp4", NO_ALPHA, 3, 2), ("mxfp8", FORGETS_BETA, 1, 1), ("mxfp8", REFUSES, 3, 1)):
            with self.subtests.test(recipe=recipe, mistake=mistake):
                # Several micro-batches a rank, so that weight gradients are added to.
                plain, _, _, _ = self.ran(recipe, f"{recipe}{mistake}_plain", ranks)
                trace, said, record, plan = self.ran(recipe, f"{recipe}{mistake}_units", ranks, mistake)
                assert trace == plain
                decoded = [unit for unit in record["units"] if unit["route"] == "decoded"]
                assert len(decoded) == wrong, record["units"]
                assert all(unit["fault"] for unit in decoded)
                assert said.count("WARNING: products that this machine's units compute wrongly") == 1
                assert routes(plan) == ({"decoded"} if wrong == 3 else {"decoded", "native"})

    def test_evaluation_checks_too(self):
        self.ran("nvfp4", "trained", 1, "0", "checkpoint.every_steps=3")
        with self.units(NO_ALPHA):
            said, _ = self.run_to_its_end(0, 1, "eval", self.path("trained.yaml"), "--checkpoint", self.path("trained"))
        assert "WARNING: products that this machine's units compute wrongly" in said

    def test_products_of_every_deck_suit_the_units(self):
        """What is native has sides that cuBLASLt's block scaling takes; nothing else that suits is decoded."""
        native, planned = 0, set()
        for deck in sorted(glob.glob(os.path.join(ROOT, "inputs", "**", "*.yaml"), recursive=True)):
            for recipe, ranks in itertools.product(("fp8_block", "mxfp8", "nvfp4"), ("1", "4")):
                with self.units("0"):
                    process = self.start(1, deck, "--ranks", ranks, "--json", "--set", f"precision.recipe={recipe}",
                                         "--set", "precision.compute=bf16", verb="plan")
                    out, err = process.communicate(timeout=runs.PATIENCE)
                if process.returncode != 0:  # for other numbers of ranks or sides, or of files that are not here
                    assert re.search("ranks|cannot be opened|takes matrices whose sides", err), deck
                    continue
                planned.add((deck, recipe))
                for product in json.loads(out)["routes"]:
                    suits = (product["m"] % 16 == 0 and product["n"] % 16 == 0 and product["k"] % 32 == 0
                             and product["experts"] == 0)
                    assert product["route"] == ("native" if suits else "decoded"), (deck, product)
                    native += suits
        assert len(planned) > 100
        assert native > 1000
