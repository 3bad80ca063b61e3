#include "io/checkpoint/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "kernels/base/error.hpp"

namespace tessera {

std::string sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    throw Error(Exit::environment, "libcrypto has no SHA-256: its configuration (openssl.cnf) forbids it");
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace tessera
