"""same_bits.py runs, finds no difference between a program and itself, and finds those that change no bit of a weight: a
prefetch that moved, a plan with another figure.
"""
import os

import runs
import same_bits


class SameBits(runs.InFolder):
    def wrapped(self, name, extra):
        """A program that adds arguments to TESSERA's."""
        path = self.write(name, f'#!/bin/sh\nexec "{self.tessera}" "$@" {extra}\n')
        os.chmod(path, 0o755)
        return same_bits.Program(path, self.launcher)

    def setup_method(self):
        super().setup_method()
        self.program = same_bits.Program(self.tessera, self.launcher)
        deck = os.path.join("recipes", "dense_mxfp8.yaml")
        self.case = same_bits.Case(deck, "full", "both", 2, "redo", "as it is", 0)

    def kinds(self, other):
        found, ran, errors = same_bits.compare(self.program, other, self.case)
        assert ran, errors
        return {one.split(":")[0] for one in found}

    def test_a_program_equals_itself(self):
        assert self.kinds(self.program) == set()

    def test_a_prefetch_that_moves_is_found(self):
        """It changes neither digests nor metrics, but how many gathers overlapped, and the order in which work begins."""
        moved = self.kinds(self.wrapped("moved", '$([ "$1" = train ] && echo --set proof.gather_overlap=false)'))
        assert "order" in moved
        assert moved - {"trace"} == {"order"}

    def test_other_bits_are_found(self):
        other = self.kinds(self.wrapped("seeded", '$([ "$1" = train ] && echo --set run.seed=5)'))
        assert {"trace", "metrics", "digest"} <= other

    def test_another_plan_is_found(self):
        other = self.kinds(self.wrapped("planned", '$([ "$1" = plan ] && echo --set recompute.mode=full)'))
        assert other == {"plan"}

    def test_cases_are_drawn_over_all_choices(self):
        some = same_bits.drawn(2 * len(same_bits.DECKS))
        for values, name in ((same_bits.DECKS, "deck"), (same_bits.OVERLAPS, "overlap"), (same_bits.EVENTS, "event"),
                             (same_bits.WAYS, "way"), (range(1, 5), "ranks"), (("optimizer", "full"), "sharding")):
            assert {getattr(case, name) for case in some} == set(values), name
