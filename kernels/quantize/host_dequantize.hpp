#pragma once
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/host_patch.hpp"

/// Decoding of a patch of one copy on one thread, in the order in which the copy is stored.
namespace tessera::quantizer::host {

/// The factor of each element of a copy: its block's scale as decoding applies it.
template <formats::Format F, Side side, Decoding how>
struct Steps {
  const Descriptor& d;
  const Patch& p;
  const typename F::Scale* scales;
  Matrix padded;

  Steps(const Descriptor& entry, const Patch& patch)
      : d(entry), p(patch), padded(formats::padded_extent<F>(side, d.matrix)) {
    const void* const first = d.side[static_cast<int>(side)].scales;
    scales = static_cast<const typename F::Scale*>(first) + p.member * padded.elements();
  }
  /// The factor of the element at (row, column) of the patch.
  float operator()(std::int64_t row, std::int64_t column) const {
    const float amax = amax_at<F>(side, d, p, row, column);
    if constexpr (!F::scaled) return applied({}, amax);
    constexpr formats::Block b = formats::block_of<F>(side);
    constexpr formats::ScaleLayout layout = F::scale_layout(side);
    const auto scale = scales[scale_place<F>(side, padded, (p.row + row) / b.rows * layout.repeat.rows,
                                             (p.column + column) / b.columns * layout.repeat.columns)];
    return applied(scale, amax);
  }

 private:
  static float applied(typename F::Scale scale, float amax) {
    return how == Decoding::tensor ? F::step(scale, amax) : F::factor_step(scale, amax);
  }
};

template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(x);
  else
    return x;
}

/// Decodes: steps[k] times the value of codes[k]. Not inlined, so that the compiler vectorises the loop.
template <class Element, class T, class Code>
[[gnu::noinline]] void decode_row(const Code* __restrict codes, const float* __restrict steps, int n,
                                  T* __restrict out) {
  for (int k = 0; k < n; ++k) {
    const float x = Element::decode(codes[k]);
    out[k] = rounded<T>(Element::bits == 16 ? x : steps[k] * x);
  }
}

/// Destinations of a patch's decoded lines: in the stored order (InPlace), or transposed, for a copy that is stored
/// transposed and decoded for a product.
template <class T>
struct InPlace {
  T* out;
  std::int64_t width;

  T* line(int i) { return out + i * width; }
  void finish(int, int) {}
};
template <class T>
struct TurnedBack {
  T* out;              ///< address of the patch's first element
  std::int64_t width;  ///< columns of the matrix
  alignas(64) T lines[patch_edge][patch_edge];

  TurnedBack(T* first, std::int64_t columns) : out(first), width(columns) {}
  T* line(int i) { return lines[i]; }
  /// Transposes in blocks of sixteen lines, so that what is read stays in the first-level cache.
  void finish(int count, int length) {
    constexpr int block = 16;
    for (int first = 0; first < count; first += block) {
      const int n = std::min(block, count - first);
      for (int r = 0; r < length; ++r)
        for (int c = 0; c < n; ++c) out[r * width + first + c] = lines[first + c][r];
    }
  }
};

/// Lines of the copy as stored: rows of the matrix, or its columns.
template <formats::Format F, Side side, Decoding how, class T>
void decode_patch(const Descriptor& d, const Patch& p) {
  constexpr bool turned = formats::order_of<F>(side) == formats::Order::transposed;
  const Steps<F, side, how> step(d, p);
  const int lines = turned ? p.columns : p.rows, length = turned ? p.rows : p.columns;
  const std::int64_t width = turned ? d.matrix.rows : d.matrix.columns, origin = p.member * d.stride;
  const std::int64_t first = origin + (turned ? p.column * width + p.row : p.row * width + p.column);
  T* const values = reinterpret_cast<T*>(d.values);
  std::conditional_t<turned && how == Decoding::factor, TurnedBack<T>, InPlace<T>> out{
      turned && how == Decoding::factor ? values + origin + p.row * d.matrix.columns + p.column : values + first,
      turned && how == Decoding::factor ? d.matrix.columns : width};
  const std::byte* data = d.side[static_cast<int>(side)].data;
  // The scales of a line's blocks are spread first, so that the loop over its elements is vectorised.
  constexpr formats::Block b = formats::block_of<F>(side);
  constexpr int run = turned ? b.rows : b.columns;
  float steps[patch_edge] = {};
  std::uint8_t codes[patch_edge];
  for (int line = 0; line < lines; ++line) {
    for (int i = 0; i < length; i += run) {
      const float s = turned ? step(i, line) : step(line, i);
      for (int k = i; k < i + run; ++k) steps[k] = s;
    }
    const std::int64_t at = first + line * width, next = at + (turned ? patch_edge * width : patch_edge);
    fetch<formats::data_bytes<F>(patch_edge), 0>(data + formats::data_bytes<F>(next));
    if constexpr (F::Element::bits == 4) {
      unpack_nibbles(reinterpret_cast<const std::uint8_t*>(data + at / 2), length, codes);
      decode_row<typename F::Element>(codes, steps, length, out.line(line));
    } else {
      decode_row<typename F::Element>(reinterpret_cast<const typename F::Element::Storage*>(data) + at, steps, length,
                                      out.line(line));
    }
  }
  out.finish(lines, length);
}

}  // namespace tessera::quantizer::host
