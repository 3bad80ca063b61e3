#pragma once
// Host builds only: the products of matrices that the host's libraries are asked for.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
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
  /// Computes the product. The library brings its own threads unless the caller is in a parallel region already; fp64,
  /// which it does not have, runs on the caller's. `lane` numbers the calls that may run at the same time. `bias` is
  /// null where there is none.
  virtual void run(void* c, const void* a, const void* b, const void* bias = nullptr, int lane = 0) = 0;

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

  /// The plan, ready for calls in lanes [0, lanes). The reference stays valid. A plan that has been asked for before
  /// may be asked for by several threads.
  Plan& plan(const Product& product, int lanes = 1);

  /// Whether `whole` is asked about for the first time: its caller then plans every part that it may ever need.
  bool first(const Product& whole) { return seen_.insert(whole).second; }

  /// Rows of one of two matrices, padded with zeros to a length that has a plan.
  std::byte* padded(int which, std::int64_t bytes) {
    return stream_.workspace(which == 0 ? "padded rows" : "other padded rows", bytes);
  }
  /// A tile in fp32, not yet rounded.
  std::byte* sum(std::int64_t bytes) { return stream_.workspace("sums", bytes); }

  std::vector<Piece> pieces;  ///< those of the product in hand

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    int lanes = 0;
  };
  Stream& stream_;
  std::map<Product, Entry> entries_;
  Lanes scratch_;  // the library's own
  std::set<Product> seen_;
};

}  // namespace tessera::gemm
