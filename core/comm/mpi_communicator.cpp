#include "core/comm/mpi_communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <numeric>
#include <vector>

#include "core/comm/host_memory.hpp"
#include "core/comm/mpi_control.hpp"
#include "core/comm/mpi_counts.hpp"
#include "core/comm/transfer.hpp"
#include "core/comm/under_way.hpp"
#include "core/device/region.hpp"
#include "core/device/timeline.hpp"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// An MPI type of the elements' size, for operations that move them without arithmetic.
MPI_Datatype moved(DType type) {
  switch (size_of(type)) {
    case 1: return MPI_UINT8_T;
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    default: return MPI_UINT64_T;
  }
}

MPI_Datatype reduced(DType type) {
  if (type == DType::u16) return MPI_UINT16_T;
  return type == DType::i64 ? MPI_INT64_T : MPI_UINT64_T;
}

template <class T> void keep_greater(const void* in, void* inout, int n) {
  const T* a = static_cast<const T*>(in);
  T* b = static_cast<T*>(inout);
  for (int i = 0; i < n; ++i) b[i] = a[i] > b[i] ? a[i] : b[i];
}

/// Maximum as an MPI operation, since MPI_MAX of MPICH 4.0 compares unsigned numbers as if they were signed.
void greater(void* in, void* inout, int* n, MPI_Datatype* type) {
  if (*type == MPI_UINT16_T) return keep_greater<std::uint16_t>(in, inout, *n);
  if (*type == MPI_INT64_T) return keep_greater<std::int64_t>(in, inout, *n);
  keep_greater<std::uint64_t>(in, inout, *n);
}

