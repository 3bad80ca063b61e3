#pragma once
#include <concepts>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {

/// What a resumed run may do with a key: keep it, change it where `train --allow-change` names it, or change it.
enum class Restart { fixed, on_request, may_change };

/// The numbers that a key takes.
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

/// A boolean, or a value with a table of names: the type lists what is allowed.
struct OneOf {};

/// The text that a key takes; a list of texts may be empty where line_or_empty says so.
enum class Text { any, line, line_or_empty };

/// A value that derive() fills when the deck leaves it out; reading one that is still open throws Error{internal}.
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
  /// Sets what the deck left open, and leaves alone what it gave.
  void fill(T value) {
    if (!known_) *this = Derived(std::move(value));
  }
  /// A template, so that a comparison with a plain value converts this side instead.
  template <std::same_as<Derived> Other> bool operator==(const Other& other) const {
    return known_ == other.known_ && value_ == other.value_;
  }

 private:
  T value_{};
  bool known_ = false;
};

}  // namespace tessera
