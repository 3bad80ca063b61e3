#include "kernels/convert/convert.hpp"

#include "kernels/base/strips.hpp"

namespace tessera {
namespace {

using Bytes = Kokkos::View<unsigned char*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
Bytes bytes_of(const Tensor& t) {
  return Bytes(static_cast<unsigned char*>(t.data), static_cast<std::size_t>(t.bytes()));
}

template <class To, class From> void convert_as(Stream& stream, const Tensor& to, const Tensor& from) {
  To* const out = to.as<To>();
  const From* const in = from.as<From>();
  launch_elements(stream, "convert", to.elements(),
                  KOKKOS_LAMBDA(std::int64_t i) { out[i] = To(static_cast<Accumulator<To>>(in[i])); });
}

/// The widest store of a GPU's thread: 16 bytes.
struct alignas(16) Words {
  std::uint64_t of[2];
};

/// Not by launch_elements(): the compiler makes a memset of this loop, and Clang would warn that it is not vectorised.
template <class Word> void clear_as(Stream& stream, const Tensor& t) {
  Word* const out = static_cast<Word*>(t.data);
  const std::int64_t words = t.bytes() / static_cast<std::int64_t>(sizeof(Word));
  launch(stream, "clear", words, KOKKOS_LAMBDA(std::int64_t i) { out[i] = Word{}; });
}

}  // namespace

void convert(Stream& stream, const Tensor& to, const Tensor& from) {
  require(to.elements() == from.elements(), "convert", "element counts differ");
  dispatch_real(to.type, "convert", [&]<class To>() {
    dispatch_real(from.type, "convert", [&]<class From>() { convert_as<To, From>(stream, to, from); });
  });
}

void copy(Stream& stream, const Tensor& to, const Tensor& from) {
  require(to.bytes() == from.bytes(), "copy", "byte counts differ");
  stream.count_launch();
  if (stream.dry() || to.bytes() == 0) return;
  Kokkos::deep_copy(space_of(stream), bytes_of(to), bytes_of(from));
}

void clear(Stream& stream, const Tensor& t) {
  if (t.bytes() % 16 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % alignof(Words) == 0)
    return clear_as<Words>(stream, t);
  switch (size_of(t.type)) {
    case 8: return clear_as<std::uint64_t>(stream, t);
    case 4: return clear_as<std::uint32_t>(stream, t);
    case 2: return clear_as<std::uint16_t>(stream, t);
    default: return clear_as<std::uint8_t>(stream, t);
  }
}

}  // namespace tessera
