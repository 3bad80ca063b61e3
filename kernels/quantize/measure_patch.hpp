#pragma once
#include "kernels/activation/back.hpp"
#include "kernels/quantize/draws.hpp"
#include "kernels/quantize/measure.hpp"
#include "kernels/quantize/square_window.hpp"

/// Statistics of one patch by a team of threads, which is one thread on the host. Both back ends compile this file, so
/// that they count alike.

namespace tessera::quantizer::measure {

using formats::Block;
using formats::Format;

/// A whole matrix; or of a part the amaxes of blocks, the errors by which formats choose, or the statistics once these
/// are complete.
enum class Stage : std::uint8_t { whole, tops, errors, part };
/// How values are read: Reading of back.hpp, without those that no factor has.
enum class Kind : std::uint8_t { bf16, master, gelu, gelu_gradient, swiglu, swiglu_gradient };

struct Job {
  Descriptor d;
  Units patches;
  bool rotates, at_random;
  const std::int32_t* tokens;  ///< below 0: a row of no token; null: all rows are tokens'
  const float* amax;           ///< of members, or by lines of the copy's lines; null for formats without
  std::uint16_t* tops;         ///< of blocks; null: found here
  std::uint64_t* errors;       ///< of blocks, under both encodings of formats that choose; null: found here
  QuantizerSums* sums;
};

inline constexpr int band_rows = 16;
/// Blocks of a patch. Formats are objects here, since described ones are; of others these are constants.
struct Grid {
  Block block;
  int columns, size;
  TESSERA_FN explicit constexpr Grid(Block one)
      : block(one), columns(patch_edge / one.columns), size(patch_edge / one.rows * columns) {}
  TESSERA_FN constexpr int of(int row, int column) const {
    return row / block.rows * columns + column / block.columns;
  }
};
inline constexpr int most_blocks = patch_edge * patch_edge / 16;

/// One thread's share of the counts of a patch, and a maximum.
struct Counts {
  std::uint32_t elements = 0, zeros = 0, nan = 0, infinite = 0, saturated = 0, underflow = 0, amax = 0;
};

/// Sums of squares by exponent: of values, whose number is counted too, and of errors.
enum class Sum : std::uint8_t { values, errors };

/// The scaled magnitude from which on an element saturates: half a step above its largest code.
template <class Element>
TESSERA_FN constexpr float saturation(const Element& element) {
  return element.max + (element.max - element.decode(element.encode(element.max) - 1)) / 2;
}

/// Where the square of a significand of this exponent stands in ExactSum.
TESSERA_FN constexpr int bit_of_square(int exponent) { return 2 * (exponent > 1 ? exponent : 1); }

/// The value of element (row, column) of a patch as the quantizer reads it. `Formulas` are the back end's activations.
template <class Source, class Formulas>
TESSERA_DEVICE_FN inline float read(const Descriptor& d, const Patch& p, int row, int column) {
  if constexpr (OfSwiglu<Source>) {
    const SwigluPlaces at = swiglu_places<Source>(d, p);
    const float gate = Source::value(at.gate[row * at.pitch + column]),
                up = Source::value(at.up[row * at.pitch + column]), s = Formulas::sigmoid(gate);
    if constexpr (std::is_same_v<Source, FromSwiglu>) return bf16(activation::swiglu(s, gate, up));
    float dgate = 0, dup = 0;
    if constexpr (std::is_same_v<Source, FromSwigluGradient>)
      activation::swiglu_slopes(s, gate, up, Source::value(at.dy[row * at.dy_pitch + column]), dgate, dup);
    return bf16(at.of_up ? dup : dgate);
  } else {
    const float x = SourcePatch<Source>(d, p).row(row)(column);
    if constexpr (std::is_same_v<Source, FromGelu>) return bf16(Formulas::gelu(x));
    if constexpr (std::is_same_v<Source, FromGeluGradient>)
      return bf16(x * Formulas::gelu_slope(Source::value(d.pre[(p.row + row) * d.matrix.columns + p.column + column])));
    return x;
  }
}

/// Sixteen rows of a column; values that do not exist or are not owned are 0 and do not count.
struct Band {
  float value[band_rows];
  std::uint32_t counted;  ///< a bit a row
};

/// The Hadamard rotation of formats.
TESSERA_DEVICE_FN inline void rotate(float (&y)[band_rows]) {
  static_assert(band_rows == hadamard_block);
  for (int r = 0; r < band_rows; ++r) y[r] = (hadamard_signs >> r & 1u) != 0 ? -y[r] : y[r];
  for (int stride = 1; stride < band_rows; stride *= 2)
    for (int r = 0; r < band_rows; ++r) {
      if ((r & stride) != 0) continue;
      const float a = y[r], b = y[r + stride];
      y[r] = a + b;
      y[r + stride] = a - b;
    }
  for (float& v : y) v *= 0.25f;
}

template <class F, class Source, class Formulas>
TESSERA_DEVICE_FN inline Band band_at(const Job& job, const Patch& p, int first, int column) {
  Band band{};
  std::uint32_t there = 0;
  for (int r = 0; r < band_rows; ++r) {
    const int row = first + r;
    if (row >= p.rows || column >= p.columns) continue;
    if (column < p.first_owned(row, job.d.matrix.columns) || column >= p.end_owned(row, job.d.matrix.columns)) continue;
    band.value[r] = read<Source, Formulas>(job.d, p, row, column);
    there |= 1u << r;
    // mutation: rows_of_no_token_are_measured
    if (job.tokens == nullptr || job.tokens[p.row + row] >= 0) band.counted |= 1u << r;
  }
  if constexpr (F::hadamard)
    if (job.rotates) {
      rotate(band.value);
      if (band.counted != 0) band.counted = there;
    }
  return band;
}

/// team.top(block) = the largest magnitude of each block of the patch.
template <class F, class Source, class Team>
TESSERA_DEVICE_FN void find_tops(const Team& team, const Job& job, const Patch& p, const Grid& grid) {
  team.each_block(grid.size, [&](int block) { team.top(block) = 0; });
  team.each_column([&](int c) {
    for (int first = 0; first < p.rows; first += band_rows) {
      const Band band = band_at<F, Source, typename Team::Formulas>(job, p, first, c);
      const int height = grid.block.rows < band_rows ? grid.block.rows : band_rows;
      for (int r = 0; r < band_rows; r += height) {
        std::uint32_t most = 0;
        for (int k = 0; k < height; ++k) most = larger(most, magnitude(band.value[r + k]));
        team.raise(grid.of(first + r, c), grid.block.columns, most);
      }
    }
  });
}

/// Index of a patch's block among those of the whole weight, or -1 outside.
TESSERA_DEVICE_FN inline std::int64_t place_of_block(const Matrix& all, const Patch& p, const Grid& grid, int block) {
  const std::int64_t i = p.row / grid.block.rows + block / grid.columns,
                     j = p.column / grid.block.columns + block % grid.columns;
  return i < all.rows && j < all.columns ? p.member * all.elements() + i * all.columns + j : -1;
}

/// The amax that the scale of a patch's block depends on, of its member or its line; 0 outside the matrix.
template <class F>
TESSERA_DEVICE_FN inline float amax_of_block(const Job& job, const Patch& p, Side side, const Grid& grid, int block) {
  if (job.amax == nullptr) return 0.0f;
  if constexpr (formats::by_lines<F>) {
    const int row = block / grid.columns * grid.block.rows, column = block % grid.columns * grid.block.columns;
    return row < p.rows && column < p.columns ? job.amax[amax_place<F>(side, job.d, p, row, column)] : 0.0f;
  } else {
    return job.amax[p.member];
  }
}

/// team.top() and team.step() of each block become its multiplier and step. team.bound() is told the largest top.
/// team.error() decides where there are two.
template <class F, class Team>
TESSERA_DEVICE_FN void encode_blocks(const F& format, const Team& team, const Job& job, const Patch& p, Side side,
                                     const Grid& grid) {
  std::uint32_t largest = 0;
  team.each_block(grid.size, [&](int block) {
    largest = larger(largest, team.top(block));
    const float amax = amax_of_block<F>(job, p, side, grid, block);
    const formats::TensorScale tensor = format.tensor_scale(amax);
    auto encoding = format.encoding(largest_of(team.top(block)), tensor);
    if constexpr (formats::chooses<F>) {
      const auto other = F::other_encoding(largest_of(team.top(block)), tensor);
      if (F::takes_other(encoding.scale, team.error(0, block), other.scale, team.error(1, block))) encoding = other;
    }
    team.top(block) = std::bit_cast<std::uint32_t>(static_cast<float>(encoding.multiplier));
    team.step(block) = format.step(encoding.scale, amax);
  });
  team.bound(largest);
}

/// team.error(k, block) = the quantization errors of the patch's owned values under both encodings. team.top() holds
/// amaxes before it, and nothing of use after it.
template <class F, class Source, class Team>
TESSERA_DEVICE_FN void find_errors(const Team& team, const Job& job, const Patch& p, const Grid& grid) {
  using Element = typename F::Element;
  const formats::TensorScale tensor = F::tensor_scale(job.amax[p.member]);
  team.each_block(grid.size, [&](int block) {
    const float top = largest_of(team.top(block));
    team.top(block) = std::bit_cast<std::uint32_t>(F::encoding(top, tensor).multiplier);
    team.step(block) = F::other_encoding(top, tensor).multiplier;
    team.error(0, block) = team.error(1, block) = 0;
  });
  team.each_column([&](int c) {
    for (int first = 0; first < p.rows; first += band_rows) {
      const Band band = band_at<F, Source, typename Team::Formulas>(job, p, first, c);
      for (int r = 0; r < band_rows; ++r) {
        const int block = grid.of(first + r, c);
        for (int k = 0; k < 2; ++k) {
          const float v = band.value[r] * (k == 0 ? largest_of(team.top(block)) : team.step(block));
          if (const std::uint32_t error = F::error(v, Element::decode(Element::encode(v))); error != 0)
            team.add_error(k, block, error);
        }
      }
    }
  });
}

/// Adds one finite value other than 0, or its error, to the sums.
template <Sum sum, class Team>
TESSERA_DEVICE_FN inline void add_square(const Team& team, typename Team::Share& share, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu, exponent = bits >> 23;
  const std::uint64_t whole = exponent == 0 ? bits : (bits & 0x7FFFFFu) | 0x800000u;
  team.template add<sum>(share, exponent, whole * whole);
}

/// Counts one value. `draw`: its random byte, if it is rounded at random.
template <class F, class Element, class Team>
TESSERA_DEVICE_FN inline void count(const Element& element, float limit, const Team& team,
                                    typename Team::Share& share, float x, int block, bool at_random,
                                    std::uint32_t draw) {
  Counts& counts = share.counts;
  ++counts.elements;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) {
    ++(bits > 0x7F800000u ? counts.nan : counts.infinite);
    return;
  }
  if (bits == 0) {
    ++counts.zeros;
    return;
  }
  counts.amax = larger(counts.amax, bits);
  const float v = x * largest_of(team.top(block));
  std::uint32_t code = element.encode(v);
  if constexpr (formats::may_draw<F>)
    if (at_random) code = formats::e2m1_stochastic(v, draw);
  constexpr float largest = std::bit_cast<float>(0x7F7FFFFFu);
  const float above = v < 0.0f ? -v : v;
  if (above >= limit) ++counts.saturated;
  if ((code & (element.sign - 1)) == 0) ++counts.underflow;
  add_square<Sum::values>(team, share, x);
  const float difference = x - element.decode(code) * team.step(block),
              error = difference < 0.0f ? -difference : difference;
  if (error != 0.0f) add_square<Sum::errors>(team, share, error <= largest ? error : largest);
}

