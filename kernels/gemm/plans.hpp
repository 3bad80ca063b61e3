#pragma once
// Host builds only: the products of matrices that the host's libraries are asked for.
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace tessera::gemm {

enum class Stored : std::uint8_t { plain, transposed };
enum class Bias : std::uint8_t { none, per_column };

/// c [m,n] = beta c + a [m,k] b [k,n] + bias [n]. `lda` is the distance, in elements, from one row of `a` to the next
/// as it lies in memory: of a itself if plain, of its transpose otherwise; ldb and ldc likewise.
struct Product {
  DType type = DType::f32;  ///< of a, b and bias
  DType sum = DType::f32;   ///< of c
  Stored a = Stored::plain, b = Stored::plain;
  Bias bias = Bias::none;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  float beta = 0;

  auto operator<=>(const Product&) const = default;
};

/// Uninitialised memory that grows and never shrinks.
class Buffer {
 public:
  std::byte* at_least(std::int64_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t bytes_ = 0;
};

/// A range of the summed dimension: where it begins in the first tile's factors, and its length.
struct Piece {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t depth = 0;
};

/// What is prepared for one Product.
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
/// allocate within a call.
class Plans {
 public:
  Plans() = default;
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  /// The plan, ready for calls in lanes [0, lanes). The reference stays valid. A plan that has been asked for before
  /// may be asked for by several threads.
  Plan& plan(const Product& product, int lanes = 1);

  /// Whether `whole` is asked about for the first time: its caller then plans every part that it may ever need.
  bool first(const Product& whole) { return seen_.insert(whole).second; }

  std::array<Buffer, 2> padded;  ///< rows of two matrices, padded with zeros to a length that has a plan
  Buffer sum;                    ///< a tile in fp32, not yet rounded
  std::vector<Piece> pieces;     ///< those of the product in hand

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    int lanes = 0;
  };
  std::map<Product, Entry> entries_;
  std::vector<Buffer> scratch_;  // the library's own, one a lane
  std::set<Product> seen_;
};

}  // namespace tessera::gemm
