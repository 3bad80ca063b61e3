#pragma once
#include <cxxabi.h>

#include <cstdlib>
#include <string>

namespace tessera {

/// A kernel's symbol, demangled and shortened for people. Kokkos wraps a functor in several templates, which are
/// dropped: the name begins with the function that launched the kernel.
inline std::string readable_kernel(const char* symbol) {
  constexpr std::size_t longest = 110;
  int status = 0;
  char* const plain = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : symbol;
  std::free(plain);
  for (const char* word : {"(anonymous namespace)::", "tessera::"})
    for (std::size_t at; (at = name.find(word)) != std::string::npos;) name.erase(at, std::string(word).size());
  if (const std::size_t inside = name.rfind("_GLOBAL__N_"); inside != std::string::npos)
    if (const std::size_t colon = name.find("::", inside); colon != std::string::npos) name.erase(0, colon + 2);
  return name.substr(0, longest);
}

}  // namespace tessera
