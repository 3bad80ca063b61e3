// Times saving and loading of checkpoints against the file system's own speed with the same bytes from as many
// processes, alternating in one run. Prints a JSON line for each measurement.
//
//   mpiexec -n RANKS checkpoint_disk save|load|begin mpio|direct FOLDER TENSORS BYTES REPEATS
//
// save: CheckpointWriter::save() up to the committed folder, against a file that the ranks write in blocks of 16 MiB
// and fsync. load: opening the folder and load(), against reading the same files in such blocks, with a cold page
// cache. begin (only direct): CheckpointWriter::start(), the part of an asynchronous save that blocks training, against
// a plain copy of the state to host memory, between two saves.
// The line holds the seconds of each repeat: "s" of the program, "raw_s" of the plain way. A disk's speed changes from
// one repeat to the next, so ratios must be taken pair by pair.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/comm/mpi.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/writer.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/random/random.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t block_bytes = std::int64_t{16} << 20;
constexpr std::int64_t width = 64;
constexpr std::int64_t bucket_elements =
    (std::int64_t{100} << 20) / 4;  // what reduce.bucket_mib is where a deck says nothing

/// State of AdamW (master and two moments) of equal matrices, on the ranks that own it by a run's layout.
class State {
 public:
  /// State of at least `tensors` tensors.
  State(Device& device, const Control& control, std::int64_t tensors, std::int64_t bytes) {
    const char* const slots[] = {"model", "adamw/m", "adamw/v"};
    const std::int64_t matrices = (tensors + 2) / 3;
    const Shape shape{std::max<std::int64_t>(1, bytes / (3 * 4 * matrices * width)), width};
    ParamRegistry registry;
    for (std::int64_t i = 0; i < matrices; ++i) {
      const std::string name = fmt::format("layers.{}.weight", i);
      registry.add({name, shape, 1, Role::matrix, {Start::Kind::normal, 1}, {name, shape, 0}});
    }
    const ParamLayout layout = ParamLayout::build(registry, {control.size(), control.size(), bucket_elements});
    const Ranks ranks = Ranks::in_world(control.size(), control.rank());
    for (const char* slot : slots) {
      std::vector<BucketSlice> slices;
      for (const Bucket& bucket : layout.buckets()) {
        const Tensor values = device.allocate(Category::masters, DType::f32, {bucket.slice(ranks)});
        fill_normal(device.compute(), values, random_key(1, "bench", slot, control.rank()), 0, 1);
        slices.push_back({{static_cast<int>(slices.size())}, values});
      }
      dict_.add({slot, slices}, registry, layout, ranks);
    }
    dict_.digests = device.allocate(Category::staging, DType::u64, {std::ssize(dict_.tensors)});
  }
  StateDict& dict() { return dict_; }
  std::int64_t tensors() const { return std::ssize(dict_.tensors); }
  /// Bytes of all ranks.
  std::int64_t bytes() const { return tensors() * dict_.tensors.front().shape.elements() * 4; }

 private:
  StateDict dict_;
};

void must(bool done, const fs::path& path) {
  if (!done) throw Error(Exit::environment, path.string() + ": the bench cannot use it");
}

using Block = std::vector<char>;  // of block_bytes

class File {
 public:
  File(const fs::path& path, int flags) : path_(path), file_(::open(path.c_str(), flags, 0644)) {
    must(file_ >= 0, path);
  }
  ~File() { ::close(file_); }
  void write(std::int64_t offset, std::int64_t bytes, const Block& block) {
    for (std::int64_t at = 0; at < bytes; at += block_bytes) {
      const auto part = static_cast<std::size_t>(std::min(block_bytes, bytes - at));
      must(::pwrite(file_, block.data(), part, offset + at) == static_cast<ssize_t>(part), path_);
    }
  }
  void read(std::int64_t offset, std::int64_t bytes, Block& block) {
    for (std::int64_t at = 0; at < bytes; at += block_bytes) {
      const auto part = static_cast<std::size_t>(std::min(block_bytes, bytes - at));
      must(::pread(file_, block.data(), part, offset + at) == static_cast<ssize_t>(part), path_);
    }
  }
  void sync() { must(::fsync(file_) == 0, path_); }
  void forget() { must(::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED) == 0, path_); }

 private:
  fs::path path_;
  int file_;
};

