#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"

namespace tessera {

/// Base of communicators that decorate submit() of an inner one and forward everything else to it. A derived submit()
/// may return the inner Pending; one that returns a Pending of its own must override finish and abandon too.
class Wrapper : public Communicator {
 public:
  Wrapper(const char* kind, std::unique_ptr<Communicator> inner) : kind_(kind), inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return std::string(kind_) + "(" + inner_->name() + ")"; }
  const CollectiveLog* log() const override { return inner_->log(); }
  double busy() const override { return inner_->busy(); }
  bool on_streams() const override { return inner_->on_streams(); }
  void replayed(const Event& end) override { inner_->replayed(end); }
  void open(std::span<Exchange* const> exchanges) override { inner_->open(exchanges); }
  std::vector<std::byte*> reach(const SharedMemory& memory) override { return inner_->reach(memory); }

 protected:
  Communicator& inner() { return *inner_; }
  void finish(Stream&, int) override {}
  void abandon(int) noexcept override {}

 private:
  const char* kind_;
  std::unique_ptr<Communicator> inner_;
};

}  // namespace tessera
