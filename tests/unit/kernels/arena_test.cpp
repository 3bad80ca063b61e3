#include "kernels/base/arena.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Arena, GrowsFromBothEndsAndRestoresWithItsFrame) {
  alignas(256) std::byte memory[4096];
  Arena arena(memory, sizeof memory);
  const Tensor first = arena.keep(DType::f32, {16});
  {
    Arena::Frame frame(arena);
    const Tensor below = arena.keep(DType::f32, {16});
    const Tensor above = arena.temp(DType::f32, {16});
    EXPECT_EQ(static_cast<std::byte*>(below.data) - static_cast<std::byte*>(first.data), 256);
    EXPECT_EQ(static_cast<std::byte*>(above.data), memory + 4096 - 256);
  }
  EXPECT_EQ(static_cast<std::byte*>(arena.keep(DType::f32, {1}).data), memory + 256);
  EXPECT_EQ(arena.peak(), 768);
}

TEST(Arena, RefusesWhatDoesNotFit) {
  alignas(256) std::byte memory[1024];
  Arena arena(memory, sizeof memory);
  arena.keep(DType::u8, {512});
  arena.temp(DType::u8, {512});
  EXPECT_THROW(arena.keep(DType::u8, {1}), Error);
}

TEST(Arena, MeasuresWhatARealOneWouldHold) {
  Arena arena;
  arena.keep(DType::bf16, {1000});
  { Arena::Frame frame(arena); arena.temp(DType::f32, {1000}); }
  EXPECT_EQ(arena.peak(), 2048 + 4096);
}

}  // namespace
}  // namespace tessera
