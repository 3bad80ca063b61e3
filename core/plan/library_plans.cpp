#include "core/plan/library_plans.hpp"

#include <fmt/format.h>

#include <sstream>

#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

using Words = LibraryChoices::Words;

std::string hex_of(const Words& words) {
  std::string text;
  for (const std::uint64_t word : words) text += hex(word);
  return text;
}

std::optional<Words> words_of(const std::string& text) {
  if (text.size() % 16 != 0 || text.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
  Words words;
  for (std::size_t i = 0; i < text.size(); i += 16) words.push_back(std::stoull(text.substr(i, 16), nullptr, 16));
  return words;
}

/// Makes the choices; called on rank 0.
AgreedPlans planned(const std::vector<Words>& work, const std::string& made_for, const std::string& stored,
                    const Chooser& choose) {
  AgreedPlans agreed;
  agreed.plans.made_for = made_for;
  LibraryChoices before;
  if (const auto known = parse_library_plans(stored); known && known->made_for == made_for)
    before = known->choices;
  else if (!stored.empty())
    agreed.outdated = known ? known->made_for : "?";
  for (const Words& piece : work) {
    const auto found = before.of.find(piece);
    const Words preferred = found == before.of.end() ? Words() : found->second;
    const Words choice = choose(piece, preferred);
    ++(found != before.of.end() && choice == preferred ? agreed.kept : agreed.chosen);
    agreed.plans.choices.of[piece] = choice;
  }
  return agreed;
}

}  // namespace

std::string to_text(const LibraryPlans& plans) {
  if (plans.choices.of.empty()) return "";
  std::string text = plans.made_for + "\n";
  for (const auto& [work, choice] : plans.choices.of) text += fmt::format("{} {}\n", hex_of(work), hex_of(choice));
  return text;
}

std::optional<LibraryPlans> parse_library_plans(const std::string& text) {
  if (!text.ends_with('\n')) return std::nullopt;
  LibraryPlans plans;
  std::istringstream lines(text);
  std::getline(lines, plans.made_for);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    const std::optional<Words> work = words_of(line.substr(0, space)), choice = words_of(line.substr(space + 1));
    if (!work || !choice || !plans.choices.of.emplace(*work, *choice).second) return std::nullopt;
  }
  return plans;
}

AgreedPlans agree_on_plans(Control& control, const std::vector<Words>& work, const std::string& made_for,
                           const std::string& stored, const Chooser& choose) {
  AgreedPlans agreed;
  Problems problems;
  if (control.rank() == 0) attempt(problems, [&] { agreed = planned(work, made_for, stored, choose); });
  control.agree(problems);
  const std::string text = control.broadcast(to_text(agreed.plans));
  if (control.rank() != 0 && !text.empty()) agreed.plans = *parse_library_plans(text);
  return agreed;
}

}  // namespace tessera
