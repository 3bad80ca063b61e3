#pragma once
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "core/config/rule.hpp"

namespace tessera {

/// The kind of a key's default: a value, none (the key is required), or filled by derive().
enum class Standard { value, none, derived };

/// One key, as a struct's visit() declares it.
struct Key {
  std::string path;  ///< "model.moe.experts"
  const char* name;  ///< "experts"
  Standard standard;
  Restart restart;
  const char* how;  ///< how derive() fills it, in words; empty unless Standard::derived
  const char* help;
};

struct Section {
  std::string path;
  const char* name;
  const char* help;
};

/// A section's struct, or null where an optional one is absent.
template <class S> S* present(S& section) { return &section; }
template <class S> S* present(std::optional<S>& section) { return section ? &*section : nullptr; }
template <class S> const S* present(const std::optional<S>& section) { return section ? &*section : nullptr; }

/// False for a derived key that is still open.
template <class T> bool filled(const T&) { return true; }
template <class T> bool filled(const Derived<T>& member) { return member.known(); }

/// Type of a key's value: T of Derived<T>.
template <class T> struct ValueOf { using type = T; };
template <class T> struct ValueOf<Derived<T>> { using type = T; };

/// Base of every visitor of the config: walks keys and sections and keeps the path. `Visitor` derives from it and must
/// have
///   value(key, member, rule)    member: T, or Derived<T> with Standard::derived; const where the config is
/// `Visitor` may also have
///   enter(section, member)      returns the struct to walk through (member: S, perhaps optional), or null to skip it;
///   leave()                     called after each section that was entered.
template <class Visitor> class ConfigVisitor {
 public:
  template <class T, class Rule>
  void key(const char* name, T& member, const Rule& rule, Restart restart, const char* help) {
    self().value(Key{prefix_ + name, name, Standard::value, restart, "", help}, member, rule);
  }
  template <class T, class Rule>
  void required(const char* name, T& member, const Rule& rule, Restart restart, const char* help) {
    self().value(Key{prefix_ + name, name, Standard::none, restart, "", help}, member, rule);
  }
  template <class T, class Rule>
  void derived(const char* name, T& member, const Rule& rule, Restart restart, const char* how, const char* help) {
    self().value(Key{prefix_ + name, name, Standard::derived, restart, how, help}, member, rule);
  }
  template <class S> void section(const char* name, S& member, const char* help) {
    const Section section{prefix_ + name, name, help};
    auto* const inside = self().enter(section, member);
    if (!inside) return;
    const std::string outer = std::exchange(prefix_, section.path + ".");
    inside->visit(*inside, self());
    self().leave();
    prefix_ = outer;
  }

  template <class S> auto* enter(const Section&, S& member) { return present(member); }
  void leave() {}

 protected:
  /// Visits the keys of a structured value (structure.hpp), as those below `path`.
  template <class S> void walk(const std::string& path, S& value) {
    const std::string outer = std::exchange(prefix_, path + ".");
    std::remove_const_t<S>::visit(value, self());
    prefix_ = outer;
  }

 private:
  Visitor& self() { return static_cast<Visitor&>(*this); }

  std::string prefix_;
};

}  // namespace tessera
