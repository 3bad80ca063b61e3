#include <string>
#include <vector>

#include "core/config/value.hpp"
#include "core/config/visitor.hpp"
#include "io/deck/deck.hpp"

namespace tessera {
namespace {

class Writer : public ConfigVisitor<Writer> {
 public:
  explicit Writer(const Provenance& provenance) : provenance_(provenance) {}

  std::string text;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (!filled(member)) return;
    for (const std::string& header : headers_) text += header;
    headers_.clear();
    text += indent_ + key.name + ": " + deck_text(member);
    const auto origin = provenance_.origins.find(key.path);
    if (origin != provenance_.origins.end()) text += "  # " + from(origin->second);
    text += "\n";
  }
  template <class S> auto* enter(const Section& section, const S& member) {
    auto* const inside = present(member);
    if (inside) {
      headers_.push_back(indent_ + section.name + ":\n");
      indent_ += "  ";
    }
    return inside;
  }
  void leave() {
    if (!headers_.empty()) headers_.pop_back();
    indent_.resize(indent_.size() - 2);
  }

 private:
  /// Text of an origin, with its place if that is in another deck.
  static std::string from(const Provenance::Origin& origin) {
    return std::string(name_of(origin.source)) + (origin.source == Source::base ? " " + origin.where : "");
  }

  const Provenance& provenance_;
  std::string indent_;
  std::vector<std::string> headers_;  ///< of open sections without a value so far: a deck has none without keys
};

}  // namespace

std::string resolved_text(const Deck& deck) {
  Writer writer(deck.provenance);
  RunConfig::visit(deck.config, writer);
  return writer.text;
}

}  // namespace tessera
