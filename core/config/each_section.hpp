#pragma once
#include <optional>

#include "core/config/config.hpp"
#include "core/config/visitor.hpp"

namespace tessera {

/// Visitor that calls a function with the struct of each section that is there.
template <class F> class SectionVisitor : public ConfigVisitor<SectionVisitor<F>> {
 public:
  explicit SectionVisitor(const F& call) : call_(call) {}

  template <class T, class Rule> void value(const Key&, T&, const Rule&) {}
  template <class S> auto* enter(const Section&, S& member) {
    auto* const inside = present(member);
    if (inside) call_(*inside);
    return inside;
  }

 private:
  const F& call_;
};

/// Calls `call` with `config` itself, then with each of its sections' structs, in the order of the deck, a section
/// before those within it. Optional sections that are absent are left out.
template <class Config, class F> void each_section(Config& config, const F& call) {
  call(config);
  SectionVisitor visitor(call);
  RunConfig::visit(config, visitor);
}

/// The defaults of every section, the optional ones too.
const RunConfig& every_section();

}  // namespace tessera
