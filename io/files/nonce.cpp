#include "io/files/nonce.hpp"

#include <fmt/format.h>

#include <random>

namespace tessera {

std::string nonce() { return fmt::format("{:0{}x}", std::random_device()(), nonce_digits); }

}  // namespace tessera
