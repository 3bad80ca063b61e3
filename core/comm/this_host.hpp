#pragma once
#include <unistd.h>

#include <array>
#include <string>

namespace tessera {

/// Name of this host, as messages give it. Local.
inline std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace tessera