/// An MPI datatype of `block` elements; needed only until the call has started.
class Block {
 public:
  Block(DType type, std::int64_t block) : type_(moved(type)), derived_(block != 1) {
    if (!derived_) return;
    MPI_Type_contiguous(static_cast<int>(block), moved(type), &type_);
    MPI_Type_commit(&type_);
  }
  ~Block() {
    if (derived_) MPI_Type_free(&type_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_;
  bool derived_;
};

/// Send and receive buffers of an all-to-all. An empty buffer gets an address of its own. If it had the other buffer's
/// address, Open MPI would take that for MPI_IN_PLACE, and a rank that receives nothing would send nothing.
const void* send_buffer(const Tensor& t) {
  static const std::byte empty{};
  return t.elements() > 0 ? t.data : &empty;
}
void* receive_buffer(const Tensor& t) {
  static std::byte empty{};
  return t.elements() > 0 ? t.data : &empty;
}

/// One operation under way. Vectors keep their memory, so that a steady state does not allocate.
struct OperationSlot {
  Waiting waiting;
  Transfer transfer;
  std::int64_t begun = 0;  ///< begin, in nanoseconds of the host's clock
  std::vector<MPI_Request> requests;
  std::vector<int> ints;  ///< MPI reads counts and displacements until the call has ended
  std::size_t ints_taken = 0;

  MPI_Request* request() { return &requests.emplace_back(MPI_REQUEST_NULL); }
  std::span<int> take(std::size_t n) {
    ints_taken += n;
    return std::span(ints).subspan(ints_taken - n, n);
  }
  /// Converts numbers to units of `block`.
  const int* blocks(std::span<const std::int64_t> numbers, std::int64_t block) {
    const std::span<int> out = take(numbers.size());
    std::transform(numbers.begin(), numbers.end(), out.begin(), [block](std::int64_t n) { return int(n / block); });
    return out.data();
  }
};

/// State shared by the groups of a mesh: the operations under way in all groups, their log, the progress hook.
class MpiBackEnd {
 public:
  MpiBackEnd(MpiWatch& watch, Stream& stream, std::chrono::seconds timeout, const MpiOptions& options)
      : watch_(watch), stream_(stream), most_(options.most) {
    require(most_ >= 1 && most_ <= INT_MAX, "MpiOptions", "most lies between 1 and INT_MAX");
    if (options.compare == Compare::before_each) control_ = mpi_control(watch, timeout);
    MPI_Op_create(greater, 1, &max_);
    for (OperationSlot& slot : slots_.all()) slot.requests.reserve(requests_at_first);
    watch_.wait_at_most(timeout);
    watch_.quote(&log_);
    stream_.set_progress([](void* self) { static_cast<MpiBackEnd*>(self)->progress(); }, this);
  }
  ~MpiBackEnd() {
    stream_.set_progress(nullptr, nullptr);
    watch_.quote(nullptr);
    MPI_Op_free(&max_);
  }
  MpiBackEnd(const MpiBackEnd&) = delete;
  MpiBackEnd& operator=(const MpiBackEnd&) = delete;

  MpiWatch& watch() { return watch_; }
  MPI_Op max() const { return max_; }
  std::int64_t most() const { return most_; }
  const CollectiveLog& log() const { return log_; }
  double busy() const { return busy_; }

  /// Takes a slot for an operation of `group`; `start` makes its requests. Returns the slot's number.
  template <class Start> int begin(const Operation& operation, const RankGroup& group, const Start& start) {
    const int number = slots_.take("MPI back end");
    OperationSlot& slot = slots_[number];
    slot.waiting = {name_of(operation.collective), log_.noted(), operation.label};
    log_.note(operation, group.name, group.alike);
    // What is passed on is sent first: the next rank comes to the comparison when it has arrived.
    const bool line = operation.collective == Collective::pass_on;
    if (control_ && !line) log_.compare(*control_);
    slot.transfer = transfer_of(operation, group.place);
    slot.begun = host_nanoseconds();
    start(slot);
    if (control_ && line) log_.compare(*control_);
    if (!slot.requests.empty() && moving_++ == 0) moves_since_ = Clock::now();
    return number;
  }

  void complete(int number) {
    OperationSlot& slot = slots_[number];
    watch_.wait(slot.requests, slot.waiting);
    if (!slot.requests.empty()) arrived(slot);
    slots_.free(number);
  }

 private:
  static constexpr std::size_t requests_at_first = 64;

  /// To be called when all requests of the slot are done.
  void arrived(OperationSlot& slot) {
    slot.requests.clear();
    if (Timeline* const timeline = Timeline::of(stream_))
      timeline->carried(stream_, slot.transfer, static_cast<int>(&slot - slots_.all().data()) + 1, slot.begun);
    if (--moving_ == 0) busy_ += std::chrono::duration<double>(Clock::now() - moves_since_).count();
  }

  /// The stream's progress hook. Rate-limited: one MPI_Test advances every operation under way.
  void progress() {
    using namespace std::chrono_literals;
    const Clock::time_point now = Clock::now();
    if (now < next_progress_) return;
    for (OperationSlot& slot : slots_.all()) {
      if (slot.requests.empty()) continue;
      int all = 0;
      watch_.check(MPI_Testall(static_cast<int>(slot.requests.size()), slot.requests.data(), &all, MPI_STATUSES_IGNORE),
                   slot.waiting);
      if (all) arrived(slot);
    }
    if (now >= next_look_) {
      watch_.check({.sequence = log_.noted()});
      next_look_ = now + 10ms;
    }
    next_progress_ = Clock::now() + 50us;
  }

  MpiWatch& watch_;
  Stream& stream_;
  MPI_Op max_ = MPI_OP_NULL;
  std::int64_t most_;
  CollectiveLog log_;
  std::unique_ptr<Control> control_;
  UnderWay<OperationSlot> slots_;
  Clock::time_point next_progress_{}, next_look_{};
  int moving_ = 0;  ///< slots whose requests are not all done
  Clock::time_point moves_since_{};
  double busy_ = 0;
};

class MpiCommunicator final : public Communicator {
 public:
  /// `comm` connects the ranks of `group`; this object frees it.
  MpiCommunicator(std::shared_ptr<MpiBackEnd> back_end, const RankGroup& group, MPI_Comm comm)
      : back_end_(std::move(back_end)),
        watch_(back_end_->watch()),
        most_(back_end_->most()),
        group_(group),
        comm_(comm) {}
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return group_.place.rank; }
  int size() const override { return group_.place.size; }
  std::string name() const override { return "mpi"; }
  const CollectiveLog* log() const override { return &back_end_->log(); }
  double busy() const override { return back_end_->busy(); }

  std::vector<std::byte*> reach(const SharedMemory& memory) override {
    const Waiting waiting{"the exchange of addresses", back_end_->log().noted(), ""};
    return opened_.emplace_back(group_.place, memory, [&](std::span<const std::byte> mine) {
      std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size()));
      const int bytes = static_cast<int>(mine.size());
      MPI_Request request = MPI_REQUEST_NULL;
      watch_.check(MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm_, &request), waiting);
      watch_.wait({&request, 1}, waiting);
      return all;
    }).addresses();
  }

  Pending submit(Stream& stream, const Operation& operation) override {
    operation.check(rank(), size());
    return Pending(this, back_end_->begin(operation, group_, [&](OperationSlot& slot) {
      if (operation.direct) move(stream, slot, *operation.direct);
      else start(slot, operation);
    }));
  }

 protected:
  void finish(Stream&, int slot) override { back_end_->complete(slot); }
  void abandon(int slot) noexcept override { back_end_->complete(slot); }

 private:
  /// Barriers stand for the flags of GPUs: memory may be written; it has been written.
  void move(Stream& stream, OperationSlot& slot, const DirectMove& rows) {
    watch_.check(MPI_Ibarrier(comm_, slot.request()), slot.waiting);  // mutation: rows_are_sent_unasked
    {
      const Region region(stream, RegionName::waiting);
      watch_.wait(slot.requests, slot.waiting);
    }
    slot.requests.clear();
    rows.enqueue(stream);
    watch_.check(MPI_Ibarrier(comm_, slot.request()), slot.waiting);
  }

  void start(OperationSlot& slot, const Operation& operation) {
    // Resized once for all exchanges, since MPI holds pointers into `ints` while later exchanges take their parts.
    slot.ints_taken = 0;
    slot.ints.resize(std::max(slot.ints.size(), operation.exchanges.size() * 4 * static_cast<std::size_t>(size())));
    for (const Exchange& exchange : operation.exchanges) {
      switch (operation.collective) {
        case Collective::all_gather: all_gather(slot, exchange); break;
        case Collective::all_to_all: all_to_all(slot, exchange); break;
        case Collective::exchange_rows: exchange_rows(slot, exchange); break;
        case Collective::pass_on: pass_on(slot, exchange); break;
        case Collective::all_reduce_max: all_reduce(slot, exchange.receive, back_end_->max()); break;
        case Collective::all_reduce_sum: all_reduce(slot, exchange.receive, MPI_SUM); break;
      }
    }
  }

  void all_gather(OperationSlot& slot, const Exchange& x) {
    const std::int64_t block = block_of(x.counts, x.displacements, x.receive.elements(), most_);
    const Block type(x.receive.type, block);
    const int* counts = slot.blocks(x.counts, block);
    // MPICH 4.0.2 ignores the displacement of a single rank that does not send in place: pass the part as the buffer.
    const std::int64_t first = size() == 1 ? x.displacements[0] : 0;
    const std::span<int> displacements = slot.take(x.displacements.size());
    std::ranges::transform(x.displacements, displacements.begin(),
                           [&](std::int64_t n) { return static_cast<int>((n - first) / block); });
    const Tensor whole = x.receive.flat(first, x.receive.elements() - first);
    const void* const mine = x.send ? x.send.data : MPI_IN_PLACE;
    watch_.check(MPI_Iallgatherv(mine, counts[rank()], type, whole.data, counts, displacements.data(), type, comm_,
                                 slot.request()),
                 slot.waiting);
  }

  void all_to_all(OperationSlot& slot, const Exchange& x) {
    const std::int64_t mine = x.counts[static_cast<std::size_t>(rank())];
    // The largest receive buffer of all ranks, so that every rank computes the same extent.
    const std::int64_t extent =
        std::max(x.send.elements(), size() * *std::max_element(x.counts.begin(), x.counts.end()));
    const std::int64_t block = block_of(x.counts, x.displacements, extent, most_);
    const Block type(x.send.type, block);
    const int* displacements = slot.blocks(x.displacements, block);
    const std::span<int> sent = slot.take(x.counts.size()), received = slot.take(x.counts.size()),
                         begins = slot.take(x.counts.size());
    std::int64_t begin = 0;
    for (std::size_t r = 0; r < sent.size(); ++r) {
      const bool own = r == static_cast<std::size_t>(rank());
      sent[r] = own ? 0 : static_cast<int>(x.counts[r] / block);
      received[r] = own ? 0 : static_cast<int>(mine / block);
      begins[r] = static_cast<int>(begin / block);
      begin += own ? 0 : mine;
    }
    watch_.check(MPI_Ialltoallv(send_buffer(x.send), sent.data(), displacements, type, receive_buffer(x.receive),
                                received.data(), begins.data(), type, comm_, slot.request()),
                 slot.waiting);
  }

  /// Send and receive sides may count in different blocks: the type signatures of a pair hold the same elements.
  void exchange_rows(OperationSlot& slot, const Exchange& x) {
    const std::int64_t sent = block_of(x.counts, x.displacements, x.send.elements(), most_);
    const std::int64_t arriving = block_of(x.arrivals, x.arrivals, x.receive.elements(), most_);
    const Block from(x.send.type, sent), to(x.receive.type, arriving);
    const int* counts = slot.blocks(x.counts, sent);
    const int* displacements = slot.blocks(x.displacements, sent);
    const int* arrivals = slot.blocks(x.arrivals, arriving);
    const std::span<int> begins = slot.take(x.arrivals.size());
    std::exclusive_scan(arrivals, arrivals + x.arrivals.size(), begins.begin(), 0);
    watch_.check(MPI_Ialltoallv(send_buffer(x.send), counts, displacements, from, receive_buffer(x.receive), arrivals,
                                begins.data(), to, comm_, slot.request()),
                 slot.waiting);
  }

  void pass_on(OperationSlot& slot, const Exchange& x) {
    constexpr int tag = 0;  // messages of a pair arrive in the order in which they are sent
    for_each_piece(x.receive ? x.receive.elements() : 0, most_, [&](std::int64_t begin, int count) {
      watch_.check(MPI_Irecv(x.receive.flat(begin, count).data, count, moved(x.receive.type), rank() - 1, tag, comm_,
                             slot.request()),
                   slot.waiting);
    });
    for_each_piece(x.send ? x.send.elements() : 0, most_, [&](std::int64_t begin, int count) {
      watch_.check(MPI_Isend(x.send.flat(begin, count).data, count, moved(x.send.type), rank() + 1, tag, comm_,
                             slot.request()),
                   slot.waiting);
    });
  }

  void all_reduce(OperationSlot& slot, const Tensor& t, MPI_Op op) {
    for_each_piece(t.elements(), most_, [&](std::int64_t begin, int count) {
      watch_.check(
          MPI_Iallreduce(MPI_IN_PLACE, t.flat(begin, count).data, count, reduced(t.type), op, comm_, slot.request()),
          slot.waiting);
    });
  }

  std::shared_ptr<MpiBackEnd> back_end_;
  MpiWatch& watch_;
  std::int64_t most_;
  RankGroup group_;
  MPI_Comm comm_;
  std::deque<HostMemory> opened_;
};

}  // namespace

Mesh mpi_mesh(MpiWatch& watch, const Ranks& ranks, Stream& stream, std::chrono::seconds timeout,
              const MpiOptions& options) {
  const auto back_end = std::make_shared<MpiBackEnd>(watch, stream, timeout, options);
  return Mesh(ranks, [&](const RankGroup& group) {
    const bool world = group.place.size == watch.size();
    return std::make_unique<MpiCommunicator>(back_end, group, world ? watch.duplicate() : watch.split(group.first));
  });
}

}  // namespace tessera
