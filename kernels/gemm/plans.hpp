#pragma once
// Plans of matrix products by the host's libraries. Host builds only.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Operations of one library call: under a millisecond on one core of 2023 (0.8 TFLOP/s with AMX), so that progress()
/// is called often enough.
inline constexpr double operations_of_call = 6e8;

/// A workspace in equal shares (lanes), one for each call that runs at the same time.
class Lanes {
 public:
  explicit Lanes(Stream& stream) : stream_(stream) {}
  /// Reserves at least `lanes` lanes of at least `bytes` each.
  void reserve(int lanes, std::int64_t bytes);
  std::byte* lane(int index) const { return memory_ + index * stride_; }

 private:
  Stream& stream_;
  std::byte* memory_ = nullptr;
  std::int64_t stride_ = 0;
  int lanes_ = 0;
};

/// A range of the summed dimension: where it begins in the first tile's factors, and its length.
struct DepthRange {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t depth = 0;
};

/// The prepared state of one dense product of values. Its only epilogue is a bias.
class Plan {
 public:
  virtual ~Plan() = default;
  /// Computes the product: on all threads if the plan was asked for without lanes, on the caller's thread otherwise.
  /// fp64, which oneDNN does not have, always runs on the caller's thread. `lane` tells apart calls that run at the
  /// same time. `bias` may be null.
  virtual void run(void* c, const void* a, const void* b, const void* bias = nullptr, int lane = 0) = 0;

  virtual int lanes() const { return 1; }  ///< lanes of the library's scratch memory that one call takes
  virtual void set_lanes(int) {}
  virtual std::int64_t scratch_bytes() const { return 0; }  ///< bytes of scratch memory of one lane
};

/// All plans of a stream, each made at its product's first use. After that nothing is allocated, except by the
/// libraries within a call. On a dry stream plans only state the memory that they will need, and cannot run.
class Plans {
 public:
  explicit Plans(Stream& stream) : stream_(stream), scratch_(stream) {}
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  /// The plan of `product`. lanes > 0: for calls by threads of a parallel region, in lanes [0, lanes). lanes == 0: for
  /// one call at a time outside parallel regions, which uses its own threads. The reference stays valid. Thread-safe
  /// for a plan that exists.
  Plan& plan(const Product& product, int lanes = 0);

  /// Whether `whole` is asked about for the first time. The caller then plans every part that it may ever need.
  bool first(const Product& whole) { return seen_.insert(whole).second; }

  /// Memory for rows of one of the two factors, padded with zeros to a length that has a plan.
  std::byte* padded(int which, std::int64_t bytes) {
    return stream_.workspace(which == 0 ? "padded rows" : "other padded rows", bytes);
  }
  /// Memory for a tile's fp32 sums, before they are rounded.
  std::byte* sum(std::int64_t bytes) { return stream_.workspace("sums", bytes); }
  /// Memory for the fp32 sums of a whole product whose tiles are summed on their own.
  std::byte* whole_sum(std::int64_t bytes) { return stream_.workspace("whole sums", bytes); }

  std::vector<DepthRange> pieces;  ///< pieces of the current product

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    int lanes = 0;
  };
  Stream& stream_;
  std::map<std::pair<Product, bool>, Entry> entries_;  // true: for calls in lanes
  Lanes scratch_;  // the library's scratch memory
  std::set<Product> seen_;
};

/// Largest number of rows that one call of a tiled product should have; the same on dry streams.
std::int64_t rows_of_call(const Product& whole);
/// Numbers of rows for which plans exist without padding, in descending order.
std::span<const std::int64_t> row_chunks(DType type);

}  // namespace tessera::gemm
