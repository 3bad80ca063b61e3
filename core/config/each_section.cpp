#include "core/config/each_section.hpp"

namespace tessera {
namespace {

/// Makes every optional section.
class Maker : public ConfigVisitor<Maker> {
 public:
  template <class T, class Rule> void value(const Key&, T&, const Rule&) {}
  template <class S> S* enter(const Section&, S& member) { return &member; }
  template <class S> S* enter(const Section&, std::optional<S>& member) { return &member.emplace(); }
};

}  // namespace

const RunConfig& every_section() {
  static const RunConfig config = [] {
    RunConfig made;
    Maker maker;
    RunConfig::visit(made, maker);
    return made;
  }();
  return config;
}

}  // namespace tessera
