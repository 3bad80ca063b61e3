#pragma once
#include <optional>
#include <string_view>

#include "kernels/attention/head_norm.hpp"
#include "kernels/moe/scores.hpp"
#include "kernels/normalize/normalize.hpp"

namespace tessera {

enum class Position { learned, rotary };
enum class Activation { gelu, swiglu };
enum class ExpertWeights { single, discrete };
enum class RouterLogits { fp32, bf16 };
enum class BalanceOver { sequence, batch };
enum class ExpertLayout { as_in_memory, single, discrete };
enum class CheckpointIo { mpio, direct };
enum class RecomputeMode { none, selective, full };
enum class RecomputeModule { attention, mlp, norm, moe };
enum class DataKind { text, tokens };
enum class EvalWindows { drawn, tail };
enum class Documents { joined, apart };
enum class Compute { bf16, fp32 };
enum class RecipeName { bf16, fp8_block, fp8_tensor, mxfp8, mxfp8_2d, nvfp4 };
enum class PrimaryWeights { bf16, quantized };
enum class Sharding { optimizer, full };
enum class GatherWire { automatic, bf16, quantized };
enum class GatherCuts { flat, tile };
enum class GatherStaging { automatic, alias_grads, ring };
enum class GatherGranularity { automatic, block, module };
enum class ReduceOrder { rank, batch };
enum class ConfirmSkips { automatic, always, never };
enum class MatrixRule { adamw, muon };
enum class Moments { fp32, bf16 };
enum class MuonCoefficients { quintic, simple, polar_express };
enum class MuonScale { spectral, shape, rms };
enum class RateSchedule { cosine, linear, constant, wsd };

/// One value and its name in decks, logs and files.
template <class E> struct Name {
  E value;
  std::string_view text;
};

/// The names of a choice's values: the only list of them.
template <class E> struct Names;
template <> struct Names<Norm> {
  static constexpr Name<Norm> table[] = {{Norm::layer, "layer"}, {Norm::rms, "rms"}};
};
template <> struct Names<QkNormOver> {
  static constexpr Name<QkNormOver> table[] = {{QkNormOver::head, "head"}, {QkNormOver::width, "width"}};
};
template <> struct Names<Position> {
  static constexpr Name<Position> table[] = {{Position::learned, "learned"}, {Position::rotary, "rotary"}};
};
template <> struct Names<Activation> {
  static constexpr Name<Activation> table[] = {{Activation::gelu, "gelu"}, {Activation::swiglu, "swiglu"}};
};
template <> struct Names<ExpertWeights> {
  static constexpr Name<ExpertWeights> table[] = {{ExpertWeights::single, "single"},
                                                  {ExpertWeights::discrete, "discrete"}};
};
template <> struct Names<Scores> {
  static constexpr Name<Scores> table[] = {{Scores::softmax, "softmax"}, {Scores::sigmoid, "sigmoid"}};
};
template <> struct Names<BalanceOver> {
  static constexpr Name<BalanceOver> table[] = {{BalanceOver::sequence, "sequence"}, {BalanceOver::batch, "batch"}};
};
template <> struct Names<RouterLogits> {
  static constexpr Name<RouterLogits> table[] = {{RouterLogits::fp32, "fp32"}, {RouterLogits::bf16, "bf16"}};
};
template <> struct Names<ExpertLayout> {
  static constexpr Name<ExpertLayout> table[] = {
      {ExpertLayout::as_in_memory, "auto"}, {ExpertLayout::single, "single"}, {ExpertLayout::discrete, "discrete"}};
};
template <> struct Names<CheckpointIo> {
  static constexpr Name<CheckpointIo> table[] = {{CheckpointIo::mpio, "mpio"}, {CheckpointIo::direct, "direct"}};
};
template <> struct Names<RecomputeMode> {
  static constexpr Name<RecomputeMode> table[] = {
      {RecomputeMode::none, "none"}, {RecomputeMode::selective, "selective"}, {RecomputeMode::full, "full"}};
};
template <> struct Names<RecomputeModule> {
  static constexpr Name<RecomputeModule> table[] = {{RecomputeModule::attention, "attention"},
                                                    {RecomputeModule::mlp, "mlp"},
                                                    {RecomputeModule::norm, "norm"},
                                                    {RecomputeModule::moe, "moe"}};
};
template <> struct Names<DataKind> {
  static constexpr Name<DataKind> table[] = {{DataKind::text, "text"}, {DataKind::tokens, "tokens"}};
};
template <> struct Names<EvalWindows> {
  static constexpr Name<EvalWindows> table[] = {{EvalWindows::drawn, "drawn"}, {EvalWindows::tail, "tail"}};
};
template <> struct Names<Documents> {
  static constexpr Name<Documents> table[] = {{Documents::joined, "joined"}, {Documents::apart, "apart"}};
};
template <> struct Names<Compute> {
  static constexpr Name<Compute> table[] = {{Compute::bf16, "bf16"}, {Compute::fp32, "fp32"}};
};
template <> struct Names<RecipeName> {
  static constexpr Name<RecipeName> table[] = {{RecipeName::bf16, "bf16"},
                                               {RecipeName::fp8_block, "fp8_block"},
                                               {RecipeName::fp8_tensor, "fp8_tensor"},
                                               {RecipeName::mxfp8, "mxfp8"},
                                               {RecipeName::mxfp8_2d, "mxfp8_2d"},
                                               {RecipeName::nvfp4, "nvfp4"}};
};
template <> struct Names<PrimaryWeights> {
  static constexpr Name<PrimaryWeights> table[] = {{PrimaryWeights::bf16, "bf16"},
                                                   {PrimaryWeights::quantized, "quantized"}};
};
template <> struct Names<Sharding> {
  static constexpr Name<Sharding> table[] = {{Sharding::optimizer, "optimizer"}, {Sharding::full, "full"}};
};
template <> struct Names<GatherGranularity> {
  static constexpr Name<GatherGranularity> table[] = {{GatherGranularity::automatic, "auto"},
                                                      {GatherGranularity::block, "block"},
                                                      {GatherGranularity::module, "module"}};
};
template <> struct Names<GatherWire> {
  static constexpr Name<GatherWire> table[] = {
      {GatherWire::automatic, "auto"}, {GatherWire::bf16, "bf16"}, {GatherWire::quantized, "quantized"}};
};
template <> struct Names<GatherCuts> {
  static constexpr Name<GatherCuts> table[] = {{GatherCuts::flat, "flat"}, {GatherCuts::tile, "tile"}};
};
template <> struct Names<GatherStaging> {
  static constexpr Name<GatherStaging> table[] = {{GatherStaging::automatic, "auto"},
                                                  {GatherStaging::alias_grads, "alias_grads"},
                                                  {GatherStaging::ring, "ring"}};
};
template <> struct Names<ConfirmSkips> {
  static constexpr Name<ConfirmSkips> table[] = {
      {ConfirmSkips::automatic, "auto"}, {ConfirmSkips::always, "always"}, {ConfirmSkips::never, "never"}};
};
template <> struct Names<ReduceOrder> {
  static constexpr Name<ReduceOrder> table[] = {{ReduceOrder::rank, "rank"}, {ReduceOrder::batch, "batch"}};
};
template <> struct Names<MatrixRule> {
  static constexpr Name<MatrixRule> table[] = {{MatrixRule::adamw, "adamw"}, {MatrixRule::muon, "muon"}};
};
template <> struct Names<Moments> {
  static constexpr Name<Moments> table[] = {{Moments::fp32, "fp32"}, {Moments::bf16, "bf16"}};
};
template <> struct Names<MuonCoefficients> {
  static constexpr Name<MuonCoefficients> table[] = {{MuonCoefficients::quintic, "quintic"},
                                                     {MuonCoefficients::simple, "simple"},
                                                     {MuonCoefficients::polar_express, "polar_express"}};
};
template <> struct Names<MuonScale> {
  static constexpr Name<MuonScale> table[] = {
      {MuonScale::spectral, "spectral"}, {MuonScale::shape, "shape"}, {MuonScale::rms, "rms"}};
};
template <> struct Names<RateSchedule> {
  static constexpr Name<RateSchedule> table[] = {{RateSchedule::cosine, "cosine"},
                                             {RateSchedule::linear, "linear"},
                                             {RateSchedule::constant, "constant"},
                                             {RateSchedule::wsd, "wsd"}};
};

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
