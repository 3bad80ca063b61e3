#include <atomic>

#include "kernels/base/launch.hpp"
#include "kernels/quantize/measure_patch.hpp"

namespace tessera::quantizer::measure {
namespace {

/// What one thread gathers of a patch.
struct Gathered {
  std::uint32_t top[most_blocks];
  float step[most_blocks];
  std::uint8_t draws[patch_edge][patch_edge];
  std::uint64_t errors[2][most_blocks];
  std::uint64_t counted[256], squares[2][256];
};

void add_to(std::uint64_t& word, std::uint64_t value) {
  if (value != 0) std::atomic_ref(word).fetch_add(value, std::memory_order_relaxed);
}
void raise_to(std::uint64_t& word, std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> shared(word);
  std::uint64_t now = shared.load(std::memory_order_relaxed);
  while (now < value && !shared.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

class OneThread {
 public:
  struct Formulas {
    static float gelu(float x) { return gelu_of(x); }
    static float gelu_slope(float x) { return activation::gelu_slope(x); }
    static float sigmoid(float x) { return activation::sigmoid(x); }
  };

  struct Share {
    Counts counts;
  };

  explicit OneThread(Gathered& gathered) : gathered_(gathered) {}

  template <class F>
  void each_column(const F& f) const {
    for (int c = 0; c < patch_edge; ++c) f(c);
  }
  template <class F>
  void each_row(const F& f) const {
    each_column(f);
  }
  template <class F>
  void each_block(int blocks, const F& f) const {
    for (int block = 0; block < blocks; ++block) f(block);
  }
  std::uint32_t& top(int block) const { return gathered_.top[block]; }
  float& step(int block) const { return gathered_.step[block]; }
  std::uint64_t& error(int encoding, int block) const { return gathered_.errors[encoding][block]; }
  void add_error(int encoding, int block, std::uint32_t error) const { this->error(encoding, block) += error; }
  std::uint8_t& draw(int row, int column) const { return gathered_.draws[row][column]; }
  void raise(int block, int, std::uint32_t magnitude) const {
    top(block) = larger(top(block), magnitude);
  }
  void clear_sums() const {
    std::fill_n(gathered_.counted, 256, 0);
    for (auto& squares : gathered_.squares) std::fill_n(squares, 256, 0);
  }
  void bound(std::uint32_t) const {}
  static Share share() { return {}; }
  template <Sum sum>
  void add(Share&, std::uint32_t exponent, std::uint64_t square) const {
    if (sum == Sum::values) ++gathered_.counted[exponent];
    gathered_.squares[static_cast<int>(sum)][exponent] += square;
  }
  void finish(const Share& share, QuantizerSums& sums) const {
    const Counts& counts = share.counts;
    add_to(sums.elements, counts.elements);
    add_to(sums.zeros, counts.zeros);
    add_to(sums.nan, counts.nan);
    add_to(sums.infinite, counts.infinite);
    add_to(sums.saturated, counts.saturated);
    add_to(sums.underflow, counts.underflow);
    raise_to(sums.amax, counts.amax);
    for (int e = 0; e < 256; ++e) {
      add_to(sums.exponents[e], gathered_.counted[e]);
      each_digit(gathered_.squares[0][e], bit_of_square(e),
                 [&](int limb, std::uint64_t digit) { add_to(sums.values[limb], digit); });
      each_digit(gathered_.squares[1][e], bit_of_square(e),
                 [&](int limb, std::uint64_t digit) { add_to(sums.errors[limb], digit); });
    }
  }

 private:
  Gathered& gathered_;
};

}  // namespace

void launch(Stream& stream, FormatId format, Side side, Kind kind, Stage stage, const Job& job) {
  with_kernel(format, side, kind, stage, [&]<class F, Side s, class Source, Stage g>(const F& of) {
    tessera::launch(stream, "measure", job.patches.count, [job, of](std::int64_t unit) {
      Gathered gathered;
      measure_patch<F, s, Source, g>(of, OneThread(gathered), job, unit);
    });
  });
}

}  // namespace tessera::quantizer::measure
