#pragma once
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// What deck keys are called in other trainers (torchtitan, Megatron-LM, nanoGPT, llm.c, the Trainer and config.json of
/// transformers).
struct OtherName {
  const char* names;  ///< separated by spaces; "section.name" counts in that section alone
  const char* key;    ///< the key or section of a deck that means it; empty: there is none
  const char* note;   ///< with a key: how that differs, or empty; else a sentence: what there is in its place
};

/// The whole table. No name is a word of a deck's keys, unless with a section that has no such key.
std::span<const OtherName> other_names();

/// The entry of a name, whatever its case, hyphens and underscores: that of "section.name", else of the last word; null
/// if there is none.
const OtherName* find_other_name(std::string_view path);

/// The end of a message "...: unknown key" with what was probably meant: by the table above, else by edit distance;
/// empty if nothing is near.
std::string meant_by(std::string_view path);

}  // namespace tessera
