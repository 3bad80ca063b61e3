#pragma once
// Matrices of all experts in the form in which a kernel takes them. For CUDA sources only.
#include <cstdint>

#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

constexpr int most_listed = 256;  // pointers: 2 KiB of a kernel's parameters

/// Pointers to all experts' matrices: one pointer and a stride, or one pointer each.
template <class P>
struct Pointers {
  P* each[most_listed] = {};
  std::int64_t stride = 0;
  int listed = 1;
  __device__ P* operator()(int e) const { return listed == 1 ? each[0] + e * stride : each[e]; }
};

/// Pointers to all members' matrices; get(member) is the address of one.
template <class P, class T, class Get>
Pointers<P> pointers_of(const Members<T>& members, const Get& get) {
  Pointers<P> p;
  p.stride = members.list[0].member_stride;
  p.listed = members.count;
  for (int e = 0; e < members.count; ++e) p.each[e] = get(members.list[e]);
  return p;
}
template <class T>
Pointers<T> pointers_of(const ExpertOperands& w) {
  return pointers_of<T>(w, [](const Operand& o) { return o.data.as<T>(); });
}
template <class A>
Pointers<A> pointers_of(const ExpertGradients& dw) {
  return pointers_of<A>(dw, [](const Gradient& g) { return g.sum.as<A>(); });
}

/// Whether every matrix begins at a multiple of 16 bytes. get(member) is the tensor of one.
template <class T, class Get>
bool begin_whole(const Members<T>& members, const Get& get) {
  bool whole = true;
  for (int e = 0; e < members.count; ++e) {
    const Tensor t = get(members.list[e]);
    whole = whole && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
            members.list[e].member_stride * size_of(t.type) % 16 == 0;
  }
  return whole;
}

}  // namespace tessera::gemm
