#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera {

/// A JSON object in a file of another program; `text` is what the file holds. Throws Error{file} with line, column and
/// what stands there if it is none: NaN and Infinity, which Python writes, are no JSON.
nlohmann::ordered_json json_object(const std::string& text, const std::filesystem::path& path);
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

}  // namespace tessera
