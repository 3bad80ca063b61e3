#pragma once
#include <optional>
#include <type_traits>

#include "kernels/formats/bf16.hpp"
#include "kernels/formats/described.hpp"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/fp8_tensor.hpp"
#include "kernels/formats/id.hpp"
#include "kernels/formats/layout.hpp"
#include "kernels/formats/mx.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace tessera {
namespace formats {

template <Format... F>
struct FormatList {
  static constexpr int size = sizeof...(F);
};

/// The only list of formats. To add one, include its header above and add it here.
using Registry =
    FormatList<Bf16, Fp8Block, Fp8BlockOneD, Mxfp8, Mxfp8Tiles, Nvfp4, Nvfp4OneD, Fp8Tensor, Fp8TensorE5m2, Mxfp8E5m2,
               Mxfp6E3m2, Mxfp6E3m2Tiles, Mxfp6E2m3, Mxfp6E2m3Tiles, Mxfp4, Mxfp4Tiles, Nvfp4FourOverSix,
               Nvfp4FourOverSixOneD, Nvfp4Row>;

}  // namespace formats

namespace formats {

template <class F, class... All>
constexpr FormatId position(FormatList<All...>) {
  int place = 0, found = -1;
  ((std::is_same_v<F, All> ? found = place++ : place++), ...);
  return static_cast<FormatId>(found);
}
template <Format F>
inline constexpr FormatId id_of = position<F>(Registry{});

template <class V, class First, class... Rest>
decltype(auto) visit(FormatList<First, Rest...>, int place, V&& visitor) {
  if constexpr (sizeof...(Rest) > 0) {
    if (place > 0) return visit(FormatList<Rest...>{}, place - 1, visitor);
  }
  return visitor.template operator()<First>();
}

}  // namespace formats

/// Calls `visitor.template operator()<F>()` with the format F of `id`, one of the registry: the only dispatch from a
/// run-time format. Described formats have kernels of their own.
template <class V>
decltype(auto) visit_format(FormatId id, V&& visitor) {
  require(static_cast<int>(id) < formats::Registry::size, "visit_format", "no such format");
  return formats::visit(formats::Registry{}, static_cast<int>(id), visitor);
}

/// A format's properties as run-time values.
struct FormatTraits : formats::Geometry {
  std::string_view name;
  DType data_type, scale_type;
  bool plain, tensor_amax, leaves_alpha, hadamard, may_draw, chooses, by_lines;
  formats::Agreement agreement;

  /// Number of amaxes that a copy of one matrix has.
  constexpr std::int64_t amaxes(Side side, formats::Matrix m) const {
    if (!by_lines) return tensor_amax ? 1 : 0;
    return side == Side::rowwise ? m.rows : m.columns;
  }
};

template <formats::Format F>
constexpr FormatTraits traits_of() {
  return {formats::geometry_of<F>(),
          F::name,
          dtype_of<typename F::Element::Storage>,
          dtype_of<typename F::Scale>,
          formats::is_plain<F>,
          F::tensor_amax,
          F::leaves_alpha,
          F::hadamard,
          formats::may_draw<F>,
          formats::chooses<F>,
          formats::by_lines<F>,
          F::agreement};
}
inline FormatTraits traits_of(FormatId id) {
  if (!formats::is_described(id)) return visit_format(id, [&]<class F>() { return traits_of<F>(); });
  const formats::Described format(id);
  const formats::Geometry geometry = format.geometry();
  return {geometry, formats::name_of_described(id),
          DType::u8, geometry.scale_bytes == 4 ? DType::f32 : DType::u8,
          false,     format.tensor_amax(),
          format.two_levels(), formats::Described::hadamard,
          false,     false,
          false,     format.agreement()};
}

namespace formats {

/// Formats as objects: one of the registry, whose members are constants, or a described one.
template <Format F>
TESSERA_FN constexpr Geometry geometry_of(const F&) {
  return geometry_of<F>();
}
TESSERA_FN constexpr Geometry geometry_of(const Described& format) { return format.geometry(); }
template <Format F>
TESSERA_FN constexpr typename F::Element element_of(const F&) {
  return {};
}
TESSERA_FN constexpr DescribedElement element_of(const Described& format) { return format.element; }

/// tensor_step() of a format chosen at run time; on the device too.
template <class... F>
TESSERA_FN constexpr float tensor_step(FormatList<F...>, FormatId id, float amax) {
  if (is_described(id)) return Described(id).tensor_step(amax);
  float step = 1;
  int place = 0;
  ((static_cast<int>(id) == place++ ? static_cast<void>(step = F::tensor_step(amax)) : static_cast<void>(0)), ...);
  return step;
}

/// Bytes of one copy's elements.
inline std::int64_t data_bytes(FormatId id, std::int64_t elements) { return traits_of(id).data_bytes(elements); }

}  // namespace formats

/// The format of that name, if there is one: of the registry, or as a description in words.
inline std::optional<FormatId> find_format(std::string_view name) {
  for (int i = 0; i < formats::Registry::size; ++i)
    if (traits_of(static_cast<FormatId>(i)).name == name) return static_cast<FormatId>(i);
  return formats::find_described(name);
}

}  // namespace tessera
