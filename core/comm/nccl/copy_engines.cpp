#include "core/comm/nccl/copy_engines.cuh"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace tessera {
namespace {

/// Functions of the driver, which the program is not linked with; null where it lacks them.
struct Driver {
  decltype(&cuStreamBatchMemOp) batch = find<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  decltype(&cuMemGetAddressRange) range = find<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");

  template <class F> static F find(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned least = 12000;
    const bool found = cudaGetDriverEntryPointByVersion(name, &function, least, cudaEnableDefault, &result) ==
                           cudaSuccess && result == cudaDriverEntryPointSuccess;
    return found ? reinterpret_cast<F>(function) : nullptr;
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

cudaError_t runtime(CUresult code) { return code == CUDA_SUCCESS ? cudaSuccess : cudaErrorUnknown; }

}  // namespace

/// An address as other processes can open it: an allocation, and the distance from its begin; -1: there is none.
struct CopyEngines::Exported {
  cudaIpcMemHandle_t allocation{};
  std::int64_t offset = -1;

  static Exported of(void* address) {
    Exported exported;
    CUdeviceptr base = 0;
    std::size_t size = 0;
    const auto place = reinterpret_cast<CUdeviceptr>(address);
    if (driver().range(&base, &size, place) != CUDA_SUCCESS) return exported;
    if (cudaIpcGetMemHandle(&exported.allocation, reinterpret_cast<void*>(base)) == cudaSuccess)
      exported.offset = static_cast<std::int64_t>(place - base);
    else
      cudaGetLastError();  // clears the error
    return exported;
  }
};

bool CopyEngines::supported() { return driver().batch && driver().range; }

CopyEngines::CopyEngines(const RankIn& place, cudaStream_t stream, const std::string& host, Gather gather)
    : place_(place), stream_(stream), gather_(std::move(gather)) {
  const auto size = static_cast<std::size_t>(place.size);
  std::array<char, 256> mine{};
  host.copy(mine.data(), mine.size());
  const std::vector<std::byte> hosts = gather_(std::as_bytes(std::span(mine)));
  bool usable = supported();
  for (std::size_t r = 0; r < size; ++r)
    usable = usable && std::memcmp(hosts.data() + r * mine.size(), mine.data(), mine.size()) == 0;
  std::vector<std::uint32_t> flags(2 * size + 1, 0);
  flags.back() = 1;
  const std::size_t bytes = flags.size() * sizeof flags[0];
  usable = usable && cudaMalloc(reinterpret_cast<void**>(&flags_), bytes) == cudaSuccess &&
           cudaMemcpy(flags_, flags.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess;
  if (!usable) cudaGetLastError();  // clears the error
  if (!agreed(usable)) return;
  void* const address[] = {flags_};
  if (const auto shared = share(address)) flags_of_ = shared->front();
}

CopyEngines::~CopyEngines() {
  for (const auto& [key, memory] : imported_) cudaIpcCloseMemHandle(memory);
  agreed(true);  // a rank must not free memory that another one has open
  cudaFree(flags_);
}

void CopyEngines::open(std::span<Exchange* const> exchanges) {
  if (flags_of_.empty() || exchanges.empty()) return;
  std::vector<void*> mine;
  for (const Exchange* x : exchanges) mine.push_back(x->receive.elements() > 0 ? x->receive.data : nullptr);
  std::optional<std::vector<Addresses>> shared = share(mine);
  if (!shared) return;
  for (std::size_t i = 0; i < exchanges.size(); ++i)
    exchanges[i]->peers = opened_.emplace_back(std::move((*shared)[i]));
}

CopyEngines::Addresses CopyEngines::reach(void* memory) {
  if (flags_of_.empty()) return {};
  void* const mine[] = {memory};
  const std::optional<std::vector<Addresses>> shared = share(mine);
  return shared ? shared->front() : Addresses();
}

/// The addresses of `mine`, buffer by buffer, in every rank's memory, mapped into this process; nullptr where a buffer
/// has no memory. Nothing, on all ranks, if any rank could not export or open one. Collective.
std::optional<std::vector<CopyEngines::Addresses>> CopyEngines::share(std::span<void* const> mine) {
  std::vector<Exported> exported;
  for (void* address : mine) exported.push_back(address ? Exported::of(address) : Exported{});
  const std::vector<std::byte> gathered = gather_(std::as_bytes(std::span(exported)));
  std::vector<Addresses> addresses(mine.size());
  bool found = true;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    found = found && (!mine[i] || exported[i].offset >= 0);
    for (int r = 0; r < place_.size; ++r) {
      Exported theirs;
      const std::size_t at = static_cast<std::size_t>(r) * mine.size() + i;
      std::memcpy(&theirs, gathered.data() + at * sizeof theirs, sizeof theirs);
      addresses[i].push_back(r == place_.rank ? static_cast<std::byte*>(mine[i]) : import(r, theirs));
      found = found && (theirs.offset < 0 || addresses[i].back());
    }
  }
  if (!agreed(found)) return {};
  return addresses;
}

std::byte* CopyEngines::import(int rank, const Exported& exported) {
  if (exported.offset < 0) return nullptr;
  const std::pair key(rank, std::string(exported.allocation.reserved, sizeof exported.allocation.reserved));
  auto at = imported_.find(key);
  if (at == imported_.end()) {
    void* memory = nullptr;
    if (cudaIpcOpenMemHandle(&memory, exported.allocation, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
      cudaGetLastError();  // clears the error
      return nullptr;
    }
    at = imported_.emplace(key, memory).first;
  }
  return static_cast<std::byte*>(at->second) + exported.offset;
}

/// Whether `mine` is true on all ranks. Collective.
bool CopyEngines::agreed(bool mine) const {
  const std::array answer{static_cast<std::byte>(mine)};
  const std::vector<std::byte> answers = gather_(answer);
  return std::ranges::all_of(answers, [](std::byte yes) { return yes != std::byte{}; });
}

bool CopyEngines::takes(const Operation& operation) {
  const bool known = operation.collective == Collective::all_gather || operation.collective == Collective::all_to_all;
  return known && !operation.exchanges.empty() &&
         std::ranges::none_of(operation.exchanges, [](const Exchange& x) { return x.peers.empty(); });
}

cudaError_t CopyEngines::start(const Operation& operation) const {
  cudaError_t code = meet(Moment::ready);
  for (int i = 1; i < place_.size && code == cudaSuccess; ++i)
    code = copy(operation, (place_.rank + i) % place_.size);  // so that no rank receives from two at once
  if (code == cudaSuccess) code = signal(Moment::complete);
  if (code == cudaSuccess && operation.collective == Collective::all_gather) code = copy(operation, place_.rank);
  return code == cudaSuccess ? wait(Moment::complete) : code;
}

cudaError_t CopyEngines::meet(Moment moment) const {
  const cudaError_t code = signal(moment);
  return code == cudaSuccess ? wait(moment) : code;
}

/// Copies this rank's parts into the buffers of rank `to`.
cudaError_t CopyEngines::copy(const Operation& operation, int to) const {
  const auto there = static_cast<std::size_t>(to), here = static_cast<std::size_t>(place_.rank);
  for (const Exchange& x : operation.exchanges) {
    const bool gather = operation.collective == Collective::all_gather;
    const Tensor& whole = gather ? x.receive : x.send;
    const Tensor part = gather && x.send ? x.send : whole.flat(x.displacements[gather ? here : there],
                                                               x.counts[gather ? here : there]);
    const std::int64_t before = place_.rank < to ? place_.rank : place_.rank - 1;  // parts in an all_to_all's buffer
    const std::int64_t begin = gather ? x.displacements[here] : before * x.counts[there];
    std::byte* const target = x.peers[there] + begin * static_cast<std::int64_t>(size_of(part.type));
    if (part.bytes() == 0 || target == part.data) continue;
    const auto bytes = static_cast<std::size_t>(part.bytes());
    const cudaError_t code = cudaMemcpyAsync(target, part.data, bytes, cudaMemcpyDeviceToDevice, stream_);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

/// Sets this rank's flag on every other rank, behind the copies so far.
cudaError_t CopyEngines::signal(Moment moment) const {
  const int size = place_.size, flag = static_cast<int>(moment) * size + place_.rank;
  for (int i = 1; i < size; ++i) {
    const auto there = static_cast<std::size_t>((place_.rank + i) % size);
    auto* const theirs = reinterpret_cast<std::uint32_t*>(flags_of_[there]);
    const cudaError_t code =
        cudaMemcpyAsync(theirs + flag, flags_ + 2 * size, sizeof *flags_, cudaMemcpyDeviceToDevice, stream_);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

/// Waits for the flags of all other ranks and clears them. A rank sets one again only after it has waited for the other
/// Moment, which this rank signals after it has cleared them. So every operation is alike, as a captured one must be.
cudaError_t CopyEngines::wait(Moment moment) const {
  const int size = place_.size;
  std::vector<CUstreamBatchMemOpParams> operations;
  for (const CUstreamBatchMemOpType type : {CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32})
    for (int r = 0; r < size; ++r) {
      if (r == place_.rank) continue;
      const auto flag = reinterpret_cast<CUdeviceptr>(flags_ + static_cast<int>(moment) * size + r);
      CUstreamBatchMemOpParams& operation = operations.emplace_back();
      std::memset(&operation, 0, sizeof operation);
      if (type == CU_STREAM_MEM_OP_WAIT_VALUE_32)
        operation.waitValue = {type, flag, {1}, CU_STREAM_WAIT_VALUE_EQ, 0};
      else
        operation.writeValue = {type, flag, {0}, CU_STREAM_WRITE_VALUE_DEFAULT, 0};
    }
  return runtime(driver().batch(stream_, static_cast<unsigned>(operations.size()), operations.data(), 0));
}

}  // namespace tessera
