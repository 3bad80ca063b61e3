#pragma once
#include <filesystem>
#include <string>

namespace tessera {

/// A whole file as text. Throws Error{file}.
std::string read_text_file(const std::filesystem::path& path);

/// Makes the file, or empties it, writes `text` and synchronises; returns the errno of the first failure, 0 for none.
int write_synced(const std::filesystem::path& path, const std::string& text);

/// The atomic write of a text: afterwards the file holds `text`, or what it held before. Written as `<path>.tmp`,
/// synchronised, renamed. Throws Error{environment} with path and cause.
void replace_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace tessera
