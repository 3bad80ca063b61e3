#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/wrapper.hpp"

namespace tessera::test {

/// Checks what callers owe a communicator: counts, displacements and arrivals stay as they were until the operation has
/// finished. Once open() has been called, weights and gradients travel in buffers that it was told of.
class Contract final : public Wrapper {
 public:
  explicit Contract(std::unique_ptr<Communicator> inner) : Wrapper("contract", std::move(inner)) {}

  void open(std::span<Exchange* const> exchanges) override {
    inner().open(exchanges);
    opened_ = true;
    if (on_streams()) return;  // NCCL gives peers that copy engines use
    for (Exchange* exchange : exchanges) exchange->peers = told_;  // which MPI does not look at
  }

  Pending submit(Stream& stream, const Operation& operation) override {
    const std::string label = operation.label;
    const bool again = operation.collective == Collective::all_gather || operation.collective == Collective::all_to_all;
    if (again && opened_ && !on_streams() && (label == "weights" || label == "gradients")) {
      for (const Exchange& exchange : operation.exchanges)
        EXPECT_FALSE(exchange.peers.empty()) << label << " of group " << operation.group << " in a buffer not opened";
    }
    auto slot = std::ranges::find_if(slots_, [](const std::unique_ptr<Slot>& one) { return !one->inner; });
    if (slot == slots_.end()) slot = slots_.insert(slots_.end(), std::make_unique<Slot>());
    Slot& own = **slot;
    own.lent.clear();
    for (const Exchange& exchange : operation.exchanges)
      for (const auto& numbers : {exchange.counts, exchange.displacements, exchange.arrivals})
        own.lent.push_back({numbers, {numbers.begin(), numbers.end()}});
    own.label = label;
    own.inner = inner().submit(stream, operation);
    return Pending(this, static_cast<int>(slot - slots_.begin()));
  }

 protected:
  void finish(Stream& stream, int slot) override {
    Slot& own = *slots_[static_cast<std::size_t>(slot)];
    for (const Lent& lent : own.lent)
      EXPECT_TRUE(std::ranges::equal(lent.numbers, lent.as_they_were)) << own.label << ": counts changed under way";
    own.inner.wait(stream);
  }
  void abandon(int slot) noexcept override { slots_[static_cast<std::size_t>(slot)]->inner = Pending(); }

 private:
  /// Numbers that a caller has lent until the end of an operation.
  struct Lent {
    std::span<const std::int64_t> numbers;
    std::vector<std::int64_t> as_they_were;
  };
  struct Slot {
    Pending inner;
    std::string label;
    std::vector<Lent> lent;
  };
  std::vector<std::unique_ptr<Slot>> slots_;
  const std::array<std::byte*, 1> told_{};
  bool opened_ = false;
};

inline std::unique_ptr<Communicator> contract(std::unique_ptr<Communicator> inner) {
  return std::make_unique<Contract>(std::move(inner));
}

}  // namespace tessera::test
