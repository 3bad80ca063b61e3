#pragma once
// Host builds only: the products of matrices that the host's libraries are asked for.
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

/// A workspace of equal shares for calls that run at the same time.
class Lanes {
 public:
  explicit Lanes(Stream& stream) : stream_(stream) {}
  /// At least so many, of at least so many bytes each.
  void reserve(int lanes, std::int64_t bytes);
  std::byte* lane(int index) const { return memory_ + index * stride_; }

 private:
  Stream& stream_;
  std::byte* memory_ = nullptr;
  std::int64_t stride_ = 0;
  int lanes_ = 0;
};

/// A range of the summed dimension: where it begins in the first tile's factors, and its length.
struct Piece {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t depth = 0;
};

/// What is prepared for one dense product of values, whose only epilogue is a bias.
class Plan {
 public:
  virtual ~Plan() = default;
  /// Computes the product, on all threads where it was asked for without lanes; fp64, which the library does not have,
  /// on the caller's. `lane` numbers the calls that may run at the same time. `bias` is null where there is none.
  virtual void run(void* c, const void* a, const void* b, const void* bias = nullptr, int lane = 0) = 0;

  virtual int lanes() const { return 1; }  ///< of the library's scratch that one call takes
  virtual void set_lanes(int) {}
  virtual std::int64_t scratch_bytes() const { return 0; }  ///< of one lane
};

/// All plans of a stream, made at a product's first use; after that nothing is allocated but what the libraries
/// allocate within a call. On a dry stream plans are described, for the memory that they will need, and cannot run.
class Plans {
 public:
  explicit Plans(Stream& stream) : stream_(stream), scratch_(stream) {}
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  /// The plan, ready for calls by threads of a parallel region in lanes [0, lanes); with 0 lanes for one call at a time
  /// outside of such regions, which brings its own threads. The reference stays valid. A plan that has been asked for
  /// before may be asked for by several threads.
  Plan& plan(const Product& product, int lanes = 0);

  /// Whether `whole` is asked about for the first time: its caller then plans every part that it may ever need.
  bool first(const Product& whole) { return seen_.insert(whole).second; }

  /// Rows of one of two matrices, padded with zeros to a length that has a plan.
  std::byte* padded(int which, std::int64_t bytes) {
    return stream_.workspace(which == 0 ? "padded rows" : "other padded rows", bytes);
  }
  /// A tile in fp32, not yet rounded.
  std::byte* sum(std::int64_t bytes) { return stream_.workspace("sums", bytes); }
  /// A product in fp32 whose tiles are sums of their own.
  std::byte* whole_sum(std::int64_t bytes) { return stream_.workspace("whole sums", bytes); }

  std::vector<Piece> pieces;  ///< those of the product in hand

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    int lanes = 0;
  };
  Stream& stream_;
  std::map<std::pair<Product, bool>, Entry> entries_;  // of calls outside of parallel regions, and in lanes
  Lanes scratch_;  // the library's own
  std::set<Product> seen_;
};

/// Rows that one call should have at most, of a product that is cut into tiles. On dry streams and others alike.
std::int64_t rows_of_call(const Product& whole);
/// Numbers of rows that need no further padding, descending.
std::span<const std::int64_t> row_chunks(DType type);

}  // namespace tessera::gemm
