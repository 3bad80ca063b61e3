#pragma once
#include <filesystem>
#include <string>

namespace tessera {

/// A whole file as text. Throws as PosixFile does.
std::string read_text_file(const std::filesystem::path& path);

/// Creates or empties the file, writes `text` and synchronises. Returns 0, or the errno of the first failure.
int write_synced(const std::filesystem::path& path, const std::string& text);

/// Throws Error{usage} if a file is there, not empty, and does not begin as what is to be written there: it is another.
void refuse_other_file(const std::string& option, const std::filesystem::path& path, const std::string& beginning);

/// Replaces a file's text atomically: afterwards it holds `text`, or what it held before. Writes `<path>.tmp`,
/// synchronises and renames it. Throws Error{environment} with path and cause.
void replace_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera
