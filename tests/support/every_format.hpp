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
/// Types of typed tests that run for every format of the registry.
using EveryFormat = TypesOf<formats::Registry>::type;

}  // namespace tessera::test
