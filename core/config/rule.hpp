#pragma once
#include <concepts>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {

/// What a resumed run may do with a key.
enum class Restart {
  fixed,       ///< keep it
  on_request,  ///< keep it, unless `train --allow-change` names it
  contents,    ///< change it, a path; the contents behind it must stay, unless `train --allow-change` names it
  told,        ///< change it, and be told of it, since it changes what is computed or evaluated
  told_of_sums,  ///< change it, and be told of it where it changes the order in which gradients are summed
  may_change,  ///< change it
};
/// Whether the key's value must stay, unless it is asked for.
constexpr bool must_keep(Restart restart) { return restart == Restart::fixed || restart == Restart::on_request; }

/// The range of numbers that a key accepts.
struct Range {
  double low = 0, high = 0;
  bool includes_low = true, includes_high = true;

  constexpr bool contains(double x) const {
    return (includes_low ? x >= low : x > low) && (includes_high ? x <= high : x < high);
  }
  /// "1 to 8", ">= 1", "> 0", "[0, 1)".
  std::string text() const;
};
constexpr Range at_least(double low) { return {low, std::numeric_limits<double>::infinity(), true, true}; }
constexpr Range from_to(double low, double high) { return {low, high, true, true}; }
constexpr Range from_below(double low, double high) { return {low, high, true, false}; }
constexpr Range above_to(double low, double high) { return {low, high, false, true}; }

/// Rule of a boolean or a choice: the member's type lists the allowed names.
struct OneOf {};

/// The text that a key accepts. A list of texts may be empty only with line_or_empty.
enum class Text { any, line, line_or_empty };

/// A value that derive() fills if the deck leaves it open; reading an open one throws Error{internal}.
template <class T> class Derived {
 public:
  Derived() = default;
  template <std::convertible_to<T> From>
    requires(!std::same_as<std::remove_cvref_t<From>, Derived>)
  Derived(From&& value) : value_(std::forward<From>(value)), known_(true) {}

  bool known() const { return known_; }
  const T& get() const {
    if (!known_) throw Error(Exit::internal, "a derived key was read before derive()");
    return value_;
  }
  operator const T&() const { return get(); }
  /// Sets the value if it is open; a value from the deck stays.
  void fill(T value) {
    if (!known_) *this = Derived(std::move(value));
  }
  /// A template, so that a plain value on the other side does not convert to Derived: this side converts to T.
  template <std::same_as<Derived> Other> bool operator==(const Other& other) const {
    return known_ == other.known_ && value_ == other.value_;
  }

 private:
  T value_{};
  bool known_ = false;
};

}  // namespace tessera
