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
    return a.end() != b.offset || (limits == Within::dataset && (a.tensor != b.tensor || a.part != b.part));
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

/// Tasks beside the calling thread, in the order in which they began, and the blocks of memory that they use in turn.
class Tasks {
 public:
  /// `how` deferred: the calling thread does a task while it waits for its end.
  Tasks(std::size_t blocks, std::launch how) : memory_(blocks), blocks_(blocks), how_(how) {}

  Block block(std::size_t number) const { return memory_[number % blocks_]; }
  template <class Task>
  void begin(Task&& task) {
    running_.push_back(std::async(how_, std::forward<Task>(task)));
  }
  /// Waits for the first tasks until at most `left` are left. Throws what one of them threw.
  void wait(std::size_t left) {
    for (; running_.size() > left; running_.pop_front()) running_.front().get();
  }

 private:
  const LargePages memory_;
  const std::size_t blocks_;
  const std::launch how_;
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

void write_payload(const std::vector<Window>& windows, std::vector<PosixFile>& files, const SlabWork& work) {
  constexpr std::size_t blocks = 4;  // while one task waits for the disk, others hand it what was written
  Tasks writes(blocks, std::launch::async);
  for (std::size_t n = 0; n < windows.size(); ++n) {
    const Window& window = windows[n];
    const Block block = writes.block(n);
    writes.wait(blocks - 1);
    work_on(window, block, work);
    writes.begin([&, block] {
      for (const Run run : runs_of(window.slabs, Within::file)) {
        const std::int64_t begin = run.front().offset;
        files[window.file].write(begin, window.at(block, begin), run.back().end() - begin);
      }
    });
  }
  writes.wait(0);
}

void read_payload(const std::vector<Window>& windows, const std::vector<PosixFile>& files, const SlabWork& work) {
  constexpr std::size_t blocks = 8;  // a disk wants several requests at once
  Tasks reads(blocks, std::launch::async);
  for (std::size_t n = 0, begun = 0; n < windows.size(); ++n) {
    for (; begun < std::min(windows.size(), n + blocks); ++begun)
      reads.begin([&files, &window = windows[begun], block = reads.block(begun)] {
        files[window.file].read_pages(window.begin, window.end, block);
      });
    reads.wait(begun - n - 1);
    work_on(windows[n], reads.block(n), work);
  }
}

void move_payload(const std::vector<Window>& windows, const StoredTensors& stored, hdf5::Parallel::Transfer transfer,
                  const ParallelFiles& files, const SlabWork& work, On on) {
  const bool writes = transfer == hdf5::Parallel::Transfer::write;
  Problems problems;
  std::vector<Move> moves;
  std::optional<Tasks> tasks;
  // One task at a time, since tasks sum digests.
  const auto begin_work = [&](std::size_t number) {
    tasks->wait(0);
    if (number < windows.size())
      tasks->begin([&, number, block = tasks->block(number)] { work_on(windows[number], block, work); });
  };
  attempt(problems, [&] {
    moves = moves_of(windows);
    tasks.emplace(2, on == On::task ? std::launch::async : std::launch::deferred);
    if (writes) begin_work(0);
  });
  const auto call = [&](const StoredTensor& tensor, std::size_t part, const Move* move) {
    hdf5::ElementRange range{0, 0};
    std::byte* memory = nullptr;
    if (move && problems.empty())
      attempt(problems, [&] {
        const Window& window = windows[move->window];
        const std::int64_t begin = move->run.front().offset, end = move->run.back().end();
        if (begin == window.begin) begin_work(writes ? move->window + 1 : move->window - 1);
        memory = window.at(tasks->block(move->window), begin);
        range = {move->run.front().first - tensor.parts[part].first, (end - begin) / size_of(tensor.type)};
      });
    if (range.count == 0 && !files.ranks.collective(transfer)) return;
    const std::size_t index = file_index(tensor.slot);
    files.files[index]->transfer(transfer, dataset_path(*files.files[index], tensor, part), range, memory);
    if (move && files.written) (*files.written)[index].send_up_to(move->run.back().end());
  };
  auto next = moves.cbegin();
  for (std::size_t t = 0; t < stored.size(); ++t)
    for (std::size_t p = 0; stored[t] && p < stored[t]->parts.size(); ++p) {
      const auto end = std::find_if(next, moves.cend(), [&](const Move& move) {
        return move.run.front().tensor != t || move.run.front().part != p;
      });
      for (std::int64_t calls = files.ranks.most(transfer, end - next); calls > 0; --calls)
        attempt(problems, [&] { call(*stored[t], p, next == end ? nullptr : &*next++); });
    }
  if (problems.empty() && !writes)
    attempt(problems, [&] {
      begin_work(windows.size() - 1);
      tasks->wait(0);
    });
  problems.raise();
}

}  // namespace tessera
