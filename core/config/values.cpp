#include "core/config/values.hpp"

#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {
namespace {

class Collector : public ConfigVisitor<Collector> {
 public:
  std::map<std::string, std::string> values;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (filled(member)) values[key.path] = deck_text(member);
  }
};

}  // namespace

std::map<std::string, std::string> values_of(const RunConfig& config) {
  Collector collector;
  RunConfig::visit(config, collector);
  return std::move(collector.values);
}

}  // namespace tessera
