"""The lint itself: every row catches its own bad example and leaves its good one alone; so do the checks in code."""
import lint
import prose
import rules
import source


def names(findings) -> list[str]:
    return [f.rule for f in findings]


class Patterns:
    def test_each_rule_catches_its_example_and_no_more(self):
        for rule in rules.RULES:
            with self.subtests.test(rule.name):
                assert rule.name in names(lint.by_pattern(*rule.bad))
                assert rule.name not in names(lint.by_pattern(*rule.good))
                assert rule.reason

    def test_names_are_unique(self):
        assert len(rules.RULES) == len({rule.name for rule in rules.RULES})

    def test_comments_and_strings_are_not_code(self):
        text = '// Kokkos::fence();\nconst char* s = "Kokkos::fence();";\n/* Kokkos::fence(); */\n'
        assert [] == list(lint.by_pattern("kernels/a/a.cpp", text))

    def test_line_is_that_of_the_match(self):
        text = "int a;\n/* two\nlines */\nKokkos::fence();\n"
        assert [4] == [f.line for f in lint.by_pattern("kernels/a/a.cpp", text) if f.rule == "fence"]


class Functions:
    def found(self, text: str):
        return [(f.name, f.line, f.lines) for f in source.functions(text)]

    def test_free_member_and_template(self):
        text = ("namespace n {\n"
                "template <class T, int N = 3>\nvoid f(T t, int x = {}) {\n  if (t) { g(); }\n}\n"
                "class C : public B {\n public:\n  C(int a) : a_{a} {}\n  int get() const { return a_; }\n private:\n  int a_ = 0;\n};\n"
                "}\n")
        assert [("f", 2, 4), ("C", 8, 1), ("get", 9, 1)] == [f for f in self.found(text) if f[0]]

    def test_tables_and_enumerations_are_not_functions(self):
        assert [] == self.found("const int a[] = {1, 2};\nenum class E { x, y };\nconst T t = make({1, 2});\n")

    def test_braces_in_strings_and_characters(self):
        text = "void f() {\n  puts(\"}{\"); char c = '{'; auto r = R\"x(}})x\"; int m = 1'000;\n}\nvoid g() {\n}\n"
        assert [("f", 1, 3), ("g", 4, 2)] == self.found(text)


