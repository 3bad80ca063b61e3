#include "core/comm/wrapper.hpp"

namespace tessera {
namespace {

class Recording final : public Wrapper {
 public:
  Recording(std::unique_ptr<Communicator> inner, std::vector<Record>& records)
      : Wrapper("recording", std::move(inner)), records_(records) {}

  Pending submit(Stream& stream, const Operation& operation) override {
    Pending pending = inner().submit(stream, operation);
    records_.push_back(
        {operation.collective, operation.group, std::ssize(operation.exchanges), operation.bytes(rank(), size()),
         operation.label});
    return pending;
  }

 private:
  std::vector<Record>& records_;
};

}  // namespace

std::unique_ptr<Communicator> recording(std::unique_ptr<Communicator> inner, std::vector<Record>& records) {
  return std::make_unique<Recording>(std::move(inner), records);
}

}  // namespace tessera