/// team.draws() = the random bytes of the patch.
template <class Team>
TESSERA_DEVICE_FN void fill_draws(const Team& team, const Job& job, const Patch& p, Side side) {
  const RandomKey key = draw_key(job.d, side);
  team.each_row([&](int r) {
    if (r >= p.rows) return;
    const std::uint64_t first = draw_index(job.d, p, r);
    PhiloxBlock block{};
    for (int c = 0; c < p.columns; ++c) {
      const std::uint64_t i = first + static_cast<std::uint64_t>(c);
      if (c == 0 || i % 16 == 0) block = draw_block(key, i / 16);
      team.draw(r, c) = static_cast<std::uint8_t>(byte_of(block, i));
    }
  });
}

template <class F, class Source, class Team>
TESSERA_DEVICE_FN void add_counts(const F& format, const Team& team, const Job& job, const Patch& p, Side side,
                                  const Grid& grid) {
  team.clear_sums();
  encode_blocks(format, team, job, p, side, grid);
  if constexpr (formats::may_draw<F>)
    if (job.at_random) fill_draws(team, job, p, side);
  const auto element = formats::element_of(format);
  const float limit = saturation(element);
  typename Team::Share share = team.share();
  team.each_column([&](int c) {
    for (int first = 0; first < p.rows; first += band_rows) {
      const Band band = band_at<F, Source, typename Team::Formulas>(job, p, first, c);
      for (int r = 0; r < band_rows; ++r)
        if ((band.counted >> r & 1u) != 0)
          count<F>(element, limit, team, share, band.value[r], grid.of(first + r, c), job.at_random,
                   formats::may_draw<F> && job.at_random ? team.draw(first + r, c) : 0u);
    }
  });
  team.finish(share, *job.sums);
}

