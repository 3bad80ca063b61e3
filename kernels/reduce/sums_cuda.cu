// Sums of ranks' parts in rank order. A thread takes neighbours, and loads those of several parts before it adds the
// first, so that loads do not wait for additions.
#include "kernels/base/packs.cuh"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/mx.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {
namespace {

constexpr int ahead = 4;  // parts

/// Numbers as they are.
template <class T>
struct Values {
  static constexpr int lanes = columns::widest<T>;
  using Loaded = columns::Lanes<T, lanes>;
  const T* x;
  explicit Values(const WireArray& a) : x(a.values.as<T>()) {}
  __device__ Loaded load(std::int64_t i) const { return Loaded::at(x + i); }
  __device__ static void add(const Loaded& loaded, float (&sum)[lanes]) {
    const auto v = columns::wide(loaded);
#pragma unroll
    for (int l = 0; l < lanes; ++l) sum[l] += v.value[l];
  }
};

/// Codes in blocks, whose scales are powers of two.
template <class F, int block>
struct BlockValues {
  static constexpr int lanes = quantizer::device::run;
  struct Loaded {
    quantizer::device::Run<typename F::Element> codes;
    float step;
  };
  const std::uint8_t* codes;
  const typename F::Scale* scales;
  explicit BlockValues(const WireArray& a)
      : codes(a.values.as<std::uint8_t>()), scales(a.scales.as<typename F::Scale>()) {}
  __device__ Loaded load(std::int64_t i) const {
    const auto words = columns::Lanes<std::uint32_t, 2>::at(reinterpret_cast<const std::uint32_t*>(codes + i));
    return {{{words.value[0], words.value[1]}}, F::factor_step(scales[i / block], 0.0f)};
  }
  __device__ static void add(const Loaded& loaded, float (&sum)[lanes]) {
    float v[lanes];
    quantizer::device::decode_run(typename F::Element(), loaded.codes, v);
#pragma unroll
    for (int l = 0; l < lanes; ++l) sum[l] += loaded.step * v[l];
  }
};

/// Loads and stores 16 bytes at a time.
template <int lanes>
__device__ void load_sums(const float* from, float (&v)[lanes]) {
#pragma unroll
  for (int q = 0; q < lanes / 4; ++q) {
    const auto four = columns::Lanes<float, 4>::at(from + 4 * q);
#pragma unroll
    for (int l = 0; l < 4; ++l) v[4 * q + l] = four.value[l];
  }
}
template <int lanes>
__device__ void store_sums(float* to, const float (&v)[lanes]) {
#pragma unroll
  for (int q = 0; q < lanes / 4; ++q) {
    columns::Lanes<float, 4> four;
#pragma unroll
    for (int l = 0; l < 4; ++l) four.value[l] = v[4 * q + l];
    four.to(to + 4 * q);
  }
}

/// The parts of a sum, by rank.
template <class In>
struct PartsByRank {
  In own, others;
  std::int64_t n;
  int rank, counted;

  explicit PartsByRank(const SumTerms& parts)
      : own(parts.own),
        others(parts.others),
        n(parts.own.values.elements()),
        rank(static_cast<int>(parts.rank)),
        counted(static_cast<int>(parts.others.values.shape[0] + 1 - parts.idle)) {}
  __device__ typename In::Loaded load(int r, std::int64_t i) const {
    return r == rank ? own.load(i) : others.load((r < rank ? r : r - 1) * n + i);
  }
  /// Adds all parts' elements from i on to `sum`.
  __device__ void add(std::int64_t i, float (&sum)[In::lanes]) const {
    for (int r = 0; r < counted; r += ahead) {
      typename In::Loaded some[ahead];
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (r + k < counted) some[k] = load(r + k, i);
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (r + k < counted) In::add(some[k], sum);
    }
  }
};

template <class In, bool more>
bool sum_as(Stream& stream, const Tensor& out, const SumTerms& parts) {
  constexpr int lanes = In::lanes;
  if (out.elements() % lanes != 0) return false;
  const PartsByRank<In> in(parts);
  float* const y = out.as<float>();
  packs::start(stream, out.elements() / lanes, [=] __device__(std::int64_t pack) {
    float sum[lanes];
    float* const sums = y + pack * lanes;
    if constexpr (more)
      load_sums(sums, sum);
    else
      for (float& s : sum) s = -0.0f;  // to which any number adds up to itself, 0 of either sign included
    in.add(pack * lanes, sum);
    store_sums(sums, sum);
  });
  return true;
}

template <bool more>
bool sum(Stream& stream, const Tensor& out, const SumTerms& parts) {
  if (out.type != DType::f32 || !columns::aligned(out) || !columns::aligned(parts.own.values) ||
      !columns::aligned(parts.others.values))
    return false;
  switch (parts.wire) {
    case GradientWire::fp32: return sum_as<Values<float>, more>(stream, out, parts);
    case GradientWire::bf16: return sum_as<Values<bf16>, more>(stream, out, parts);
    case GradientWire::mxfp8: return sum_as<BlockValues<formats::Mxfp8, 32>, more>(stream, out, parts);
    case GradientWire::fp8_block: return sum_as<BlockValues<formats::Fp8BlockOneD, 128>, more>(stream, out, parts);
  }
  return false;
}

}  // namespace

bool sum_in_order(Stream& stream, const Tensor& out, const SumTerms& parts) { return sum<false>(stream, out, parts); }
bool add_in_order(Stream& stream, const Tensor& out, const SumTerms& parts) { return sum<true>(stream, out, parts); }

}  // namespace tessera::reduce
