#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/base/tensor.hpp"

namespace tessera {

/// A two-ended stack of tensors in memory that it does not own: keep() takes from below (what backward needs), temp()
/// from above (temporaries). A measuring arena hands out addresses that must not be dereferenced, and records its peak.
class Arena {
 public:
  static constexpr std::int64_t alignment = 256;

  /// An arena that measures.
  Arena() = default;
  Arena(std::byte* memory, std::int64_t bytes) : memory_(memory), bytes_(bytes), measuring_(false) {}

  /// Uninitialised memory. Throws Error{internal} if the arena is full: the plan measured less than the step needs.
  Tensor keep(DType type, Shape shape);
  Tensor temp(DType type, Shape shape);

  std::int64_t peak() const { return peak_; }

  /// Frees, on leaving its scope, what both ends have given out in it.
  class Frame {
   public:
    explicit Frame(Arena& arena) : arena_(arena), below_(arena.below_), above_(arena.above_) {}
    ~Frame() { arena_.below_ = below_; arena_.above_ = above_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Arena& arena_;
    std::int64_t below_, above_;
  };

 private:
  void claim(std::int64_t below, std::int64_t above);
  std::byte* address(std::int64_t offset) const;

  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = std::int64_t{1} << 46;
  bool measuring_ = true;
  std::int64_t below_ = 0, above_ = 0, peak_ = 0;
};

}  // namespace tessera
