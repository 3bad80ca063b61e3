#pragma once
#include <filesystem>
#include <string>

namespace tessera {

/// A whole file as text. Throws Error{file}.
std::string read_text_file(const std::filesystem::path& path);

/// Creates or empties the file, writes `text` and synchronises. Returns 0, or the errno of the first failure.
int write_synced(const std::filesystem::path& path, const std::string& text);

/// Replaces a file's text atomically: afterwards it holds `text`, or what it held before. Writes `<path>.tmp`,
/// synchronises and renames it. Throws Error{environment} with path and cause.
void replace_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera
