#pragma once
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/params/access.hpp"
#include "kernels/base/index.hpp"
#include "tests/support/on_device.hpp"

namespace tessera::test {

/// `values` as elements of a real type on the device, rounded; and back.
inline void upload_real(Device& device, const Tensor& to, const std::vector<double>& values) {
  require(static_cast<std::int64_t>(values.size()) == to.elements(), "upload_real", "sizes must agree");
  dispatch_real(to.type, "upload_real", [&]<class T>() {
    std::vector<T> rounded;
    for (double v : values) {
      if constexpr (std::is_same_v<T, bf16>)
        rounded.push_back(bf16(static_cast<float>(v)));
      else
        rounded.push_back(static_cast<T>(v));
    }
    device.upload(device.compute(), to, rounded.data());
  });
}
inline std::vector<double> download_real(Device& device, const Tensor& from) {
  return dispatch_real(from.type, "download_real", [&]<class T>() {
    const std::vector<T> values = on_host<T>(device, from);
    return std::vector<double>(values.begin(), values.end());
  });
}

/// The parameters of a registry and their gradients, each in its own memory: implements WeightSource and GradientSink
/// for one rank, without sharding, formats or states. Gradients start as NaN, so that a first write that reads them is
/// found.
class FlatParams final : public WeightSource, public GradientSink {
 public:
  FlatParams(Device& device, const ParamRegistry& registry, DType compute) : device_(device), registry_(registry) {
    const DType sums = compute == DType::f64 ? DType::f64 : DType::f32;
    for (const ParamSpec& spec : registry.specs()) {
      // Members have gaps between them, so that a kernel that takes the size for the stride fails.
      const std::int64_t stride = spec.members == 1 ? spec.member_elements() : round_up(spec.member_elements() + 1, 64);
      const DType held = is_counted(spec.role) ? sums : compute;
      places_.push_back({poisoned(device, held, {stride * spec.members}),
                         poisoned(device, sums, {stride * spec.members}), stride, 0});
    }
  }

  Use operand(Stream&, ParamId id, Side) override {
    const Place& p = at(id);
    used_.push_back(spec(id).name);
    return {*this, id,
            {p.values.flat(0, spec(id).member_elements()).view(spec(id).member), spec(id).members, p.stride}};
  }
  Gradient slot(ParamId id) override {
    const Place& p = at(id);
    return {p.gradients.flat(0, spec(id).member_elements()).view(spec(id).member), p.writes == 0 ? 0.0f : 1.0f,
            spec(id).members, p.stride};
  }
  void written(Stream&, ParamId id) override {
    ++at(id).writes;
    written_.push_back(spec(id).name);
  }

  /// Begins a step: every gradient becomes empty.
  void restart() {
    for (Place& p : places_) p.writes = 0;
    used_.clear();
    written_.clear();
  }

  /// All members, in order, padding of the vocabulary included.
  std::vector<double> value(ParamId id) { return gather(id, at(id).values); }
  std::vector<double> gradient(ParamId id) { return gather(id, at(id).gradients); }
  void set(ParamId id, const std::vector<double>& values) {
    const std::int64_t n = spec(id).member_elements();
    for (int m = 0; m < spec(id).members; ++m) {
      const auto first = values.begin() + m * n;
      upload_real(device_, at(id).values.flat(m * at(id).stride, n), {first, first + n});
    }
  }

  /// Each member's elements without vocabulary padding, as flat tensors on the device.
  struct Piece {
    Tensor value, gradient;
  };
  std::vector<Piece> pieces(ParamId id) {
    std::vector<Piece> all;
    for (int m = 0; m < spec(id).members; ++m) {
      const std::int64_t first = m * at(id).stride;
      const std::int64_t n = spec(id).members == 1 ? spec(id).real_elements() : spec(id).member_elements();
      all.push_back({at(id).values.flat(first, n), at(id).gradients.flat(first, n)});
    }
    return all;
  }

  std::vector<ParamId> ids() const {
    std::vector<ParamId> all;
    for (int i = 0; i < registry_.size(); ++i) all.push_back({i});
    return all;
  }
  const ParamSpec& spec(ParamId id) const { return registry_[id]; }
  /// Number of contributions to a gradient since restart().
  int writes(ParamId id) { return at(id).writes; }
  const std::vector<std::string>& used() const { return used_; }
  const std::vector<std::string>& order_written() const { return written_; }

 private:
  struct Place {
    Tensor values, gradients;
    std::int64_t stride;
    int writes;
  };
  Place& at(ParamId id) { return places_[static_cast<std::size_t>(id.value)]; }
  std::vector<double> gather(ParamId id, const Tensor& from) {
    std::vector<double> all;
    const std::int64_t n = spec(id).member_elements();
    for (int m = 0; m < spec(id).members; ++m)
      for (double v : download_real(device_, from.flat(m * at(id).stride, n))) all.push_back(v);
    return all;
  }

  Device& device_;
  const ParamRegistry& registry_;
  std::vector<Place> places_;
  std::vector<std::string> used_, written_;
};

}  // namespace tessera::test