/// All threads of the team call it; team.each_...() wait for one another.
template <class F, Side side, class Source, Stage stage, class Team>
TESSERA_DEVICE_FN void measure_patch(const F& format, const Team& team, const Job& job, std::int64_t unit) {
  const Patch p = patch_of(job.d, job.patches[unit]);
  if (p.low >= p.high) return;
  const Grid grid(formats::geometry_of(format).block_of(side));
  const Matrix all = formats::geometry_of(format).blocks(side, job.d.matrix);
  const auto with_place = [&](const auto& f) {
    team.each_block(grid.size, [&](int block) { f(block, place_of_block(all, p, grid, block)); });
  };
  const auto take_tops = [&] {
    if constexpr (stage == Stage::whole || stage == Stage::tops) return find_tops<F, Source>(team, job, p, grid);
    with_place([&](int block, std::int64_t place) {
      team.top(block) = place < 0 ? 0u : static_cast<std::uint32_t>(job.tops[place]) << 16;
    });
  };
  take_tops();
  if constexpr (stage == Stage::tops) {
    with_place([&](int block, std::int64_t place) {
      if (place < 0) return;
      const auto top = static_cast<std::uint16_t>(team.top(block) >> 16);
      if (job.tops[place] < top) job.tops[place] = top;
    });
  } else if constexpr (stage == Stage::errors) {
    find_errors<F, Source>(team, job, p, grid);
    with_place([&](int block, std::int64_t place) {
      for (int k = 0; k < 2 && place >= 0; ++k) job.errors[2 * place + k] += team.error(k, block);
    });
  } else {
    if constexpr (formats::chooses<F>) {
      if constexpr (stage == Stage::part) {
        with_place([&](int block, std::int64_t place) {
          for (int k = 0; k < 2; ++k) team.error(k, block) = place < 0 ? 0 : job.errors[2 * place + k];
        });
      } else {
        find_errors<F, Source>(team, job, p, grid);
        take_tops();
      }
    }
    add_counts<F, Source>(format, team, job, p, side, grid);
  }
}