/// Seconds from a barrier until the last rank has ended.
double seconds(Control& control, const std::function<void()>& work) {
  control.max(0);
  const auto begin = std::chrono::steady_clock::now();
  work();
  control.max(0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Seconds of each repeat, in pairs of both ways; every other pair begins with the plain way.
struct Times {
  std::vector<double> ours, raw;
};

struct Way {
  std::function<void()> prepare, work;  ///< prepare is not timed
};

Times measure(Control& control, int repeats, const Way& ours, const Way& raw) {
  Times times;
  for (int turn = 0; turn < 2 * repeats; ++turn) {
    const bool is_raw = (turn + 1) / 2 % 2 == 0;
    const Way& way = is_raw ? raw : ours;
    way.prepare();
    (is_raw ? times.raw : times.ours).push_back(seconds(control, way.work));
  }
  return times;
}

void raw_write(const fs::path& path, std::int64_t bytes, Control& control, const Block& block) {
  File file(path, O_WRONLY | O_CREAT);
  const std::int64_t begin = bytes * control.rank() / control.size();
  file.write(begin, bytes * (control.rank() + 1) / control.size() - begin, block);
  file.sync();
}

Origin origin_of(const Control& control) {
  return {"bench", "0", "bench\n", "", 0, control.size(), ExpertWeights::single, "", "", "", "",
          "",      "",  "",        0,  {}, "", ""};
}

Times save(const fs::path& folder, State& state, Device& device, Control& control, const hdf5::Parallel* parallel,
           int repeats) {
  CheckpointWriter writer(device, control, parallel);
  const Origin origin = origin_of(control);
  Block block(block_bytes);
  std::ranges::generate(block, std::minstd_rand(1));  // random, since disks may compress
  const auto remove = [&](const char* name) {
    if (control.rank() == 0) fs::remove_all(folder / name);
  };
  const std::string step = step_folder(0);
  const Way ours{[&] { remove(step.c_str()); }, [&] { writer.save(folder, state.dict(), origin); }};
  const Way raw{[&] { remove("raw"); }, [&] { raw_write(folder / "raw", state.bytes(), control, block); }};
  const Times times = measure(control, repeats, ours, raw);
  remove("raw");
  return times;
}

const char* const payload[] = {model_file, optimizer_file};

void forget(const fs::path& step, Control& control) {
  if (control.rank() == 0)
    for (const char* name : payload) File(step / name, O_RDONLY).forget();
  control.max(0);
}

void raw_read(const fs::path& step, Control& control, Block& block) {
  for (const char* name : payload) {
    const auto bytes = static_cast<std::int64_t>(fs::file_size(step / name));
    const std::int64_t begin = bytes * control.rank() / control.size(),
                       end = bytes * (control.rank() + 1) / control.size();
    File(step / name, O_RDONLY).read(begin, end - begin, block);
  }
}

Times load(const fs::path& folder, State& state, Device& device, Control& control, const hdf5::Parallel* parallel,
           int repeats) {
  const fs::path step = folder / step_folder(0);
  Block block(block_bytes);
  const std::function<void()> cold = [&] { forget(step, control); };
  const auto ours = [&] {
    const Checkpoint checkpoint(step, control, parallel);
    tessera::load(checkpoint, state.dict(), device, control);
  };
  return measure(control, repeats, {cold, ours}, {cold, [&] { raw_read(step, control, block); }});
}

Times begin(const fs::path& folder, State& state, Device& device, Control& control, int repeats) {
  Snapshot snapshot(device, state.dict()), copy(device, state.dict());
  copy.take(state.dict());
  CheckpointWriter writer(device, control);
  const std::function<void()> end = [&] {
    writer.close();
    if (control.rank() == 0) fs::remove_all(folder / step_folder(0));
  };
  const auto plain = [&] {
    for (std::size_t i = 0; i < copy.state().tensors.size(); ++i)
      for (std::size_t r = 0; r < copy.state().tensors[i].ranges.size(); ++r)
        device.download(device.compute(), copy.state().tensors[i].ranges[r].values.data,
                        state.dict().tensors[i].ranges[r].values);
  };
  const Way ours{end, [&] { writer.start(folder, state.dict(), origin_of(control), snapshot); }};
  const Times times = measure(control, repeats, ours, {end, plain});
  end();
  return times;
}

int run(const std::string& what, const std::string& io, const fs::path& folder, std::int64_t tensors,
        std::int64_t bytes, int repeats) {
  Mpi mpi(nullptr, nullptr);
  const auto control = mpi.control(std::chrono::seconds(300));
  const Runtime runtime(1);
  Device device;
  State state(device, *control, tensors, bytes);
  const hdf5::Parallel parallel(*control, {});
  const Times times = what == "begin"
                          ? begin(folder, state, device, *control, repeats)
                          : (what == "save" ? save : load)(folder, state, device, *control,
                                                           io == "mpio" ? &parallel : nullptr, repeats);
  if (mpi.rank() == 0)
    fmt::print("{{\"what\":\"{}\",\"io\":\"{}\",\"ranks\":{},\"tensors\":{},\"bytes\":{},"
               "\"s\":[{:.3f}],\"raw_s\":[{:.3f}]}}\n",
               what, io, mpi.size(), state.tensors(), state.bytes(), fmt::join(times.ours, ","),
               fmt::join(times.raw, ","));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const auto is = [&](int i, std::string_view a, std::string_view b) { return argv[i] == a || argv[i] == b; };
  if (argc != 7 || !(is(1, "save", "load") ? is(2, "mpio", "direct") : is(1, "begin", "") && is(2, "direct", ""))) {
    fmt::print(stderr, "usage: checkpoint_disk save|load mpio|direct FOLDER TENSORS BYTES REPEATS\n"
                       "       checkpoint_disk begin direct FOLDER TENSORS BYTES REPEATS\n");
    return 2;
  }
  return tessera::run(argv[1], argv[2], argv[3], std::atoll(argv[4]), std::atoll(argv[5]), std::atoi(argv[6]));
}
