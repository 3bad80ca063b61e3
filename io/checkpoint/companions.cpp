#include "io/checkpoint/companions.hpp"

#include <utility>

#include "io/files/text_file.hpp"

namespace tessera {

std::optional<std::string> companion_in(const std::filesystem::path& folder, const char* name) {
  std::error_code absent;
  if (!std::filesystem::exists(folder / name, absent)) return std::nullopt;
  return read_text_file(folder / name);
}

Companions companions_in(const std::filesystem::path& folder) {
  Companions found;
  for (const char* name : companion_files)
    if (auto bytes = companion_in(folder, name)) found.emplace(name, std::move(*bytes));
  return found;
}

std::size_t bytes_of(const Companions& companions) {
  std::size_t bytes = 0;
  for (const auto& [name, text] : companions) bytes += text.size();
  return bytes;
}

}  // namespace tessera
