#include "io/checkpoint/payload.hpp"

#include <algorithm>
#include <deque>
#include <future>
#include <optional>

#include "io/checkpoint/storage.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {
namespace {

using Block = std::span<std::byte>;

/// Neighbouring slabs of a file, or of one of its datasets.
using Run = std::span<const Slab>;
enum class Within { file, dataset };

std::vector<Run> runs_of(Run slabs, Within limits) {
  const auto apart = [&](const Slab& a, const Slab& b) {
    return a.end() != b.offset || (limits == Within::dataset && (a.tensor != b.tensor || a.dataset != b.dataset));
  };
  std::vector<Run> runs;
  while (!slabs.empty()) {
    const auto last = std::adjacent_find(slabs.begin(), slabs.end(), apart);
    runs.push_back(last == slabs.end() ? slabs : Run(slabs.begin(), last + 1));
    slabs = slabs.subspan(runs.back().size());
  }
  return runs;
}

void work_on(const Window& window, Block block, const SlabWork& work) {
  for (const Slab& slab : window.slabs) {
    std::byte* const place = window.at(block, slab.offset);
    const std::int64_t element = slab.bytes / slab.values.elements();
    if (slab.offset % element == 0) {
      work(slab, place);
    } else {  // in files of other programs, which are only read
      std::vector<std::byte> aligned(place, place + slab.bytes);
      work(slab, aligned.data());
    }
  }
}

/// Tasks beside the calling thread, one for each window, and the blocks of memory that they use in turn. The calling
/// thread takes window by window; tasks work ahead of it, or behind it on what it has left.
class Tasks {
 public:
  enum class Side { ahead, behind };
  using Work = std::function<void(const Window& window, Block block)>;

  /// `how` deferred: the calling thread does a task while it waits for its end.
  Tasks(const std::vector<Window>& windows, Side side, std::size_t blocks, std::launch how, Work work)
      : windows_(windows), side_(side), blocks_(blocks), how_(how), work_(std::move(work)), memory_(blocks) {}

  /// The block of the next window. Throws what a task threw.
  Block next() {
    const std::size_t number = taken_++;
    if (side_ == Side::behind) {
      if (number > 0) begin();
      wait(blocks_ - 1);
    } else {
      while (begun_ < std::min(windows_.size(), number + blocks_)) begin();
      wait(begun_ - taken_);
    }
    return memory_[number % blocks_];
  }
  /// Waits for all tasks; called when the last window has been left. Throws as next() does.
  void finish() {
    if (begun_ < taken_) begin();
    wait(0);
  }

 private:
  void begin() {
    const Block block = memory_[begun_ % blocks_];
    running_.push_back(std::async(how_, [this, &window = windows_[begun_], block] { work_(window, block); }));
    ++begun_;
  }
  /// Waits for the first tasks until `left` are left.
  void wait(std::size_t left) {
    for (; running_.size() > left; running_.pop_front()) running_.front().get();
  }

  const std::vector<Window>& windows_;
  const Side side_;
  const std::size_t blocks_;
  const std::launch how_;
  const Work work_;
  const LargePages memory_;
  std::size_t taken_ = 0, begun_ = 0;      ///< windows
  std::deque<std::future<void>> running_;  ///< destroyed first, which waits for all
};

/// What one call of HDF5 moves.
struct Move {
  std::size_t window;
  Run run;
};

std::vector<Move> moves_of(const std::vector<Window>& windows) {
  std::vector<Move> moves;
  for (std::size_t i = 0; i < windows.size(); ++i)
    for (const Run run : runs_of(windows[i].slabs, Within::dataset)) moves.push_back({i, run});
  return moves;
}

}  // namespace

void write_payload(const std::vector<Window>& windows, std::vector<PosixFile>& files, Calls calls,
                   const SlabWork& work) {
  // While one task waits for the disk, others hand it what was written.
  const std::size_t blocks = calls == Calls::in_tasks ? 4 : 1;
  const std::launch how = calls == Calls::in_tasks ? std::launch::async : std::launch::deferred;
  Tasks writes(windows, Tasks::Side::behind, blocks, how, [&](const Window& window, Block block) {
    for (const Run run : runs_of(window.slabs, Within::file)) {
      const std::int64_t begin = run.front().offset;
      files[window.file].write(begin, window.at(block, begin), run.back().end() - begin);
    }
  });
  for (const Window& window : windows) work_on(window, writes.next(), work);
  writes.finish();
}

void read_payload(const std::vector<Window>& windows, const std::vector<PosixFile>& files, const SlabWork& work) {
  constexpr std::size_t blocks = 8;  // a disk wants several requests at once
  Tasks reads(windows, Tasks::Side::ahead, blocks, std::launch::async, [&](const Window& window, Block block) {
    files[window.file].read_pages(window.begin, window.end, block);
  });
  for (const Window& window : windows) work_on(window, reads.next(), work);
}

void move_payload(const std::vector<Window>& windows, const StoredTensors& stored, hdf5::Parallel::Transfer transfer,
                  const ParallelFiles& files, const SlabWork& work, On on) {
  constexpr std::size_t blocks = 4;  // tasks may begin late where cores are busy
  const bool writes = transfer == hdf5::Parallel::Transfer::write;
  Problems problems;
  std::vector<Move> moves;
  std::optional<Tasks> tasks;
  Block block;
  attempt(problems, [&] {
    moves = moves_of(windows);
    tasks.emplace(windows, writes ? Tasks::Side::ahead : Tasks::Side::behind, blocks,
                  on == On::tasks ? std::launch::async : std::launch::deferred,
                  [&](const Window& window, Block own) { work_on(window, own, work); });
  });
  const auto call = [&](const StoredTensor& tensor, std::size_t dataset, const Move* move) {
    hdf5::ElementRange range{0, 0};
    std::byte* memory = nullptr;
    if (move && problems.empty())
      attempt(problems, [&] {
        const Window& window = windows[move->window];
        const std::int64_t begin = move->run.front().offset, end = move->run.back().end();
        if (begin == window.begin) block = tasks->next();
        memory = window.at(block, begin);
        range = {move->run.front().first - tensor.datasets[dataset].first, (end - begin) / size_of(tensor.type)};
      });
    if (range.count == 0 && !files.ranks.collective(transfer)) return;
    const std::size_t index = file_index(tensor.slot);
    files.files[index]->transfer(transfer, dataset_path(*files.files[index], tensor, dataset), range, memory);
    if (move && files.written) (*files.written)[index].send_up_to(move->run.back().end());
  };
  auto next = moves.cbegin();
  for (std::size_t t = 0; t < stored.size(); ++t)
    for (std::size_t p = 0; stored[t] && p < stored[t]->datasets.size(); ++p) {
      const auto end = std::find_if(next, moves.cend(), [&](const Move& move) {
        return move.run.front().tensor != t || move.run.front().dataset != p;
      });
      for (std::int64_t calls = files.ranks.most(transfer, end - next); calls > 0; --calls)
        attempt(problems, [&] { call(*stored[t], p, next == end ? nullptr : &*next++); });
    }
  if (problems.empty()) attempt(problems, [&] { tasks->finish(); });
  problems.raise();
}

}  // namespace tessera
