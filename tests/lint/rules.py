"""The lint's rules by pattern, one row each: the pattern, the paths where it is searched and allowed, and the reason.

Every row has an example that it must catch and one that it must not catch; lint_test.py checks both.
Examples of forbidden words are split so that they are not found here.
"""
from dataclasses import dataclass

CPP = r"\.(hpp|cpp|cu|cuh)$"
HEADER = r"\.(hpp|cuh)$"
SOURCE = r"^(app|core|io|kernels)/.*" + CPP


@dataclass(frozen=True)
class Rule:
    name: str
    reason: str
    pattern: str               # regular expression
    bad: tuple[str, str]       # path, text: must be caught
    good: tuple[str, str]      # path, text: must not
    where: str = SOURCE        # paths that the rule reads
    allowed: str = r"^$"       # paths that it skips
    reads: str = "code"        # code: no comments, strings blanked | include: no comments | text: all of it | path


RULES = [
    # The direction of includes and the places of libraries.
    Rule("kernels-include", "direction app -> io -> core -> kernels", r'#include [<"](core|io|app|tests)/', reads="include",
         where=r"^kernels/", bad=("kernels/a/a.cpp", '#include "core/comm/control.hpp"'), good=("kernels/a/a.cpp", '#include "kernels/base/tensor.hpp"')),
    Rule("core-include", "direction app -> io -> core -> kernels", r'#include [<"](io|app|tests)/', reads="include",
         where=r"^core/", bad=("core/a/a.cpp", '#include "io/deck/deck.hpp"'), good=("core/a/a.cpp", '#include "kernels/base/tensor.hpp"')),
    Rule("io-include", "direction app -> io -> core -> kernels", r'#include [<"](app|tests)/', reads="include",
         where=r"^io/", bad=("io/a/a.cpp", '#include "app/train/train.hpp"'), good=("io/a/a.cpp", '#include "core/plan/plan.hpp"')),
    Rule("app-include", "nothing includes tests", r'#include [<"]tests/', reads="include",
         where=r"^app/", bad=("app/a.cpp", '#include "tests/support/compare.hpp"'), good=("app/a.cpp", '#include "io/deck/deck.hpp"')),
    Rule("kokkos", "Kokkos is known to kernel sources and core/device; a header that includes it costs nvcc seconds and g++ cannot read it",
         r"#include <Kokkos|\bKokkos::|\bKOKKOS_", allowed=r"^kernels/.*\.(cpp|cu)$|^kernels/base/|^core/device/.*\.cpp$",
         bad=("kernels/loss/loss.hpp", "#include <Kokkos_Core.hpp>"), good=("kernels/loss/loss.cpp", "Kokkos::View<float*> v;")),
    Rule("launch-header", "these headers bring Kokkos: for kernel sources alone", r'#include "kernels/base/(launch|strips)\.hpp"', reads="include",
         allowed=r"^kernels/.*\.(cpp|cu)$|^kernels/base/", bad=("kernels/a/a.hpp", '#include "kernels/base/launch.hpp"'), good=("kernels/a/a.cpp", '#include "kernels/base/launch.hpp"')),
    Rule("mpi", "MPI and NCCL belong to core/comm", r"#include <(mpi|nccl)\.h>", allowed=r"^core/comm/",
         bad=("app/main/main.cpp", "#include <mpi.h>"), good=("core/comm/mpi.cpp", "#include <mpi.h>")),
    Rule("mpi-handle", "the one header that shows MPI is for HDF5's MPI-IO driver", r'#include "core/comm/mpi_handle\.hpp"', reads="include", allowed=r"^io/hdf5/",
         bad=("io/checkpoint/writer.cpp", '#include "core/comm/mpi_handle.hpp"'), good=("io/hdf5/parallel.cpp", '#include "core/comm/mpi_handle.hpp"')),
    Rule("yaml-hdf5", "YAML and HDF5 belong to io", r"#include <(yaml-cpp|hdf5|H5\w*\.h)", allowed=r"^io/",
         bad=("core/config/config.hpp", "#include <yaml-cpp/yaml.h>"), good=("io/deck/deck.cpp", "#include <yaml-cpp/yaml.h>")),
    Rule("writes", "loops of writes, atomic text writes and locks of files live in io/files, once each", r"(?<!\w)::(p?writev?|fsync|flock|rename)\s*\(",
         allowed=r"^io/files/|^core/comm/alarm\.cpp$", bad=("io/a/a.cpp", "::write(file, text, n);"), good=("io/files/a.cpp", "::write(file, text, n);")),
    Rule("cuda-switch", "one source for host and GPU: what differs lies in kernels/base and *_cuda.cu",
         r"#\s*(if|ifdef|ifndef|elif)\b.*\b(KOKKOS_ENABLE_CUDA|__CUDACC__|__CUDA_ARCH__|TESSERA_CUDA)\b", allowed=r"^kernels/base/|_cuda\.cu$",
         bad=("core/device/device.cpp", "#ifdef KOKKOS_ENABLE_CUDA"), good=("kernels/base/launch.hpp", "#if defined(KOKKOS_ENABLE_CUDA)")),
    Rule("cuda-header", "a machine without a GPU toolkit compiles every .hpp: headers that need one are .cuh", r"#include <(cuda|cublas|cudnn|nccl|cutlass|cute)[\w/.]*>",
         where=r"\.hpp$", bad=("core/comm/a.hpp", "#include <cuda_runtime.h>"), good=("core/comm/a.cuh", "#include <cuda_runtime.h>")),
    # The step.
    Rule("parallel", "launch() is the only door: it names the instance, counts, and checks the functor's size",
         r"\bparallel_(for|reduce|scan)\b", allowed=r"^kernels/base/launch\.hpp$",
         bad=("kernels/a/a.cpp", "Kokkos::parallel_for(n, f);"), good=("kernels/a/a.cpp", "launch(stream, name, n, f);")),
    Rule("fence", "the host waits in named places of core/device only", r"(\bKokkos::|\.|->)fence\s*\(|\bcuda(Device|Stream|Event)Synchronize\b",
         allowed=r"^core/device/", bad=("kernels/a/a.cpp", "Kokkos::fence();"), good=("core/device/device.cpp", "instance.fence();")),
    Rule("allocation", "kernels allocate nothing: temporaries come from an Arena, library state from the stream",
         r"\b(malloc|calloc|realloc|aligned_alloc|cudaMalloc\w*|kokkos_malloc|new)\b\s*[(<\w]|\bstd::(vector|deque|make_unique|make_shared)\b",
         where=r"^kernels/.*\.(cpp|cu)$", allowed=r"^kernels/base/|^kernels/no_gpu\.cpp$|^kernels/gemm/|^kernels/attention/library_cuda\.cu$|^kernels/quantize/table\.cpp$|^kernels/newton_schulz/table\.cpp$",    # plans and tables are made before the first step
         bad=("kernels/a/a.cpp", "std::vector<float> row(n);"), good=("kernels/a/a.cpp", "Tensor row = arena.temp(type, shape);")),
    Rule("atomics", "sums have one order; only integers (digest, exact sum of squares, blocks that have ended, slots of experts, rounded entropies, statistics) may add in any",
         r"\batomic(_fetch)?_(add|sub)\b|\batomicAdd\b|\bstd::atomic<\s*(float|double)", allowed=r"^kernels/(digest|reduce|optim)/|^kernels/moe/(route_cuda\.cu|record\.cpp)$|^kernels/quantize/measure_cuda\.cu$",
         bad=("kernels/a/a.cpp", "Kokkos::atomic_add(&sum, x);"), good=("kernels/a/a.cpp", "sum += x;")),
    # Types that speak.
    Rule("switch-format", "a format or recipe is a row with capabilities, not a case", r"\bswitch\s*\([^)]*\b(format|recipe)\b|\bif\s*\([^)]*\brecipe\s*==",
         allowed=r"^(kernels/formats|core/recipe)/", bad=("core/params/weights.cpp", "switch (format) {"), good=("core/params/weights.cpp", "wire.stage(stream);")),
    Rule("two-bools", "two flags side by side say nothing at the call: use types", r"\([^();{}]*\bbool\s+\w+[^();{}]*,\s*(const\s+)?bool\s+\w+", where=r"^(app|core|io|kernels|tests)/.*" + CPP,
         bad=("core/a.hpp", "void gather(bool overlap, int n, bool quantized);"), good=("core/a.hpp", "void gather(Overlap overlap, bool dry);")),
    Rule("many-tensors", "more than four tensors in a row cannot be told apart at the call: a struct with named members",
         r"(\bconst\s+Tensor\s*&[^,(){}]*,\s*){4}const\s+Tensor\s*&", where=r"^(app|core|io|kernels)/.*" + CPP,
         bad=("kernels/a/a.hpp", "void f(Stream& s, const Tensor& a, const Tensor& b,\n  const Tensor& c, const Tensor& d, const Tensor& e);"),
         good=("kernels/a/a.hpp", "void f(Stream& s, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, const Gradient& e);")),
    Rule("run-config", "constructors take their own struct, never the whole deck", r"\bRunConfig\b", where=r"^(core|kernels)/.*" + CPP,
         allowed=r"^core/(config|plan)/|^core/model/shape\.",    # the one place where a deck becomes a model's shape
         bad=("core/model/gpt.hpp", "Gpt(const RunConfig& c);"), good=("core/model/gpt.hpp", "Gpt(const ModelConfig& c);")),
    Rule("rank-numbers", "a rank has a number in each process group: constructors take the Mesh or its Ranks, never one number",
         r"\b[A-Z]\w*\s*\([^;{}()]*\bint\s+\w*rank\b", allowed=r"^core/comm/",
         bad=("core/params/masters.hpp", "Masters(Device& device, int rank);"), good=("core/params/masters.hpp", "Masters(Device& device, const Ranks& ranks);")),
    Rule("role-by-name", "a parameter's role decides, never its name",
         r'\b(ends_with|starts_with|contains|find)\s*\(\s*"[\w.]*(weight|bias|norm|embed|router|expert|head)', reads="include", where=r"^(app|core)/.*" + CPP,
         allowed=r"^core/layout/", bad=("core/optim/adamw.cpp", 'if (name.ends_with(".bias")) decay = 0;'), good=("core/optim/adamw.cpp", "if (decays(spec.role)) rate = wd;")),
    Rule("tolerances", "tolerances stand in one table, tests/support", r"_NEAR\s*\([^;]*\d[eE]-\d+\s*\)\s*[;<]|_NEAR\s*\([^;]*\b0\.0\d*\s*\)\s*[;<]", where=r"^tests/.*" + CPP, allowed=r"^tests/support/",
         bad=("tests/unit/kernels/a_test.cpp", "EXPECT_NEAR(a, b, 1e-5);"), good=("tests/unit/kernels/a_test.cpp", "EXPECT_TRUE(near(a, b, tolerance<float>));")),
    Rule("one-owner", "what is true of a group of parameters changes in one place: ParamSync alone takes a machine along an edge",
         r"\.to\(\s*(WeightState|SlotState|GradientState)::", allowed=r"^core/params/param_sync(_\w+)?\.cpp$",
         bad=("core/step/engine.cpp", "group.weights.to(WeightState::stale);"), good=("core/params/param_sync_weights.cpp", "group.weights.to(WeightState::stale);")),
    Rule("wires", "how weights travel is known to core/params alone; others see planes and operands", r'#include "core/params/(wires/|slots)', reads="include", where=r"^(app|core|io)/.*" + CPP,
         allowed=r"^core/params/", bad=("app/training/tell/trace.cpp", '#include "core/params/wires/wire.hpp"'), good=("core/params/slots.hpp", '#include "core/params/wires/wire.hpp"')),
    # One word, one meaning.
    Rule("vague-types", "a place, piece, part or slot says nothing of what it is: name the shard, range, position, addresses or memory",
         r"\b(struct|class)\s+(Place|Piece|Part|Held|Slot)s?\b", where=r"^(app|core|io|kernels)/.*" + CPP,
         allowed=r"^kernels/quantize/(patch\.cuh|table\.cpp)$",
         bad=("core/params/slots.hpp", "struct Place {"), good=("core/params/slots.hpp", "struct WeightSlot {")),
    Rule("private-verbs", "words of computing, not of a story: check, receive, collect, continuation_text, at_boundary",
         r"\b(look|hear|heard|ways_on|those_that_count|straight_on_?|sound_deck|outlast_ranks|go_on_with_save|made_up_for|Told)\b(?=\s*[({;=]|\s+\w+\s*[({;=])",
         bad=("core/comm/peers.cpp", "Heard heard = link.receive(); void hear(std::size_t which) {"), good=("core/comm/peers.cpp", "void receive_from(std::size_t which) {")),
    Rule("old-words", "the field's words: all-gathers and reductions start, weights are unsharded and resharded, groups are resident or transient",
         r"\b(pooled|walk_to_ready|begin_gather|begin_reduction|outdate|lease)\b", where=r"^core/.*" + CPP,
         bad=("core/params/param_sync.cpp", "begin_gather(stream, visit);"), good=("core/params/param_sync.cpp", "start_gather(stream, visit);")),
    # The tree.
    Rule("vague-names", "a file is named for what lives in it", r"(^|[/_-])(utils?|common|helpers?|misc)([/_.-]|$)", reads="path", where=r"",
         bad=("core/utils/a.hpp", ""), good=("core/layout/layout.hpp", "")),
    Rule("unfinished", "what is in the tree is finished", r"(?i)\b(T[O]DO|F[I]XME|X[X]X|H[A]CK|s[t]ub|place[h]older|not (yet )?imple[m]ented|for n[o]w|simplified ver[s]ion)\b",
         reads="text", where=r"^(app|core|io|kernels|tests|inputs|jobscripts|docs|examples|python)/|^[A-Z]+\.md$", bad=("io/a.cpp", "// TO" "DO later"), good=("io/a.cpp", "// The last row is dropped.")),
    Rule("tests-off", "a test that does not run proves nothing (one that cannot run on this back end or rank count says so behind an if)", r"(?m)DISA[B]LED_|^\s*GTEST_[S]KIP|_TRUE\(tr[u]e\)|SUC[C]EED\(\)|DISA[B]LED TRUE", reads="text", where=r"^tests/",
         bad=("tests/unit/a_test.cpp", "TEST(A, DISA" "BLED_b) {"), good=("tests/unit/a_test.cpp", "TEST(A, b) {")),
    Rule("machine-paths", "the tree names no machine, host or person's folder", r"/(wor)k/|/(roo)t/|/(ho)me/\w|--index-u[r]l|deb h[t]tps?:", reads="text", where=r"",
         bad=("inputs/a.yaml", "dir: /ho" "me/ada/runs"), good=("inputs/a.yaml", "dir: runs/a")),
]

# Folders of core/, lowest first: each may include those above it in this list, but not others of its own row.
CORE_ORDER = [("recipe",), ("config",), ("layout",), ("state",), ("device",), ("comm",), ("params",), ("optim", "model", "data"), ("step",), ("plan",)]

# Floors of core/params, lowest first: a file includes those of its own floor and below. A folder stands for its files;
# param_sync for all parts of ParamSync.
PARAMS_ORDER = [("usage", "access", "sync_rules", "labels", "two_ended"), ("planes", "cast", "placed_table"), ("sync_schedule", "visits", "rounds", "rehearsal"), ("wires",),
                ("state", "slots", "running_sums", "pending_reductions"), ("tokens",), ("masters",), ("param_sync",)]

MOST_COLUMNS = 120
MOST_LINES_OF_FILE = 600
MOST_LINES_OF_FUNCTION = 60
MOST_LINES_OF_LOOP_FILE = 120    # the file in app/ that holds the training loop: a screenful or two
LEAST_LINES_OF_README = 5         # of a folder, the title among them
