"""Expert parallelism from outside: checkpoints of any ranks, groups and layouts, refusals, what a run says of its rows.

usage: experts_test.py TESSERA MPIEXEC
"""
import json
import subprocess

import runs

MESHES = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (4, 4))  # ranks, and how many of them hold the experts between them
LAYOUTS = ("single", "discrete")


class Experts(runs.Runs):
    def spread(self, expert, *more, experts=12):
        settings = (f"parallel.expert={expert}", f"model.moe.experts={experts}", *more)
        return [word for setting in settings for word in ("--set", setting)]

    def test_any_group_loads_what_any_group_saved(self):
        """Masters and moments: the digest of what is loaded and saved again is that of the first save."""
        self.train(75, 2, self.deck("base"), "--stop-at", "1", *self.spread(1))
        want = self.final("base")
        for i, (ranks, expert) in enumerate(MESHES):
            for target, source, mesh in ((f"s{i}", "base", (ranks, expert)), (f"l{i}", f"s{i}", MESHES[(i + 1) % len(MESHES)])):
                layout, weights = LAYOUTS[i % 2], LAYOUTS[(i // 2 + mesh[1]) % 2]
                self.train(75, mesh[0], self.deck(target, weights), "--resume", source, "--stop-at", "1",
                           *self.spread(mesh[1], f"checkpoint.expert_layout={layout}"))
                with self.subTest(source=source, mesh=mesh, layout=layout, weights=weights):
                    self.assertEqual(self.final(target), want)

    def test_a_run_in_two_parts_is_the_whole(self):
        settings = self.spread(2, "checkpoint.expert_layout=discrete")
        self.train(0, 4, self.deck("a"), *settings)
        self.train(75, 4, self.deck("b"), *settings, "--stop-at", "5")
        self.train(0, 4, self.deck("b"), *settings)
        self.assertEqual(self.rows("b"), self.rows("a"))
        self.assertEqual(self.final("b"), self.final("a"))
        self.assertTrue(all(1 <= row["expert_rows"] <= 2 for row in self.json_lines("a", "metrics.jsonl")))

    def test_evaluation_knows_no_rank_count(self):
        """Within one size of groups; with another the rows of an expert's products are others."""
        self.train(0, 2, self.deck("a"), *self.spread(2, "run.steps=2"))
        losses = set()
        for ranks in (2, 4):
            out, _ = self.run_to_its_end(0, ranks, "eval", self.deck("a"), "--checkpoint", "a", "--json",
                                         *self.spread(2, "run.steps=2"))
            losses.add(json.loads(out)["eval_loss"])
        self.assertEqual(len(losses), 1)

    def test_a_trace_lists_exchanges(self):
        self.train(75, 2, self.deck("a"), "--stop-at", "2", *self.spread(2, f"debug.trace={self.path('t.jsonl')}", "eval.every_steps=1"))
        for row in self.json_lines("t.jsonl"):
            rows = [c for c in row["collectives"] if c["op"] == "exchange_rows"]
            # Two layers and six micro-batches: forward and back, and the same for the gradients. Evaluations are no step's.
            self.assertEqual(len(rows), 4 * 2 * 6)
            self.assertEqual({c["label"] for c in rows}, {"expert rows", "expert answers", "answer gradients", "row gradients"})
            self.assertGreater(sum(c["bytes"] for c in rows), 0)

    def test_a_plan_says_who_holds_what(self):
        def plan(*more):
            done = subprocess.run([runs.TESSERA, "plan", self.deck("a"), "--ranks", "4", *more], capture_output=True, text=True,
                                  cwd=self.folder, check=True)
            return done.stdout
        one, two = json.loads(plan("--json", *self.spread(1))), json.loads(plan("--json", *self.spread(2)))
        self.assertEqual(two["parameters"], one["parameters"])
        self.assertEqual(two["flops_per_step"], one["flops_per_step"])
        self.assertEqual(two["expert"], {"ranks": 2, "held": 6, "rows_planned": 2 * 32 * 2, "rows_even": 32 * 2})
        self.assertNotIn("expert", one)
        self.assertIn("host reads", two["graph"])
        self.assertEqual({len(b["slices"]) for g in two["groups"] if g["processes"] == "expert" for b in g["buckets"]}, {2})
        self.assertLess(two["memory"]["weights"], one["memory"]["weights"])
        text = plan("--verbose", *self.spread(2))
        self.assertIn("4 ranks in 2 expert groups of 2; each rank holds 6 of 12 experts", text)

    def test_without_room_a_run_ends_on_all_ranks(self):
        """At 1.0 times the even share some layer of some step has too little; nothing of that step is left."""
        _, err = self.train(6, 2, self.deck("a"), *self.spread(2, "parallel.expert_room=1.0"))
        self.assertRegex(err, r"parallel.expert_room: at rank [01] 1\.\d+ times .* room for 1: 1\.\d+ would have done")
        self.assertEqual(self.tool(0, "ls", "a"), [])
        self.assertEqual(self.json_lines("a", "metrics.jsonl"), [])

    def test_what_cannot_be_is_refused_by_name(self):
        for ranks, weights, settings, said in (
                (2, "single", self.spread(3), "parallel.expert: 3 does not divide 2 ranks"),
                (2, "single", self.spread(2, experts=3), "parallel.expert: 2 does not divide 3 experts"),
                (2, "", ["--set", "parallel.expert=2"], "parallel.expert: 2 ranks would hold the experts"),
                (2, "single", self.spread(2, "parallel.expert_room=0.5"), "parallel.expert_room")):
            with self.subTest(said=said):
                _, err = self.run_to_its_end(3, ranks, "train", self.deck("a", weights), *settings)
                self.assertIn(said, err)


if __name__ == "__main__":
    runs.main()
