#include "io/text/splitting.hpp"

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse() {
  throw Error(Exit::environment,
              "this program was built without ICU, which a tokenizer needs: install libicu-dev and build again");
}

}  // namespace

struct Pattern::Expression {};

std::string unicode_library() { return ""; }
std::size_t broken_utf8(std::string_view) { refuse(); }
std::string normalized(NormalForm, std::string_view) { refuse(); }
std::string lower_case(std::string_view) { refuse(); }
std::size_t spaces_at_begin(std::string_view) { refuse(); }
std::size_t spaces_at_end(std::string_view) { refuse(); }
bool word_at_begin(std::string_view) { refuse(); }
bool word_at_end(std::string_view) { refuse(); }
std::string literal(std::string_view) { refuse(); }
Pattern::Pattern(const std::string&) { refuse(); }
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
std::vector<TextStretch> Pattern::stretches(std::string_view) const { refuse(); }

}  // namespace tessera
