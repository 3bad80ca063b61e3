#include "io/checkpoint/structure_writer.hpp"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

constexpr std::size_t at_once =
    256;  // datasets: 5 ms of HDF5, against 0.1 ms of a broadcast; ranks stay close together

}  // namespace

StructureWriter::StructureWriter(std::span<CheckpointFile> files, std::span<const char* const> names,
                     std::span<const StateTensor> all, ExpertWeights experts, Control& control)
    : control_(control) {
  for (std::size_t file = 0; file < names.size(); ++file)
    for (const DatasetPlace& place : datasets_of(names[file], all, experts)) datasets_.push_back({file, place});
  if (control.rank() == 0) try {
      maker_ = std::jthread([this, files, all, experts] { make(files, all, experts); });
    } catch (...) {  // the other ranks wait in next()
      failure_ = std::current_exception();
      ended_ = true;
    }
}

StructureWriter::~StructureWriter() = default;

void StructureWriter::make(std::span<CheckpointFile> files, std::span<const StateTensor> all, ExpertWeights experts) {
  try {
    for (CheckpointFile& file : files)
      lay_out(file, all, experts, [this](const DatasetPlace& place) {
        const std::lock_guard lock(mutex_);
        offsets_.push_back(place.offset);
        if (offsets_.size() % at_once == 0 || offsets_.size() == datasets_.size()) changed_.notify_one();
      });
  } catch (...) {
    failure_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

/// Rank 0: the bytes of the next offsets.
std::string StructureWriter::made() {
  const std::size_t until = std::min(told_ + at_once, datasets_.size());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return offsets_.size() >= until || ended_; });
  if (offsets_.size() < until) return "";
  std::string bytes((until - told_) * sizeof offsets_[0], '\0');
  std::memcpy(bytes.data(), offsets_.data() + told_, bytes.size());
  return bytes;
}

std::span<const StructureWriter::Placed> StructureWriter::next() {
  if (told_ == datasets_.size()) return {};
  const std::string bytes = control_.broadcast(control_.rank() == 0 ? made() : "");
  const std::span told = std::span(datasets_).subspan(told_, bytes.size() / sizeof offsets_[0]);
  for (std::size_t i = 0; i < told.size(); ++i)
    std::memcpy(&told[i].place.offset, bytes.data() + i * sizeof offsets_[0], sizeof offsets_[0]);
  told_ += told.size();
  return told;
}

void StructureWriter::finish() {
  if (maker_.joinable()) maker_.join();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace tessera