class Checks:
    def test_long_function_and_file(self):
        long = "void f() {\n" + "  g();\n" * rules.MOST_LINES_OF_FUNCTION + "}\n"
        assert ["function-size"] == names(lint.by_size("io/a.cpp", long))
        fits = "void f() {\n" + "  g();\n" * (rules.MOST_LINES_OF_FUNCTION - 2) + "}\n"
        assert [] == names(lint.by_size("io/a.cpp", fits))
        assert ["file-size"] == names(lint.by_size("io/a.cpp", "int a;\n" * (rules.MOST_LINES_OF_FILE + 1)))

    def test_long_line(self):
        assert [] == names(lint.by_size("io/a.cpp", "/" * rules.MOST_COLUMNS + "\n"))
        assert ["line-size"] == names(lint.by_size("io/a.cpp", "\n" + "/" * (rules.MOST_COLUMNS + 1)))

    def test_long_training_loop(self):
        loop = "void f() { engine_.step(batch); }\n" + "int a;\n" * rules.MOST_LINES_OF_LOOP_FILE
        assert ["loop-size"] == names(lint.by_size("app/train/loop.cpp", loop))

    def test_core_order(self):
        text = '#include "core/params/weights.hpp"\n'
        assert ["core-order"] == names(lint.by_core_order("core/comm/a.cpp", text))
        assert [] == names(lint.by_core_order("core/model/a.cpp", text))
        assert ["core-order"] == names(lint.by_core_order("core/model/a.cpp", '#include "core/optim/adamw.hpp"\n'))
        assert ["core-order"] == names(lint.by_core_order("core/odds/a.cpp", text))

    def test_params_order(self):
        text = '#include "core/params/param_sync.hpp"\n'
        assert ["params-order"] == names(lint.by_params_order("core/params/wires/rounded.cpp", text))
        assert ["params-order"] == names(lint.by_params_order("core/params/slots.hpp", text))
        assert ["params-order"] == names(lint.by_params_order("core/params/odds.cpp", text))
        assert [] == names(lint.by_params_order("core/params/param_sync_weights.cpp", text))
        assert [] == names(lint.by_params_order("core/step/engine.hpp", text))
        assert ["params-order"] == names(lint.by_params_order("core/params/planes.cpp", '#include "core/params/wires/wire.hpp"\n'))

    def test_throw_between_collectives(self):
        bad = "void f() { control.agree(a); if (x) throw Error(); control.agree(b); }"
        good = "void f() { if (x) throw Error(); control.agree(a); control.agree(b); }"
        assert ["throw-between-collectives"] == names(lint.by_throws("core/params/a.cpp", bad))
        collected = "void f() { control.agree(a); collect(problems, [&](int i) { if (i) throw Error(); }); control.agree(problems); }"
        assert [] == names(lint.by_throws("core/params/a.cpp", good))
        assert [] == names(lint.by_throws("core/params/a.cpp", collected))

    def test_kernel_needs_reference_test_and_bench(self):
        tree = {"kernels/a/a.hpp": "void a(Stream& stream, const Tensor& x);"}
        assert ["kernel-reference", "kernel-test", "kernel-bench"] == names(lint.by_kernel(tree))
        tree |= {"tests/reference/a.hpp": "", "tests/unit/kernels/a_test.cpp": "", "tests/bench/k_bench.cpp": '#include "kernels/a/a.hpp"'}
        assert [] == names(lint.by_kernel(tree))

    def test_header_inside_a_kernel_folder_is_no_kernel(self):
        tree = {"kernels/a/inner.hpp": "void a(Stream& stream, const Tensor& x);", "kernels/a/a.cpp": '#include "kernels/a/inner.hpp"',
                "kernels/no_gpu.cpp": '#include "kernels/a/inner.hpp"'}
        assert [] == names(lint.by_kernel(tree))

    def test_folder_needs_readme(self):
        assert ["core/README.md", "core/data/README.md"] == [f.path for f in lint.by_folder({"core/data/a.cpp": ""})]
        said = "# a\nb\n\nc\nd\ne\n"
        assert [] == names(lint.by_folder({"core/data/a.cpp": "", "core/README.md": said, "core/data/README.md": said}))
        assert ["core/README.md"] == [f.path for f in lint.by_folder({"core/README.md": "# a\n\nb\nc\nd\n"})]

    def test_documents_name_what_exists(self):
        tree = {"core/data/a.hpp": "class WindowsOfText { void read_all(); };", "docs/keys.md": "| `run.steps` |", "docs/README.md": ""}
        good = ("`core/data/a.hpp` `core/data` `core/data/{a,a}.hpp` `core/*/a.hpp` `core/data/a` `a.hpp` `WindowsOfText::read_all()` `read_all()` "
                "`run.steps` `std::size_t()` `run.json` `core/<op>.hpp` `plain` [keys](docs/keys.md) [out](https://a.b/c) [up](#there)\n"
                "    `core/gone.hpp`\n```\n`GoneType`\n```\n")
        assert [] == list(lint.by_document(tree | {"README.md": good}))
        for bad in ("core/gone.hpp", "core/data/{a,b}.hpp", "core/*/b.hpp", "b.hpp", "WindowsOfText::gone()", "GoneType", "gone()", "run.stops"):
            with self.subtests.test(bad):
                assert [("README.md", 2)] == [(f.path, f.line) for f in lint.by_document(tree | {"README.md": f"\nthe `{bad}`\n"})]
        assert ["document"] == names(lint.by_document(tree | {"docs/tour.md": "[gone](gone.md)"}))
        assert [] == names(lint.by_document(tree | {"docs/tour.md": "[keys](keys.md) [core](../core/data/a.hpp)"}))

    def test_sentences_of_comments_are_short(self):
        words, most = (lambda n: " ".join(["word"] * n)), prose.MOST_WORDS
        found = lambda text: [f.line for f in lint.by_prose("core/a.hpp", text)]
        assert [1] == found(f"/// {words(most)}\n/// word.\n")
        assert [1] == found(f"int a;  ///< {words(most + 1)}\n")
        assert [] == found(f"/// {words(most)}.\n/// {words(most)}. {words(most)}\n")
        assert [] == found(f"/// {words(most)}\n///\n/// {words(most)}\n")
        assert [] == found(f"/// {words(most)}\n///   {words(most)}\n/// {words(most)}\n")    # a list between
        assert [] == found(f'/// {words(most)} "word word" f(x) a[i] 12.\nf("// {words(most + 1)}");\n')
        assert [] == list(lint.by_prose("python/a.py", f"# {words(most + 1)}\n"))

    def test_markdown_has_one_sentence_a_line(self):
        for wrong, right in (("One. Two\nthree.\n", "One.\nTwo three.\n"),
                             ("- One. Two\n  three.\n  1. Four. Five.\n", "- One.\n  Two three.\n  1. Four.\n     Five.\n"),
                             ("**Lead.** One. Two.\n", "**Lead.** One.\nTwo.\n"), ("\"One.\" (Two.) Three.\n", "\"One.\"\n(Two.)\nThree.\n")):
            assert ["prose"] == names(lint.by_prose("a.md", wrong))
            assert right == prose.reflowed(wrong)
            assert [] == names(lint.by_prose("a.md", right))
        for kept in ("# One. Two.\n", "| One. Two. |\n|---|\n", "```\nOne. Two\nthree\n```\n", "a\n\n    One. Two\n    three\n", "> One. Two.\n",
                     "See e.g. Two, `a. B` and [a. B](c. D) by A. Name, 1.5 of No. 7.\n", "One.  \nTwo\n", "Ends ... Not here.\n"):
            assert kept == prose.reflowed(kept)

    def test_goldens_change_with_a_reason(self):
        path, old, new = "tests/oracle/goldens/a.bin", "0" * 64, "1" * 64
        line = f"{old}  goldens/a.bin  2026-01-01 first made by a script\n"
        assert [] == names(lint.by_goldens({path: old}, "# head\n" + line))
        for hashes, reasons, found in (({path: new}, line, path), ({path: old}, "", path), ({}, line, lint.REASONS),
                                       ({path: old}, line + "note\n", lint.REASONS)):
            assert [("golden-reason", found)] == [(f.rule, f.path) for f in lint.by_goldens(hashes, reasons)]
        without = f"{old}  goldens/a.bin  2026-01-01 \n"
        assert [lint.REASONS, path] == [f.path for f in lint.by_goldens({path: old}, without)]
