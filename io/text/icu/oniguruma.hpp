#pragma once
#include <string>

namespace tessera {

/// A regular expression in Oniguruma's syntax (Ruby's, as the `tokenizers` library compiles it) as one for ICU that
/// matches the same. Names of properties with "=", which Oniguruma lacks, stay as they are. Throws Error{file} that
/// names what the two libraries read otherwise. What neither can read is left for ICU to refuse.
std::string pattern_for_icu(const std::string& expression);

}  // namespace tessera
