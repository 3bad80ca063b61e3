#include "io/data/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "io/files/posix_file.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// A mapped file, for the handler of bus errors, which the system raises where a file has been cut short since.
struct Mapping {
  std::atomic<const std::byte*> begin{nullptr};  ///< null: unmapped again
  std::size_t bytes = 0;
  std::string complaint;
  Mapping* next = nullptr;
};
std::atomic<Mapping*> mappings{nullptr};
struct ::sigaction handler_before;

/// Ends the process with the file's name. The signal comes from an access to the mapping, which holds no lock and is in
/// no library. Another bus error goes to the handler that was there before.
void name_cut_file(int signal, siginfo_t* about, void*) {
  const auto* const at = static_cast<const std::byte*>(about->si_addr);
  for (const Mapping* one = mappings.load(); one; one = one->next)
    if (const std::byte* const begin = one->begin.load(); begin && at >= begin && at < begin + one->bytes) {
      write_all(STDERR_FILENO, one->complaint);
      ::_exit(static_cast<int>(Exit::file));
    }
  ::sigaction(signal, &handler_before, nullptr);  // the access is made again, and fails again
}

void watch(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  [[maybe_unused]] static const int once = [] {
    struct ::sigaction action {};
    action.sa_sigaction = name_cut_file;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, &action, &handler_before);
  }();
  auto* const one = new Mapping;  // kept for good, since the handler may read it at any time
  one->begin = bytes.data();
  one->bytes = bytes.size();
  one->complaint = path.string() + ": was cut short while it was in use: files of a run must stay as they are; the run "
                                   "goes on from its last checkpoint once the file is whole\n";
  one->next = mappings.load();
  while (!mappings.compare_exchange_weak(one->next, one)) {}
}

void unwatch(const std::byte* begin) {
  for (Mapping* one = mappings.load(); one; one = one->next)
    if (one->begin.load() == begin) one->begin = nullptr;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](int cause) {
    throw Error(Exit::file, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(cause)));
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(errno);
  struct ::stat about {};
  int cause = ::fstat(file, &about) == 0 ? 0 : errno;
  if (cause == 0 && !S_ISREG(about.st_mode)) cause = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
  if (cause == 0 && about.st_size > 0) {  // an empty file has nothing to map
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED)
      cause = errno;
    else
      bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(about.st_size)};
  }
  ::close(file);
  if (cause != 0) fail(cause);
  if (!bytes_.empty()) watch(bytes_, path);
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  unwatch(bytes_.data());
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tessera
