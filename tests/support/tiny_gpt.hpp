#pragma once
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/model/gpt.hpp"
#include "kernels/digest/digest.hpp"
#include "tests/support/flat_params.hpp"

namespace tessera::test {

/// Pseudo-random multiples of 2^-23 in [-1, 1) by a formula of a few lines, shared with tests/oracle/model_goldens.py.
inline double golden_uniform(const std::string& key, std::int64_t i) {
  const std::uint64_t bits = mix64(fnv1a64(key) + static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15u);
  return static_cast<double>(bits >> 40) * 0x1p-23 - 1.0;
}

/// A small model with its parameters, one batch and memory.
class TinyGpt {
 public:
  TinyGpt(const GptShape& shape, std::int64_t sequences, std::int64_t arena_bytes = std::int64_t{64} << 20)
      : model(registry, shape),
        params(device, registry, shape.compute),
        arena(device.arena(Category::activations, arena_bytes)),
        sums(device.allocate(Category::batch, DType::u64, {sizeof(StepSums) / 8})),
        rows(sequences * shape.seq_len) {
    initialise("0");
    set_batch("0", 0);
  }

  /// Sets every parameter by the goldens' formula, and the vocabulary's padding to numbers that must not matter.
  void initialise(const std::string& seed) {
    for (ParamId id : params.ids()) {
      const ParamSpec& spec = registry[id];
      const bool norm = spec.role == Role::norm;
      const bool table = spec.role == Role::embedding || spec.role == Role::position;
      std::vector<double> values;
      for (int m = 0; m < spec.members; ++m)
        for (std::int64_t i = 0; i < spec.member_elements(); ++i) {
          const std::int64_t index = spec.canonical_index(m) + i;
          const double u = golden_uniform(spec.canonical.name + ":" + seed, index);
          const double value = norm                             ? 1 + 0.25 * u
                               : spec.role == Role::router_load ? 1 + 0.5 * u
                                                                : (table ? 0.5 : 0.25) * u;
          values.push_back(i < spec.real_elements() ? static_cast<float>(value) : 3.0);
        }
      params.set(id, values);
    }
  }

  /// The text's next rows + 1 tokens, from those of batch `number`.
  void set_batch(const std::string& seed, std::int64_t number) {
    const std::int64_t vocabulary = model.shape().vocabulary;
    std::vector<std::int32_t> text;
    for (std::int64_t i = number * rows; i <= (number + 1) * rows; ++i)
      text.push_back(static_cast<std::int32_t>(
          std::floor(static_cast<double>(vocabulary) * (golden_uniform("tokens:" + seed, i) + 1) / 2)));
    batch.ids = on_device(device, std::vector<std::int32_t>(text.begin(), text.end() - 1));
    batch.targets = on_device(device, std::vector<std::int32_t>(text.begin() + 1, text.end()));
    batch.sequences = rows / model.shape().seq_len;
    batch.loss_scale = 1.0 / static_cast<double>(rows);
    batch.target_scale = on_device(device, std::vector{batch.loss_scale});
    batch.first_sequence = number * batch.sequences;
  }

  /// Runs one forward and backward into empty gradients, with traced logits; returns the sums.
  StepSums gradient() {
    params.restart();
    return add_gradient();
  }
  /// The same, accumulated onto the present gradients.
  StepSums add_gradient() {
    clear_sums();
    Pass pass = forward_pass();
    pass.gradients = &params;
    pass.logits_digest = &pass.sums->logits;
    model.gradient(pass, batch);
    return download_sums();
  }
  StepSums evaluate() {
    clear_sums();
    model.evaluate(forward_pass(), batch);
    return download_sums();
  }
  std::vector<double> next_logits(std::int64_t sequence, std::int64_t position) {
    const std::int64_t length = model.shape().seq_len;
    const Tensor logits = poisoned(device, model.shape().sum_type(), {model.shape().vocabulary});
    model.next_logits(forward_pass(), batch.ids.flat(sequence * length, length), position, logits);
    return download_real(device, logits);
  }

  /// The scalar whose gradient is computed.
  double objective(const StepSums& s) const {
    const auto& moe = model.shape().moe;
    const double balance = moe ? moe->balance_coef * static_cast<double>(model.shape().seq_len) * s.balance : 0;
    return batch.loss_scale * (s.loss + balance + (moe ? moe->z_coef * s.z : 0));
  }

  /// Gradients by canonical name: expert weights whole, the vocabulary without padding.
  std::map<std::string, std::vector<double>> canonical_gradients() {
    std::map<std::string, std::vector<double>> all;
    for (ParamId id : params.ids()) {
      const ParamSpec& spec = registry[id];
      std::vector<double> g = params.gradient(id);
      if (spec.members == 1) g.resize(static_cast<std::size_t>(spec.real_elements()));
      auto& whole = all[spec.canonical.name];
      whole.insert(whole.end(), g.begin(), g.end());
    }
    return all;
  }

  Device device;
  ParamRegistry registry;
  Gpt model;
  FlatParams params;
  Arena arena;
  Tensor sums;
  std::int64_t rows;
  MicroBatch batch;

 private:
  Pass forward_pass() { return {device.compute(), params, nullptr, arena, static_cast<StepSums*>(sums.data)}; }
  void clear_sums() {
    const StepSums zero;
    device.upload(device.compute(), sums, &zero);
  }
  StepSums download_sums() {
    StepSums s;
    device.download(device.compute(), &s, sums);
    return s;
  }
};

/// A dense model as small as can be without any two sizes being equal. fp64.
inline GptShape tiny_shape() {
  GptShape shape;
  shape.layers = 2;
  shape.hidden = 12;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 6;
  shape.ffn = 20;
  shape.seq_len = 7;
  shape.vocabulary = 29;
  shape.compute = DType::f64;
  return shape;
}
inline GptShape with_experts(GptShape shape, MoeShape moe) {
  shape.moe = moe;
  if (moe.ffn == 0) shape.moe->ffn = shape.ffn;
  return shape;
}

}  // namespace tessera::test
