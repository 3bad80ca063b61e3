#pragma once
#include <string>
#include <string_view>

namespace tessera {

/// The SHA-256 (FIPS 180-4) of bytes, as 64 lower-case hex digits.
std::string sha256(std::string_view bytes);

}  // namespace tessera
