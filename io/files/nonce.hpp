#pragma once
#include <string>

namespace tessera {

/// Eight random hex digits, new ones at every call, for names that no other process uses.
std::string nonce();
inline constexpr int nonce_digits = 8;

}  // namespace tessera