/// Calls run.template operator()<F, side, Source, stage>(format).
template <Side side, class F, class Run>
void with_source(const F& format, Kind kind, Stage stage, const Run& run) {
  if (kind == Kind::bf16) return run.template operator()<F, side, FromBf16, Stage::whole>(format);
  if constexpr (std::is_same_v<F, formats::Described> || requires {
                  requires !formats::by_lines<F>;  // which weights do not have
                  requires F::columnwise == formats::Columnwise::requantized || side == Side::rowwise;
                }) {
    if (stage == Stage::tops) return run.template operator()<F, side, FromMaster, Stage::tops>(format);
    if (stage == Stage::part) return run.template operator()<F, side, FromMaster, Stage::part>(format);
    if constexpr (formats::chooses<F>)
      if (stage == Stage::errors) return run.template operator()<F, side, FromMaster, Stage::errors>(format);
  }
  if constexpr (Format<F>)
    if constexpr (one_pass<F>) {
      if (kind == Kind::gelu) return run.template operator()<F, side, FromGelu, Stage::whole>(format);
      if (kind == Kind::gelu_gradient) return run.template operator()<F, side, FromGeluGradient, Stage::whole>(format);
      if (kind == Kind::swiglu) return run.template operator()<F, side, FromSwiglu, Stage::whole>(format);
      if (kind == Kind::swiglu_gradient)
        return run.template operator()<F, side, FromSwigluGradient, Stage::whole>(format);
    }
  refuse("measure", "this format's quantizer does not read such values");
}
template <class Run>
void with_kernel(FormatId id, Side side, Kind kind, Stage stage, const Run& run) {
  const auto of_format = [&](const auto& format) {
    if (side == Side::rowwise) return with_source<Side::rowwise>(format, kind, stage, run);
    return with_source<Side::columnwise>(format, kind, stage, run);
  };
  if (formats::is_described(id)) return of_format(formats::Described(id));
  visit_format(id, [&]<class F>() {
    if constexpr (!formats::is_plain<F>) of_format(F());
  });
}

/// The back ends.
void launch(Stream& stream, FormatId format, Side side, Kind kind, Stage stage, const Job& job);

}  // namespace tessera::quantizer::measure
