#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Host votes and small host data among all ranks of a run, over a communicator of their own. Every call is collective.
class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// The only throw between collectives: when any rank has problems, all ranks throw one Error with the lowest failing
  /// rank's texts (prefixed with its rank) and one exit code; else all return.
  void agree(const Problems& problems);

  virtual std::int64_t max(std::int64_t value) = 0;
  virtual std::vector<std::string> gather(const std::string& mine) = 0;  ///< on every rank
  virtual std::string broadcast(const std::string& from_root) = 0;
  /// ((v0 + v1) + v2) + ..., the same bits on every rank.
  virtual double sum_in_order(double value) = 0;
  virtual void sum(std::uint64_t* values, int n) = 0;
};

/// Chains the fingerprints of a rank's data collectives (sequence, op, type, count, group) into one 64-bit hash and
/// keeps the last 16; compare() is collective, and names the first difference when chains differ (Error{communication}
/// on every rank; pipeline.md, collectives that disagree).
class CollectiveLog {
 public:
  static constexpr int kept = 16;
  void note(const Operation& operation, int size);
  std::uint64_t chain() const { return chain_; }
  std::string tail() const;
  void compare(Control& control) const;

 private:
  std::uint64_t chain_ = 0;
  std::uint64_t sequence_ = 0;
  std::vector<std::string> last_;
};

}  // namespace tessera
