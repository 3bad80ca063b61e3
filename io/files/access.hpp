#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera {

/// What an errno of opening or reading a path means. Exit::file: it speaks of the path itself, where nothing is or
/// something else. Exit::environment: it speaks of this moment, user or machine (a lock, too many open files, a network
/// file system that is away). What lies there may be sound. Local.
Exit blame_of(int cause);
/// The error of such an errno: path, what could not be done, cause and advice. Local.
Error unreadable(const std::filesystem::path& path, std::string_view what, int cause);
/// Whether an errno is likely to pass by itself: an interruption, a lock, a stale handle.
bool soon_passes(int cause);
/// Makes a call that returns 0 or an errno, again as long as the errno soon_passes(), for at most two seconds. Returns
/// the last errno. Local.
int patiently(const std::function<int()>& call);

/// What is at a path, links followed. Throws Error{environment} if that cannot be known: what is not seen would be
/// taken for absent. Local.
enum class Entry { none, file, folder, other };
Entry entry_at(const std::filesystem::path& path);
/// The entries of a folder; nothing if there is no folder. Throws Error{environment} if it cannot be listed. Local.
std::optional<std::vector<std::filesystem::path>> list_folder(const std::filesystem::path& path);

}  // namespace tessera
