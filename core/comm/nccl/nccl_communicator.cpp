#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/mpi_control.hpp"
#include "core/comm/nccl/copy_engines.cuh"
#include "core/comm/nccl/nccl_communicator.hpp"
#include "core/comm/transfer.hpp"
#include "core/comm/under_way.hpp"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// NCCL type of a reduction. u16 holds bits of bf16 numbers >= 0, whose maximum is that of the numbers.
ncclDataType_t reduced(DType type) {
  if (type == DType::u16) return ncclBfloat16;
  return type == DType::i64 ? ncclInt64 : ncclUint64;
}

std::size_t bytes_of(const Tensor& t, std::int64_t elements) {
  return static_cast<std::size_t>(elements * size_of(t.type));
}

/// Whether the parts have equal sizes and are contiguous, as ncclAllGather requires.
bool even(const Exchange& x) {
  for (std::size_t r = 1; r < x.counts.size(); ++r)
    if (x.counts[r] != x.counts[0] || x.displacements[r] != x.displacements[r - 1] + x.counts[0]) return false;
  return true;
}

/// Sends a byte to every rank, so that all connections exist before the first operation. Collective over `comm`.
ncclResult_t meet(ncclComm_t comm, int size, cudaStream_t stream) {
  void* memory = nullptr;
  const auto size_of_all = static_cast<std::size_t>(2 * size);
  if (cudaMallocAsync(&memory, size_of_all, stream) != cudaSuccess) return ncclUnhandledCudaError;
  auto* const bytes = static_cast<std::byte*>(memory);
  ncclResult_t code = ncclGroupStart();
  for (int r = 0; r < size && code == ncclSuccess; ++r) {
    code = ncclSend(bytes + r, 1, ncclUint8, r, comm, stream);
    if (code == ncclSuccess) code = ncclRecv(bytes + size + r, 1, ncclUint8, r, comm, stream);
  }
  const ncclResult_t ended = ncclGroupEnd();
  const bool freed = cudaFreeAsync(memory, stream) == cudaSuccess;
  if (code != ncclSuccess || ended != ncclSuccess) return code != ncclSuccess ? code : ended;
  return freed ? ncclSuccess : ncclUnhandledCudaError;
}

/// State shared by the groups of a mesh: the communication stream and the operations under way on it, the log, the
/// progress hook. Communicators are blocking, since a non-blocking one makes a thread for each collective. Calls in
/// which NCCL itself waits for other ranks (connect, finalize) run on a thread of their own, which the main thread
/// watches. On streams, the time-out of the progress hook detects a rank that has gone.
class NcclBackEnd {
 public:
  NcclBackEnd(MpiWatch& watch, Device& device, std::chrono::seconds timeout, const MpiOptions& options)
      : watch_(watch), device_(device), stream_(device.communication()) {
    // NVLink multicast is off: on shared hosts, a program that dies while it holds multicast groups can put the GPUs
    // out of service.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);  // rings and trees are connected at the start, not inside a collective
    if (options.compare == Compare::before_each) control_ = mpi_control(watch, timeout);
    watch_.quote(&log_);
    watch_.before_leaving([this] {
      for (ncclComm_t comm : comms_) ncclCommAbort(comm);
    });
    stream_.set_progress([](void* self) { static_cast<NcclBackEnd*>(self)->progress(); }, this);
  }
  ~NcclBackEnd() {
    stream_.set_progress(nullptr, nullptr);
    watch_.before_leaving(nullptr);
    watch_.quote(nullptr);
  }
  NcclBackEnd(const NcclBackEnd&) = delete;
  NcclBackEnd& operator=(const NcclBackEnd&) = delete;

  /// Makes a communicator of the ranks of `group`. Every rank calls it for its own group. Collective over the world.
  ncclComm_t connect(const RankGroup& group, Control& control) {
    ncclUniqueId id{};
    if (group.place.rank == 0) check(ncclGetUniqueId(&id), nullptr);
    const std::string bytes =
        control.gather(std::string(id.internal, sizeof id.internal))[static_cast<std::size_t>(group.first)];
    std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    ncclComm_t comm = nullptr;
    watch_call("NCCL's start", [&] {
      const ncclResult_t code = ncclCommInitRank(&comm, group.place.size, id, group.place.rank);
      return code == ncclSuccess ? meet(comm, group.place.size, native()) : code;
    });
    comms_.push_back(comm);
    return comm;
  }

