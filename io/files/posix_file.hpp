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

/// Alignment of direct I/O (O_DIRECT, past the page cache), in memory and in the file.
constexpr std::int64_t page_bytes = 4096;
constexpr std::int64_t worth_pages = std::int64_t{64} << 10;  ///< smaller transfers go through the page cache

/// Writes all of `bytes` at `offset`, or at the position of the descriptor `file`; continues after interrupted and
/// partial writes. Returns 0, or the errno of a failure.
int write_all(int file, std::string_view bytes, std::optional<std::int64_t> offset = std::nullopt);
/// The same in which no injected fault strikes: for messages, those of injected faults among them. These are the only
/// loops of writes.
int write_plainly(int file, std::string_view bytes);

/// An open file, read and written at offsets, also by several threads at once. Continues interrupted and partial
/// transfers. Throws, with path and cause, what unreadable() says if reading fails, Error{file} if the file is too
/// short, Error{environment} if writing fails. Local.
class PosixFile {
 public:
  /// write: an existing file; replace: created, or emptied; read_payload and payload: by direct I/O where possible.
  enum class Mode { read, read_payload, write, payload, replace };
  enum class Lock { taken, refused, unknown };  ///< refused: another holds it; unknown: the file system has no locks
  PosixFile(const std::filesystem::path& path, Mode mode);
  /// Creates the file; empty if it exists already.
  static std::optional<PosixFile> exclusive(const std::filesystem::path& path);
  PosixFile(PosixFile&& other) noexcept
      : path_(std::move(other.path_)),
        file_(std::exchange(other.file_, -1)),
        direct_(std::exchange(other.direct_, -1)) {}
  PosixFile& operator=(PosixFile&&) = delete;
  ~PosixFile();

  std::int64_t size() const;
  bool named() const noexcept;               ///< whether its path still names this file
  std::chrono::nanoseconds changed() const;  ///< modification time, by the file system's clock
  void touch() noexcept;                     ///< sets the modification time to now
  void read(std::int64_t offset, void* to, std::int64_t bytes) const;
  /// Reads the pages of bytes [begin, end) into `room`, which must be page-aligned and large enough for whole pages;
  /// the page of `begin` lies first. Mode::read_payload uses direct I/O, which saves the processor a copy: for bytes
  /// that are read once, and twice as fast into LargePages.
  void read_pages(std::int64_t begin, std::int64_t end, std::span<std::byte> room) const;
  /// Mode::payload uses direct I/O for whole pages if `from` and `offset` have the same offset within a page. That
  /// saves the processor a copy and the system its memory. Other writes of 512 KiB or more begin write-back at once
  /// rather than at sync(), since disks are slow with many small pieces.
  void write(std::int64_t offset, const void* from, std::int64_t bytes);
  /// Starts writing to the disk, without waiting, what any process wrote before `end` and no earlier call has sent,
  /// once that is 512 KiB or more.
  void send_up_to(std::int64_t end) noexcept;
  /// Reserves disk space for the first `bytes`, so that no later write to them finds the disk full. Keeps the file's
  /// size.
  void reserve(std::int64_t bytes);
  /// Releases the space that was reserved beyond the file's end.
  void keep_size();
  void sync();
  /// Takes the lock (flock) of the file or folder without waiting. The system drops it with this object and when the
  /// process ends.
  Lock lock() noexcept;
  /// Whether the file system refuses byte-range locks (fcntl), which MPI-IO takes: 0 if not, else the errno.
  int refuses_locks_of_parts() noexcept;

 private:
  PosixFile(const std::filesystem::path& path, int file) : path_(path), file_(file) {}
  void put(int file, std::int64_t offset, const std::byte* from, std::int64_t bytes);

  std::filesystem::path path_;
  int file_;
  int direct_ = -1;        ///< descriptor for direct I/O; -1: not asked for, or not supported by the file system
  std::int64_t sent_ = 0;  ///< bytes: send_up_to()
};

/// Synchronises a folder, so that its entries (new files, renames) survive a crash.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera
