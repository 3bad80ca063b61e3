#pragma once
#include <compare>
#include <optional>
#include <string>

#include "kernels/base/stream.hpp"
#include "kernels/gemm/converted.hpp"
#include "kernels/gemm/product.hpp"

/// Products of codes by units that take codes. Which of them exist is a matter of the machine and its library. That
/// they are right is proven by the project's tests, or by each start for itself (core/step/self_check.hpp).
namespace tessera::gemm {

enum class Rows : std::uint8_t { together, by_expert };

/// A kind of product of codes: what a library has, or has not, whatever the shape.
struct Kind {
  Form form;
  FormatId a, b;
  Rows rows = Rows::together;

  auto operator<=>(const Kind&) const = default;
};
Kind kind_of(const Product& product);
std::string text_of(const Kind& kind);  ///< "forward of mxfp8 and mxfp8_2d"

/// What is known of a kind of native product on this machine.
enum class Standing : std::uint8_t {
  none,     ///< there is none
  claimed,  ///< by the library's documents; the project has never run it, so each start checks it first
  proven,   ///< by the project's tests on such a machine
};

/// A library whose products take codes.
class NativeLibrary {
 public:
  virtual ~NativeLibrary() = default;
  virtual Standing standing(const Kind& kind) const = 0;
  /// multiply() of back.hpp for a kind that it has. One-byte scales of blocks lie in the order of formats::swizzled();
  /// scaled products have their alpha.
  virtual bool multiply(Stream& stream, const Product& product, const Addresses& places) = 0;
};

/// The library that this process multiplies codes with: this build's own, unless another one is in use.
NativeLibrary& native_library();
NativeLibrary& own_library();
/// Sets the library and forgets what was given up; null: this build's own. Before any plan is made, on one thread.
void use_library(NativeLibrary* library);
/// From now on products of this kind are decoded. Before the plan of a run is made, on one thread.
void give_up(const Kind& kind);

/// The standing of a kind: its library's, or none if it was given up.
Standing standing_of(const Kind& kind);

/// The kind as which the library multiplies `kind`. FP8 blocks that it does not have are blocks of MXFP8: their scales
/// are powers of two, each of which four blocks of 32 repeat. Empty: it does not multiply such codes.
std::optional<Kind> multiplied_as(const Kind& kind);

/// A dense product of codes as native_library() takes it. One-byte scales of blocks are in the order of
/// formats::swizzled(); FP8 blocks may have become MXFP8.
class Tiled : public Converted {
 public:
  Tiled(Stream& stream, const Product& product, const Addresses& at);
};

}  // namespace tessera::gemm
