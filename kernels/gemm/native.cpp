#include "kernels/gemm/native.hpp"

#include <set>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {
namespace {

/// What this process has settled at its start.
struct Settled {
  NativeLibrary* library = nullptr;
  std::set<Kind> given_up;
};
Settled& settled() {
  static Settled state;
  return state;
}

bool swizzles(FormatId format) {
  return visit_format(format, []<class F>() { return formats::swizzles<F>(); });
}

/// Whether the sides suit a native product, whose rows have 16 bytes in the factors and in the result. Fp32 scales of
/// blocks need an entry for every row of a factor, padded to a multiple of 4. With block scaling a sum consists of
/// whole blocks of 32, and nibbles fill 16 bytes; the other sides may be the rows in memory of one-byte codes.
bool fits(const Product& p) {
  const std::optional<Kind> read = multiplied_as(kind_of(p));
  const bool blocks = read && swizzles(read->a);
  return blocks ? p.m % 16 == 0 && p.n % 16 == 0 && p.k % 32 == 0 : p.m % 8 == 0 && p.n % 8 == 0 && p.k % 16 == 0;
}

}  // namespace

NativeLibrary& native_library() { return settled().library ? *settled().library : own_library(); }
void use_library(NativeLibrary* library) { settled() = {library, {}}; }
void give_up(const Kind& kind) { settled().given_up.insert(kind); }

Kind kind_of(const Product& product) {
  return {product.form, product.a.value(), product.b.value(), product.experts > 0 ? Rows::by_expert : Rows::together};
}

std::string text_of(const Kind& kind) {
  constexpr const char* forms[] = {"forward", "input_gradient", "weight_gradient"};
  std::string text = forms[static_cast<int>(kind.form)];
  text.append(" of ").append(traits_of(kind.a).name).append(" and ").append(traits_of(kind.b).name);
  return kind.rows == Rows::by_expert ? text + " by expert" : text;
}

std::optional<Kind> multiplied_as(const Kind& kind) {
  const NativeLibrary& library = native_library();
  if (library.standing(kind) != Standing::none) return kind;
  const auto blocks = [](FormatId f) {
    return f == formats::id_of<formats::Fp8Block> || f == formats::id_of<formats::Fp8BlockOneD>;
  };
  if (!blocks(kind.a) || !blocks(kind.b) || kind.rows == Rows::by_expert) return std::nullopt;
  // Both copies have their sum along rows, the columnwise one being stored transposed.
  constexpr FormatId mx = formats::id_of<formats::Mxfp8>;
  const Kind other{Form::forward, mx, mx};
  return library.standing(other) != Standing::none ? std::optional(other) : std::nullopt;
}

Standing standing_of(const Kind& kind) {
  const std::optional<Kind> read = multiplied_as(kind);
  return read && !settled().given_up.contains(kind) ? native_library().standing(*read) : Standing::none;
}

Route route_of(const Product& p) {
  if (!p.a || !p.b || (p.experts > 0 && p.epilogue != Epilogue::none)) return Route::decoded;
  return fits(p) && standing_of(kind_of(p)) != Standing::none ? Route::native : Route::decoded;
}

bool native_pair(Form form, FormatId a, FormatId b) {
  return standing_of({form, a, b, Rows::together}) != Standing::none ||
         standing_of({form, a, b, Rows::by_expert}) != Standing::none;
}

}  // namespace tessera::gemm
