#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "kernels/attention/head_norm.hpp"
#include "kernels/moe/scores.hpp"
#include "kernels/normalize/normalize.hpp"
#include "kernels/reduce/wire.hpp"

namespace tessera {

/// One value and its name in decks, logs and files.
template <class E> struct Name {
  E value;
  std::string_view text;
};

/// The names of a choice's values.
template <class E> struct Names;

/// The rows of Names for the enumerators "a, b, c", which count from 0. `automatic` reads "auto", a word of C++.
template <class E, std::size_t count> consteval std::array<Name<E>, count> names_of(std::string_view enumerators) {
  std::array<Name<E>, count> rows{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t comma = std::min(enumerators.find(','), enumerators.size());
    const std::string_view word = enumerators.substr(0, comma);
    rows[i] = {static_cast<E>(i), word == "automatic" ? "auto" : word};
    enumerators.remove_prefix(std::min(comma + 2, enumerators.size()));
  }
  return rows;
}
consteval std::size_t count_of(std::string_view enumerators) {
  return static_cast<std::size_t>(std::ranges::count(enumerators, ',')) + 1;
}

/// TESSERA_CHOICE declares an enumeration and its names from one list. TESSERA_NAMES gives names to one that was
/// declared elsewhere, with all of its enumerators in their order.
#define TESSERA_NAMES(Enum, ...)                                                                      \
  template <> struct Names<Enum> {                                                                    \
    static constexpr auto table = names_of<Enum, count_of(#__VA_ARGS__)>(#__VA_ARGS__);               \
  }
#define TESSERA_CHOICE(Enum, ...)   \
  enum class Enum { __VA_ARGS__ }; \
  TESSERA_NAMES(Enum, __VA_ARGS__)

TESSERA_NAMES(Norm, layer, rms);
TESSERA_NAMES(QkNormOver, head, width);
TESSERA_NAMES(Scores, softmax, sigmoid);
TESSERA_NAMES(GradientWire, fp32, bf16, mxfp8, fp8_block);
TESSERA_CHOICE(Position, learned, rotary);
TESSERA_CHOICE(Activation, gelu, swiglu);
TESSERA_CHOICE(ExpertWeights, single, discrete);
TESSERA_CHOICE(RouterLogits, fp32, bf16);
TESSERA_CHOICE(BalanceOver, sequence, batch);
TESSERA_CHOICE(ExpertLayout, automatic, single, discrete);
TESSERA_CHOICE(CheckpointIo, mpio, direct);
TESSERA_CHOICE(RecomputeMode, none, selective, full);
TESSERA_CHOICE(RecomputeModule, attention, mlp, norm, moe, activation, codes);
TESSERA_CHOICE(DataKind, text, tokens);
TESSERA_CHOICE(EvalWindows, drawn, tail);
TESSERA_CHOICE(EvaluatedWeights, trained, ema);
TESSERA_CHOICE(Documents, joined, apart);
TESSERA_CHOICE(Compute, bf16, fp32);
TESSERA_CHOICE(RecipeName, bf16, fp8_block, fp8_tensor, mxfp8, mxfp8_2d, mxfp6_e3m2, mxfp6_e3m2_2d, mxfp6_e2m3,
               mxfp6_e2m3_2d, mxfp4, mxfp4_2d, nvfp4, nvfp4_46);
TESSERA_CHOICE(PrimaryWeights, bf16, quantized);
TESSERA_CHOICE(Sharding, optimizer, full);
TESSERA_CHOICE(GatherWire, automatic, bf16, quantized);
TESSERA_CHOICE(GatherCuts, flat, tile);
TESSERA_CHOICE(GatherStaging, automatic, alias_grads, ring);
TESSERA_CHOICE(ExpertRows, automatic, exchange, peers);
TESSERA_CHOICE(GatherGranularity, automatic, block, module);
TESSERA_CHOICE(ReduceOrder, rank, batch);
TESSERA_CHOICE(KeptGradients, norms, biases, router, embedding);
TESSERA_CHOICE(WireRounding, nearest, stochastic);
TESSERA_CHOICE(ConfirmSkips, automatic, always, never);
TESSERA_CHOICE(MatrixRule, adamw, muon);
TESSERA_CHOICE(Moments, fp32, bf16);
TESSERA_CHOICE(MuonCoefficients, quintic, simple, polar_express);
TESSERA_CHOICE(MuonScale, spectral, shape, rms);
TESSERA_CHOICE(RateSchedule, cosine, linear, constant, wsd);

/// An enumeration that a deck names.
template <class E> concept Choice = requires { Names<E>::table; };

template <Choice E> constexpr std::string_view name_of(E value) {
  for (const Name<E>& name : Names<E>::table)
    if (name.value == value) return name.text;
  return "?";
}

template <Choice E> constexpr std::optional<E> choice_named(std::string_view text) {
  for (const Name<E>& name : Names<E>::table)
    if (name.text == text) return name.value;
  return std::nullopt;
}

}  // namespace tessera
