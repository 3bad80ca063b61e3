#pragma once
#include <memory>

#include "core/comm/control.hpp"

namespace tessera::test {

/// Control of a single rank, for tests without MPI or whose other ranks do something else.
class SelfControl final : public Control {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::int64_t max(std::int64_t value) override { return value; }
  std::vector<std::string> gather(const std::string& mine) override { return {mine}; }
  std::string broadcast(const std::string& from_root) override { return from_root; }
  double sum_in_order(double value) override { return value; }
  void sum(std::uint64_t*, int) override {}
  void leave(const std::string& why) override { throw Error(Exit::communication, why); }
};

}  // namespace tessera::test
