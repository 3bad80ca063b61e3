#pragma once
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Exit codes of the program; scripts rely on them.
enum class Exit : int {
  ok = 0, internal = 1, usage = 2, deck = 3, environment = 4, file = 5, numerical = 6, communication = 7,
  machine = 8, stopped = 75
};

/// A failure that ends the run. Between two collectives only Control::agree may throw it, since a rank that throws
/// alone leaves the others waiting.
class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& what) : std::runtime_error(what), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

/// One refusal: what is wrong, where, what is allowed, what to do.
struct Problem {
  Exit code = Exit::internal;
  std::string text;
};

/// All refusals of one phase, collected to be reported together, and to be agreed on between ranks (Control::agree).
class Problems {
 public:
  void add(Exit code, std::string text) { list_.push_back({code, std::move(text)}); }
  void add(const Problems& more) { list_.insert(list_.end(), more.list_.begin(), more.list_.end()); }
  bool empty() const { return list_.empty(); }
  const std::vector<Problem>& list() const { return list_; }
  /// Throws one Error with every text, a line each, and the code of the first; returns if there are none.
  void raise() const;

 private:
  std::vector<Problem> list_;
};

/// Throws Error{internal}: a kernel was called with shapes or types that it does not take.
[[noreturn]] void refuse(const char* kernel, const char* rule);
constexpr void require(bool holds, const char* kernel, const char* rule) {
  if (!holds) refuse(kernel, rule);
}

}  // namespace tessera
