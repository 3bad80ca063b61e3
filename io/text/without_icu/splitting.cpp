#include "io/text/splitting.hpp"

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse() {
  throw Error(Exit::environment,
              "this program was built without ICU, which a tokenizer needs: install libicu-dev and build again");
}

}  // namespace

struct Splitter::Expression {};

std::string unicode_library() { return ""; }
std::size_t broken_utf8(std::string_view) { refuse(); }
std::string composed(std::string_view) { refuse(); }
Splitter::Splitter(const std::string&, Between between) : between_(between) { refuse(); }
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
std::vector<std::string_view> Splitter::pieces(std::string_view) const { refuse(); }

}  // namespace tessera
