#pragma once
#include <gtest/gtest.h>

#include "kernels/formats/registry.hpp"

namespace tessera::test {

template <class L>
struct TypesOf;
template <class... F>
struct TypesOf<formats::FormatList<F...>> {
  using type = ::testing::Types<F...>;
};
/// For typed tests that run for every entry of the registry.
using EveryFormat = TypesOf<formats::Registry>::type;

}  // namespace tessera::test
