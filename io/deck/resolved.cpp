#include "core/config/value.hpp"
#include "io/deck/deck.hpp"

namespace tessera {
namespace {

class Writer {
 public:
  Writer(std::string& out, const Provenance& provenance, std::string prefix, std::string indent)
      : out_(out), provenance_(provenance), prefix_(std::move(prefix)), indent_(std::move(indent)) {}

  template <class T, class Rule> void key(const char* name, const T& member, const Rule&, Restart, const char*) {
    line(name, deck_text(member));
  }
  template <class T, class Rule> void required(const char* name, const T& member, const Rule&, Restart, const char*) {
    line(name, deck_text(member));
  }
  template <class T, class Rule>
  void derived(const char* name, const Derived<T>& member, const Rule&, Restart, const char*, const char*) {
    if (member.known()) line(name, deck_text(member));
  }
  template <class S> void section(const char* name, const S& member, const char*) {
    out_ += indent_ + name + ":\n";
    Writer inside(out_, provenance_, prefix_ + name + ".", indent_ + "  ");
    S::visit(member, inside);
  }
  template <class S> void section(const char* name, const std::optional<S>& member, const char* help) {
    if (member) section(name, *member, help);
  }

 private:
  void line(const char* name, const std::string& value) {
    const auto origin = provenance_.origins.find(prefix_ + name);
    out_ += indent_ + name + ": " + value;
    if (origin != provenance_.origins.end()) out_ += "  # " + std::string(name_of(origin->second.source));
    out_ += "\n";
  }

  std::string& out_;
  const Provenance& provenance_;
  std::string prefix_, indent_;
};

}  // namespace

std::string resolved_text(const Deck& deck) {
  std::string text;
  Writer writer(text, deck.provenance, "", "");
  RunConfig::visit(deck.config, writer);
  return text;
}

}  // namespace tessera
