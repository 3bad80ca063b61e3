#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera {

/// Why a file is no text to train on, and what to do about it. It has a known binary or compressed format by its first
/// bytes, or text in another encoding than UTF-8. Or it has bytes that are no text (a NUL, or more than 1% that are not
/// UTF-8). Empty for UTF-8 text, with a byte order mark or without. Looks beside the file for the index of Megatron.
/// Local.
std::string why_no_text(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// What such a file is: the same without the remedy. Empty for UTF-8 text. Local.
std::string what_instead_of_text(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace tessera
