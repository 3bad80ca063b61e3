// Times cuBLASLt's candidates for each product in the steps of some decks. Prints a row of kernels/gemm/measured.hpp
// for each product for which another candidate is faster than the first choice.
//
//   product_choices DECK... [KEY=VALUE ...]
//
// Candidates take turns, a few calls each, with random values; medians of the turns. A line a product: microseconds of
// the first and of the best. GPU builds only.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"
#include "io/deck/deck.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/lt.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using Words = LibraryChoices::Words;
using gemm::LtPlaces;
using gemm::LtPlans;
using gemm::Product;

constexpr int turns = 7;
constexpr double least_gain = 1.015;

std::int64_t bytes_of(const std::optional<FormatId>& codes, DType type, std::int64_t elements) {
  return codes ? elements : elements * size_of(type);
}

/// Factors of random values and a result buffer that serve every product up to a size, at multiples of 256 bytes.
class Memory {
 public:
  Memory(Device& device, std::int64_t factor_bytes, std::int64_t result_bytes)
      : device_(device),
        a_(filled(factor_bytes)),
        b_(filled(factor_bytes)),
        aux_(filled(result_bytes)),
        scales_(test::on_device(device, std::vector<float>(std::size_t{1} << 22, 1.0f))),
        c_(device.allocate(Category::batch, DType::u8, {result_bytes})) {}

  LtPlaces places(const Product& p) const {
    LtPlaces at{a_.data, b_.data, c_.data};
    if (p.biased()) at.bias = aux_.data;
    if (p.epilogue != gemm::Epilogue::none && p.epilogue != gemm::Epilogue::bias) at.aux = aux_.data;
    at.scales_a = at.scales_b = scales_.as<float>();
    if (p.scaled) at.alpha = at.beta = scales_.as<float>();
    return at;
  }

 private:
  /// As bf16 from -1 to 1; no byte is the code of a NaN.
  Tensor filled(std::int64_t bytes) {
    static const std::vector<bf16> values = [] {
      std::vector<bf16> drawn = test::uniform<bf16>(std::int64_t{1} << 22, 1);
      for (bf16& v : drawn) v.bits &= 0xFFFE;
      return drawn;
    }();
    const std::int64_t all = bytes / 2, some = std::ssize(values);
    const Tensor t = device_.allocate(Category::batch, DType::bf16, {all});
    for (std::int64_t at = 0; at < all; at += some)
      device_.upload(device_.compute(), t.flat(at, std::min(some, all - at)), values.data());
    return t;
  }

  Device& device_;
  Tensor a_, b_, aux_, scales_, c_;
};

class Candidate {
 public:
  Candidate(const Words& work, const Words& algorithm) : product_(LtPlans::product_of(work)) {
    choices_.of[work] = algorithm;
  }
  void run(Stream& stream, void* workspace, const LtPlaces& at) {
    plans_.run(stream.native(), workspace, product_, at, choices_);
  }
  void time(Device& device, void* workspace, const LtPlaces& at, int calls) {
    device.wait(device.compute().record());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run(device.compute(), workspace, at);
    device.wait(device.compute().record());
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
    times_.push_back(spent.count() / calls);
  }
  double median() {
    std::ranges::sort(times_);
    return times_[times_.size() / 2];
  }

 private:
  Product product_;
  LibraryChoices choices_;
  LtPlans plans_;
  std::vector<double> times_;
};

void measure(Device& device, void* workspace, const Memory& memory, const Words& work) {
  const Product p = LtPlans::product_of(work);
  const LtPlaces at = memory.places(p);
  std::vector<std::unique_ptr<Candidate>> candidates;
  for (const Words& algorithm : LtPlans().candidates(work))
    candidates.push_back(std::make_unique<Candidate>(work, algorithm));
  if (candidates.empty()) return;
  for (const auto& one : candidates) one->run(device.compute(), workspace, at);
  const double operations = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const int calls = std::clamp(static_cast<int>(1e-3 * 6e14 / operations), 2, 50);
  for (int turn = 0; turn < turns; ++turn)
    for (const auto& one : candidates) one->time(device, workspace, at, calls);
  std::vector<double> medians;
  for (const auto& one : candidates) medians.push_back(one->median());
  const auto best = std::ranges::min_element(medians);
  const bool faster = medians.front() > least_gain * *best;
  constexpr const char* forms[] = {"forward", "input_gradient", "weight_gradient"};
  constexpr const char* epilogues[] = {"none", "bias", "gelu", "bias_gelu", "dgelu", "rounded"};
  fmt::print("{}{{{}, Form::{}, Epilogue::{}, {}, {}, {}, {}}},  // {:.1f} us, {:.1f}; {:.0f} TFLOP/s\n",
             faster ? "    " : "//  ", p.a.has_value(), forms[static_cast<int>(p.form)],
             epilogues[static_cast<int>(p.epilogue)], p.m, p.n, p.k, best - medians.begin(), medians.front(), *best,
             operations / *best * 1e-6);
  std::fflush(stdout);
}

int run(const std::vector<std::string>& decks, const std::vector<Override>& overrides) {
  std::set<Words> all;
  std::int64_t factor = 0, result = 0;
  for (const std::string& path : decks) {
    Problems problems;
    const Deck deck = parse_deck(read_deck_text(path, problems), path, overrides, problems);
    problems.raise();
    for (const Words& work : resolve(deck.config, 1, 0).library_work) {
      const Product p = LtPlans::product_of(work);
      if (p.type != DType::bf16 || p.m * p.n * p.k < std::int64_t{1} << 30) continue;
      all.insert(work);
      factor = std::max({factor, bytes_of(p.a, p.type, p.m * p.k), bytes_of(p.b, p.type, p.n * p.k)});
      result = std::max(result, p.m * p.n * size_of(p.sum));
    }
  }
  Device device;
  const Memory memory(device, factor, result);
  void* const workspace = device.allocate(Category::batch, DType::u8, {LtPlans::workspace_bytes}).data;
  for (const Words& work : all) measure(device, workspace, memory, work);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  std::vector<std::string> decks;
  std::vector<Override> overrides;
  for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc))
    word.find('=') == std::string::npos ? decks.push_back(word) : overrides.push_back(override_of(word));
  if (decks.empty()) {
    fmt::print(stderr, "product_choices DECK... [KEY=VALUE ...]\n");
    return static_cast<int>(Exit::usage);
  }
  const Runtime runtime(1, 0);
  return run(decks, overrides);
}