  void end_operations() { device_.wait(stream_.record()); }

  void disconnect(ncclComm_t comm) {
    watch_call("NCCL's end", [&] { return ncclCommFinalize(comm); });
    std::erase(comms_, comm);
    ncclCommDestroy(comm);
  }

  /// Every rank's bytes, as many from each, in rank order. Waits. Collective over `comm`.
  std::vector<std::byte> gather(ncclComm_t comm, int size, std::span<const std::byte> mine) {
    at_ = {"the exchange of addresses", log_.noted(), ""};
    std::vector<std::byte> all(static_cast<std::size_t>(size) * mine.size());
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, mine.size() + all.size(), native()), comm);
    std::byte* const received = static_cast<std::byte*>(memory) + mine.size();
    check(cudaMemcpyAsync(memory, mine.data(), mine.size(), cudaMemcpyHostToDevice, native()), comm);
    check(ncclAllGather(memory, received, mine.size(), ncclUint8, comm, native()), comm);
    watch_for(stream_.record(), -1);
    end_operations();
    check(cudaMemcpyAsync(all.data(), received, all.size(), cudaMemcpyDeviceToHost, native()), comm);
    check(cudaFreeAsync(memory, native()), comm);
    end_operations();
    return all;
  }
  const std::string& host() const { return watch_.host(); }

  const CollectiveLog& log() const { return log_; }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.native()); }
  Stream& stream() { return stream_; }

  /// Takes a slot for an operation of `group`; `start` enqueues it. Returns the slot's number.
  template <class Start>
  int begin(Stream& stream, const Operation& operation, const RankGroup& group, const Start& start) {
    const int number = done_.take("NCCL back end");
    at_ = {name_of(operation.collective), log_.noted(), operation.label};
    const bool captured = device_.compute().capturing();  // then it does not run now: replayed() logs and watches it
    if (captured) log_.keep(operation, group.name, group.alike);
    else log_.note(operation, group.name, group.alike);
    // What is passed on is sent first: the next rank comes to the comparison when it has arrived.
    const bool line = operation.collective == Collective::pass_on;
    if (control_ && !line) log_.compare(*control_);
    stream_.wait(stream.record());
    // The products that overlap with an exchange of rows occupy the whole GPU until they end: let the exchange's kernel
    // begin first.
    if (operation.collective == Collective::exchange_rows) stream.wait(stream_.record());
    {
      const Region region(stream_, transfer_of(operation, group.place));
      start();
    }
    done_[number] = stream_.record();
    if (control_ && line) log_.compare(*control_);
    if (!captured) watch_for(done_[number], operation.group);
    return number;
  }

  void replayed(const Event& end) {
    at_ = {"a replayed step from", log_.noted(), ""};
    log_.repeat();
    watch_for(end, -1);
  }

  void finish(Stream& stream, int slot) {
    stream.wait(done_[slot]);
    done_.free(slot);
  }
  void abandon(int slot) noexcept {
    try {
      device_.wait(done_[slot]);
    } catch (const Error&) {  // a GPU has failed, and the error that says so is under way
    }
    done_.free(slot);
  }

  void check(cudaError_t code, ncclComm_t comm) {
    check(code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError, comm);
  }
  void check(ncclResult_t code, ncclComm_t comm) {
    if (code == ncclSuccess) return;
    const char* detail = comm ? ncclGetLastError(comm) : "";
    watch_.fail(fmt::format("NCCL failed on rank {} in {}: {} {}", watch_.rank(), at_.call, ncclGetErrorString(code),
                            detail),
                at_);
  }

 private:
  /// An operation that may still be running on the stream.
  struct Posted {
    Event done;
    Waiting at;
    int group = -1;
  };

  /// Runs `call`, in which NCCL waits for other ranks, on a thread of its own, with the time-out.
  void watch_call(const char* what, const std::function<ncclResult_t()>& call) {
    using namespace std::chrono_literals;
    at_ = {what, log_.noted(), ""};
    int device = 0;
    cudaGetDevice(&device);
    std::future<ncclResult_t> code = std::async(std::launch::async, [&] {
      cudaSetDevice(device);
      return call();
    });
    const Clock::time_point deadline = Clock::now() + watch_.timeout();
    while (code.wait_for(1ms) != std::future_status::ready) {
      watch_.check(at_);
      if (Clock::now() > deadline) overdue(at_, -1);
    }
    check(code.get(), nullptr);
  }

  void watch_for(const Event& done, int group) {
    forget_reached();
    if (newest_ == oldest_) since_ = Clock::now();
    if (newest_ - oldest_ == posted_.size()) --newest_;  // the last of those without room stands for all of them
    posted_[newest_++ % posted_.size()] = {done, at_, group};
  }

  void forget_reached() {
    for (; oldest_ < newest_ && posted_[oldest_ % posted_.size()].done.reached(); ++oldest_) since_ = Clock::now();
  }

  /// The communication stream's progress hook, called while the host waits for the device: checks errors and time-out.
  void progress() {
    using namespace std::chrono_literals;
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + 1ms;
    for (ncclComm_t comm : comms_) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm, &state), comm);
      check(state, comm);
    }
    forget_reached();
    const Posted& first = posted_[oldest_ % posted_.size()];
    if (oldest_ < newest_ && now - since_ > watch_.timeout()) overdue(first.at, first.group);
    watch_.check(oldest_ < newest_ ? first.at : Waiting{.sequence = log_.noted()});
  }

  [[noreturn]] void overdue(const Waiting& at, int group) {
    watch_.fail(fmt::format("rank {} has waited {} s in {} #{}, group {}{}{}", watch_.rank(), watch_.timeout().count(),
                            at.call, at.sequence, group, *at.label ? ", " : "", at.label),
                at);
  }

  MpiWatch& watch_;
  Device& device_;
  Stream& stream_;
  std::vector<ncclComm_t> comms_;
  CollectiveLog log_;
  std::unique_ptr<Control> control_;
  Waiting at_;  ///< the last call of NCCL
  UnderWay<Event> done_;
  std::array<Posted, 256> posted_;
  std::uint64_t oldest_ = 0, newest_ = 0;  ///< range in posted_, a ring: indices modulo its size
  Clock::time_point since_{}, next_look_{};
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclBackEnd> back_end, const RankGroup& group, Control& control, bool copy_engines)
      : back_end_(std::move(back_end)), group_(group), comm_(back_end_->connect(group, control)) {
    if (copy_engines && size() > 1)
      engines_.emplace(group.place, native(), back_end_->host(), [this](std::span<const std::byte> mine) {
        return back_end_->gather(comm_, size(), mine);
      });
  }
  ~NcclCommunicator() override {
    back_end_->end_operations();
    engines_.reset();
    back_end_->disconnect(comm_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return group_.place.rank; }
  int size() const override { return group_.place.size; }
  std::string name() const override { return engines_ && engines_->any_open() ? "nccl and copy engines" : "nccl"; }
  const CollectiveLog* log() const override { return &back_end_->log(); }
  bool on_streams() const override { return true; }
  void replayed(const Event& end) override { back_end_->replayed(end); }

  void open(std::span<Exchange* const> exchanges) override {
    if (engines_) engines_->open(exchanges);
  }

  std::vector<std::byte*> reach(const SharedMemory& memory) override {
    return engines_ ? engines_->reach(memory.bytes.data) : std::vector<std::byte*>();
  }

  Pending submit(Stream& stream, const Operation& operation) override {
    operation.check(rank(), size());
    return Pending(this, back_end_->begin(stream, operation, group_, [&] { start(operation); }));
  }

 protected:
  void finish(Stream& stream, int slot) override { back_end_->finish(stream, slot); }
  void abandon(int slot) noexcept override { back_end_->abandon(slot); }

 private:
  void start(const Operation& operation) {
    if (operation.direct) return move(*operation.direct);
    if (engines_ && CopyEngines::takes(operation)) return back_end_->check(engines_->start(operation), comm_);
    check(ncclGroupStart());
    for (const Exchange& exchange : operation.exchanges) {
      switch (operation.collective) {
        case Collective::all_gather: all_gather(exchange); break;
        case Collective::all_to_all: all_to_all(exchange); break;
        case Collective::exchange_rows: exchange_rows(exchange); break;
        case Collective::pass_on: pass_on(exchange); break;
        case Collective::all_reduce_max: all_reduce(exchange.receive, ncclMax); break;
        case Collective::all_reduce_sum: all_reduce(exchange.receive, ncclSum); break;
      }
    }
    check(ncclGroupEnd());
  }

  void move(const DirectMove& rows) {
    require(engines_.has_value(), "NcclCommunicator", "moves rows in memory that has been reached");
    back_end_->check(engines_->meet(CopyEngines::Moment::ready), comm_);
    rows.enqueue(back_end_->stream());
    back_end_->check(engines_->meet(CopyEngines::Moment::complete), comm_);
  }

  void all_gather(const Exchange& x) {
    if (!even(x)) {
      for (int r = 0; r < size(); ++r) {
        const auto at = static_cast<std::size_t>(r);
        const Tensor part = x.receive.flat(x.displacements[at], x.counts[at]);
        broadcast(x.send && r == rank() ? x.send : part, part, x.counts[at], r);
      }
      return;
    }
    const Tensor mine =
        x.send ? x.send : x.receive.flat(x.displacements[static_cast<std::size_t>(rank())], x.counts[0]);
    if (x.counts[0] == 0) return;
    check(ncclAllGather(mine.data, x.receive.flat(x.displacements[0], 0).data, bytes_of(mine, x.counts[0]), ncclUint8,
                        comm_, native()));
  }

  void all_to_all(const Exchange& x) {
    const std::int64_t mine = x.counts[static_cast<std::size_t>(rank())];
    for (int r = 0; r < size(); ++r)
      if (r != rank()) swap(x, r, (r < rank() ? r : r - 1) * mine, mine);
  }

  void exchange_rows(const Exchange& x) {
    std::int64_t begin = 0;
    for (int r = 0; r < size(); ++r) {
      const std::int64_t arriving = x.arrivals[static_cast<std::size_t>(r)];
      swap(x, r, begin, arriving);
      begin += arriving;
    }
  }

  /// Sends part `r` to rank r, and receives `arriving` elements from it, at element `begin` of x.receive.
  void swap(const Exchange& x, int r, std::int64_t begin, std::int64_t arriving) {
    const auto at = static_cast<std::size_t>(r);
    if (x.counts[at] > 0)
      check(ncclSend(x.send.flat(x.displacements[at], x.counts[at]).data, bytes_of(x.send, x.counts[at]), ncclUint8, r,
                     comm_, native()));
    if (arriving > 0)
      check(ncclRecv(static_cast<std::byte*>(x.receive.data) + bytes_of(x.receive, begin),
                     bytes_of(x.receive, arriving), ncclUint8, r, comm_, native()));
  }

  void pass_on(const Exchange& x) {
    if (x.receive && x.receive.elements() > 0)
      check(ncclRecv(x.receive.data, bytes_of(x.receive, x.receive.elements()), ncclUint8, rank() - 1, comm_,
                     native()));
    if (x.send && x.send.elements() > 0)
      check(ncclSend(x.send.data, bytes_of(x.send, x.send.elements()), ncclUint8, rank() + 1, comm_, native()));
  }

  void all_reduce(const Tensor& t, ncclRedOp_t op) {
    if (t.elements() == 0) return;
    check(ncclAllReduce(t.data, t.data, static_cast<std::size_t>(t.elements()), reduced(t.type), op, comm_, native()));
  }

  void broadcast(const Tensor& from, const Tensor& to, std::int64_t elements, int root) {
    if (elements == 0) return;
    check(ncclBroadcast(from.data, to.data, bytes_of(to, elements), ncclUint8, root, comm_, native()));
  }

  void check(ncclResult_t code) { back_end_->check(code, comm_); }
  cudaStream_t native() const { return back_end_->native(); }

  std::shared_ptr<NcclBackEnd> back_end_;
  RankGroup group_;
  ncclComm_t comm_;
  std::optional<CopyEngines> engines_;
};

}  // namespace

Mesh nccl_mesh(MpiWatch& watch, const Ranks& ranks, Device& device, std::chrono::seconds timeout,
               const MpiOptions& options) {
  const auto back_end = std::make_shared<NcclBackEnd>(watch, device, timeout, options);
  const std::unique_ptr<Control> control = mpi_control(watch, timeout);
  return Mesh(ranks, [&](const RankGroup& group) {
    return std::make_unique<NcclCommunicator>(back_end, group, *control, options.copy_engines);
  });
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace tessera
