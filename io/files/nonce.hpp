#pragma once
#include <string>

namespace tessera {

/// Eight random hex digits: names that no other process has chosen. Every call gives others.
std::string nonce();
inline constexpr int nonce_digits = 8;

}  // namespace tessera
