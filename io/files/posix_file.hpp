#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {

/// What moves between memory and a disk past the system's cache begins at multiples of it, here and there.
constexpr std::int64_t page_bytes = 4096;
constexpr std::int64_t worth_pages = std::int64_t{64} << 10;  ///< less goes through it

/// Writes all of `bytes` at `offset`, or where the descriptor `file` stands; takes interrupted and partial writes up
/// again. Returns the errno of what stopped it, 0 for nothing. The only loop of writes.
int write_all(int file, std::string_view bytes, std::optional<std::int64_t> offset = std::nullopt);

/// An open file of the system, read and written at offsets by any number of threads. Throws Error{file} on reading and
/// Error{environment} on writing, with path and cause; interrupted and partial transfers are taken up again.
class PosixFile {
 public:
  /// write: what is there; replace: made anew, or emptied; payload: past the system's cache, as far as it goes.
  enum class Mode { read, read_payload, write, payload, replace };
  enum class Lock { taken, refused, unknown };  ///< refused: another has it; unknown: the file system keeps none
  PosixFile(const std::filesystem::path& path, Mode mode);
  /// A file that nobody had before; nothing where somebody has.
  static std::optional<PosixFile> exclusive(const std::filesystem::path& path);
  PosixFile(PosixFile&& other) noexcept
      : path_(std::move(other.path_)),
        file_(std::exchange(other.file_, -1)),
        direct_(std::exchange(other.direct_, -1)) {}
  PosixFile& operator=(PosixFile&&) = delete;
  ~PosixFile();

  std::int64_t size() const;
  bool named() const noexcept;               ///< whether its path still leads to it
  std::chrono::nanoseconds changed() const;  ///< when its content or time was set, by the file system's clock
  void touch() noexcept;                     ///< sets that time to now
  void read(std::int64_t offset, void* to, std::int64_t bytes) const;
  /// Bytes [begin, end) and the rest of their pages to `room`, which begins with a page and has room for them. Payload
  /// goes past the system's cache, which spares the processor a copy: for bytes that nobody reads again, and twice as
  /// fast into LargePages.
  void read_pages(std::int64_t begin, std::int64_t end, std::span<std::byte> room) const;
  /// From 512 KiB on, it sets out for the disk at once, not only at sync(): disks are slow with many small pieces.
  /// Payload that is as far behind a page's beginning in memory as in the file goes past the system's cache, whole
  /// pages of it, which spares the processor a copy and the system its memory.
  void write(std::int64_t offset, const void* from, std::int64_t bytes);
  /// What anybody wrote before `end` and no such call has sent yet sets out for the disk, from 512 KiB on.
  void send_up_to(std::int64_t end) noexcept;
  /// Reserves the first `bytes`, so that no later write to them finds the disk full. The file's size stays.
  void reserve(std::int64_t bytes);
  /// Gives back what was reserved beyond the file's end.
  void keep_size();
  void sync();
  /// Takes the file's or folder's own lock, which the system drops with this object and when the process ends.
  Lock lock() noexcept;
  /// Whether the file system keeps locks of a file's parts, which MPI-IO takes: 0, or the errno with which it refuses.
  int refuses_locks_of_parts() noexcept;

 private:
  PosixFile(const std::filesystem::path& path, int file) : path_(path), file_(file) {}
  void put(int file, std::int64_t offset, const std::byte* from, std::int64_t bytes);

  std::filesystem::path path_;
  int file_;
  std::int64_t sent_ = 0;  ///< bytes: send_up_to()
  int direct_ = -1;        ///< past the cache; -1: not asked for, or the file system knows no such thing
};

/// Makes the entries of a folder last.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera
