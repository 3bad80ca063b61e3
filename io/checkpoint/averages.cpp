#include "io/checkpoint/averages.hpp"

#include <map>
#include <utility>

#include "core/optim/average.hpp"

namespace tessera {
namespace {

class Averages final : public TensorSource {
 public:
  explicit Averages(std::unique_ptr<Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {
    for (const StoredTensor& tensor : checkpoint_->tensors()) {
      if (tensor.slot != Average::slot) continue;
      stored_[tensor.name] = &tensor;
      tensors_.push_back(tensor);
      tensors_.back().slot = "model";
    }
    if (tensors_.empty()) throw Error(Exit::file, without_averages_text(checkpoint_->name()));
  }

  std::string name() const override { return checkpoint_->name() + " (averages)"; }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  bool has_digests() const override { return true; }
  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const override {
    checkpoint_->read(*stored_.at(tensor.name), first, count, to);
  }
  void read_each(const std::vector<StateTensor>& held, const StoredTensors& stored, const SlabWork& work,
                 On on) const override {
    StoredTensors own;
    for (const StoredTensor* tensor : stored) own.push_back(tensor ? stored_.at(tensor->name) : nullptr);
    checkpoint_->read_each(held, own, work, on);
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, const StoredTensor*> stored_;  ///< of the checkpoint, by name
};

}  // namespace

std::unique_ptr<TensorSource> averages_of(std::unique_ptr<Checkpoint> checkpoint) {
  return std::make_unique<Averages>(std::move(checkpoint));
}

std::string without_averages_text(const std::string& name) {
  return name + ": holds no averages of weights: its run had no optimizer.ema";
}

}  // namespace tessera
