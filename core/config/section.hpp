#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/config/rule.hpp"

/// A section of the deck is a struct in a file pair of core/config/sections. Members are named like its keys, and
/// visit() is their only list. visit() calls these functions of a visitor, which derives from ConfigVisitor
/// (visitor.hpp):
///   key(name, member, rule, restart, help)            the member's initial value is the default,
///   required(name, member, rule, restart, help)       a deck must give it,
///   derived(name, member, rule, restart, how, help)   derive() fills it as `how` says,
///   section(name, struct or optional struct, help).
///
/// A section has those of these functions that it needs; config.hpp, effects.hpp and other_names.hpp join what all say,
/// in the order of the deck:
///   void derive(const RunConfig&)                              fills derived keys that the deck left open,
///   void check(const RunConfig&, std::vector<Finding>&) const  tells what contradicts its keys,
///   void advise(const RunConfig&, std::vector<Finding>&) const tells which of its values are of no use beside others,
///   static std::span<const Effect> effects()                   its keys that others can leave without effect,
///   static std::span<const OtherName> other_names()            its keys as other trainers call them.
namespace tessera {

struct RunConfig;

/// One message about a deck, with the keys that it is about; the first is the one to change.
struct Finding {
  std::vector<std::string> keys;
  std::string text;
};

/// When a key matters. What no run could mean is refused, by check().
struct Effect {
  const char* key;      ///< a key, or a section for all of its keys
  const char* decides;  ///< the key that decides
  const char* only;     ///< the end of "has an effect only ..."
  bool (*matters)(const RunConfig&);
};

/// What deck keys are called in other trainers (torchtitan, Megatron-LM, nanoGPT, llm.c, the Trainer and config.json of
/// transformers).
struct OtherName {
  const char* names;  ///< separated by spaces; "section.name" counts in that section alone
  const char* key;    ///< the key or section of a deck that means it; empty: there is none
  const char* note;   ///< with a key: how that differs, or empty; else a sentence: what there is in its place
};

}  // namespace tessera
