#include "io/checkpoint/room.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include "io/checkpoint/folder.hpp"
#include "io/files/access.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t unwritten = std::int64_t{1} << 20;  // bytes for structure, deck and manifest of a new one

std::int64_t bytes_of(std::span<const StateTensor> tensors) {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += tensor.shape.elements() * size_of(tensor.type) + 512;
  return bytes;
}

/// Bytes that this user may write on the disk of a folder, or of the nearest one above it that is there. Nothing if the
/// file system does not tell.
std::optional<std::int64_t> free_at(fs::path folder) {
  folder = fs::absolute(folder).lexically_normal();
  while (folder.has_relative_path() && entry_at(folder) != Entry::folder) folder = folder.parent_path();
  struct ::statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
  return static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
}

/// "WHAT needs 1061 KB, and 921 KB are free in DIR": in the largest unit in which the numbers differ, and nothing that
/// is free rounds to 0.
std::string lacking(const std::string& what, std::int64_t need, std::int64_t free, const fs::path& folder) {
  struct Unit {
    const char* name;
    std::int64_t bytes;
  };
  constexpr Unit units[] = {{"MB", 1'000'000}, {"KB", 1000}, {"bytes", 1}};
  const auto rounded = [](std::int64_t bytes, const Unit& unit) { return (bytes + unit.bytes / 2) / unit.bytes; };
  const auto* const unit = std::ranges::find_if(units, [&](const Unit& one) {
    return rounded(need, one) != rounded(free, one) && (free == 0 || rounded(free, one) > 0);
  });
  return fmt::format("{} needs {} {}, and {} {} are free in {}; make room", what, rounded(need, *unit), unit->name,
                     rounded(free, *unit), unit->name, folder.string());
}

/// Bytes of the checkpoints that the run goes on from and retention may remove, the newest first; 0 for those that
/// keep_every keeps.
std::vector<std::int64_t> removable(const PlannedSaves& saves) {
  std::vector<std::int64_t> bytes;
  for (const StepFolder& folder : step_folders(saves.run)) {
    if (folder.step > saves.kept) continue;
    const bool stays = saves.keep_every > 0 && folder.step % saves.keep_every == 0;
    bytes.push_back(stays ? 0 : bytes_below(folder.path));
  }
  std::ranges::reverse(bytes);
  return bytes;
}

/// How many saves fall due after `step`, up to the last.
std::int64_t count_of(const PlannedSaves& saves) {
  const std::int64_t between = saves.every > 0 ? (saves.last - 1) / saves.every - saves.step / saves.every : 0;
  return std::max<std::int64_t>(between, 0) + 1;
}

std::int64_t next_of(const PlannedSaves& saves) {
  return saves.every > 0 ? std::min(saves.last, (saves.step / saves.every + 1) * saves.every) : saves.last;
}

/// Warns if the checkpoints that keep_every collects by the end have no room beside the others.
void warn_of_collection(const PlannedSaves& saves, std::int64_t one, std::int64_t free) {
  if (saves.keep_every == 0 || saves.every == 0) return;
  const std::int64_t unit = std::lcm(saves.every, saves.keep_every);
  const std::int64_t collected = saves.last / unit - saves.step / unit, all = collected + saves.keep_last + 1;
  if (collected == 0 || all <= (free - unwritten) / one) return;
  const std::string what = fmt::format("checkpoint.keep_every {}: keeping {} checkpoints by step {}", saves.keep_every,
                                       collected, saves.last);
  fmt::print(stderr, "{} before then, or keep fewer (allowed)\n",
             lacking(what, all * one + unwritten, free, saves.run));
}

}  // namespace

void refuse_if_too_big(const fs::path& folder, std::span<const StateTensor> tensors, const std::string& what) {
  const std::int64_t need = bytes_of(tensors) + unwritten;
  const std::optional<std::int64_t> free = free_at(folder);
  if (free && *free < need) throw Error(Exit::environment, lacking(what, need, *free, folder));
}

Problems problems_with_room(const PlannedSaves& saves, std::span<const StateTensor> tensors) {
  Problems problems;
  const std::optional<std::int64_t> free = free_at(saves.run);
  if (!free || saves.step >= saves.last) return problems;
  const std::int64_t one = bytes_of(tensors) + saves.beside;
  const std::vector<std::int64_t> older = removable(saves);
  const std::int64_t most = std::min(count_of(saves), saves.keep_last + 1);
  std::int64_t freed = 0;  // by the saves before, which leave the newest keep_last, themselves among them
  for (std::int64_t save = 1; save <= most; ++save) {
    const std::int64_t left = save == 1 ? std::ssize(older) : saves.keep_last - save + 1;
    freed = std::accumulate(older.begin() + std::min(left, std::ssize(older)), older.end(), std::int64_t{0});
    const std::int64_t need = save * one + unwritten - freed;
    if (need <= *free) continue;
    if (save == 1)
      problems.add(Exit::environment, lacking(fmt::format("the checkpoint of step {}", next_of(saves)), need, *free,
                                              saves.run));
    else
      problems.add(Exit::environment,
                   lacking(fmt::format("checkpoint.keep_last {}: writing a checkpoint beside {} of this start",
                                       saves.keep_last, save == 2 ? "another" : fmt::format("{} others", save - 1)),
                           need, *free, saves.run) +
                       ", or keep fewer");
    return problems;
  }
  warn_of_collection(saves, one, *free + freed);
  return problems;
}

}  // namespace tessera
