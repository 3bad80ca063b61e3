#include "core/comm/control.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/comm/this_host.hpp"

namespace tessera {
namespace {

/// One round of MurmurHash3's 64-bit finaliser over the chain so far.
std::uint64_t chained(std::uint64_t chain, std::uint64_t word) {
  std::uint64_t z = (chain ^ word) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCDu;
  z = (z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53u;
  return z ^ (z >> 33);
}

/// A list of ranks for messages: "0, 1, 2 and 5 more".
std::string rank_list(const std::vector<int>& ranks) {
  constexpr std::size_t shown = 8;
  const std::size_t n = std::min(ranks.size(), shown);
  std::string text = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(n), ", "));
  if (ranks.size() > n) text += fmt::format(" and {} more", ranks.size() - n);
  return text;
}

using Records = std::map<std::uint64_t, std::string>;

/// Parses the lines "#12 all_gather ..." of a tail: text by sequence number.
Records parsed(const std::string& tail) {
  Records records;
  std::istringstream lines(tail);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 1 && line[0] == '#') records[std::stoull(line.substr(1))] = line.substr(line.find(' ') + 1);
  }
  return records;
}

}  // namespace

void Control::agree(const Problems& problems) {
  if (max(problems.empty() ? 0 : 1) == 0) return;
  std::string mine;
  for (const Problem& problem : problems.list()) mine += (mine.empty() ? "" : "\n") + problem.text;
  if (!problems.empty()) mine = fmt::format("{} {}", static_cast<int>(problems.list().front().code), mine);

  const std::vector<std::string> all = gather(mine), hosts = gather(this_host());
  const auto failing = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  const auto same = [](const std::vector<std::string>& texts, const std::string& one) {
    return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) { return text == one; });
  };
  const std::size_t space = failing->find(' ');
  std::string text = failing->substr(space + 1);
  const auto rank = failing - all.begin();
  const std::string& host = hosts[static_cast<std::size_t>(rank)];
  if (!same(all, *failing)) text = fmt::format("rank {}{}: {}", rank, same(hosts, host) ? "" : " (" + host + ")", text);
  throw Error(static_cast<Exit>(std::stoi(failing->substr(0, space))), text);
}

void CollectiveLog::note(const Operation& operation, const char* processes, bool alike) {
  append(entry_of(operation, processes, alike));
}

void CollectiveLog::keep(const Operation& operation, const char* processes, bool alike) {
  kept_for_replays_.push_back(entry_of(operation, processes, alike));
}

void CollectiveLog::repeat() {
  for (const Entry& entry : kept_for_replays_) append(entry);  // mutation: a_log_not_repeated
}

CollectiveLog::Entry CollectiveLog::entry_of(const Operation& operation, const char* processes, bool alike) {
  Entry entry{.sequence = 0,
              .cut = 0,
              .elements = 0,
              .buckets = std::ssize(operation.exchanges),
              .collective = operation.collective,
              .type = DType::u8,
              .group = operation.group,
              .processes = processes,
              .label = {}};
  // Counts that differ from rank to rank, and buffers that some ranks lack.
  const bool line = operation.collective == Collective::pass_on;
  const bool data = operation.collective == Collective::exchange_rows || line || !alike;
  if (!operation.exchanges.empty() && !line) entry.type = operation.exchanges.front().receive.type;
  const bool cut = operation.collective == Collective::all_gather || operation.collective == Collective::all_to_all;
  // Ranks whose places differ have written into other memory than meant.
  if (operation.direct) entry.cut = chained(entry.cut, static_cast<std::uint64_t>(operation.direct->place));
  for (const Exchange& exchange : operation.exchanges) {
    if (!line) entry.cut = chained(entry.cut, static_cast<std::uint64_t>(exchange.receive.type));
    if (data) continue;
    const std::int64_t whole[] = {cut ? 0 : exchange.receive.elements()};
    for (std::int64_t count : cut ? exchange.counts : std::span<const std::int64_t>(whole)) {
      entry.elements += count;
      entry.cut = chained(entry.cut, static_cast<std::uint64_t>(count));
    }
  }
  std::strncpy(entry.label.data(), operation.label, entry.label.size() - 1);
  return entry;
}

/// Gives an entry the next sequence number and chains its fingerprint.
void CollectiveLog::append(const Entry& without_number) {
  Entry& entry = last_[noted_ % kept] = without_number;
  entry.sequence = noted_++;
  const auto fields = {entry.sequence, entry.cut, static_cast<std::uint64_t>(entry.buckets),
                       static_cast<std::uint64_t>(entry.collective),
                       static_cast<std::uint64_t>(static_cast<std::int64_t>(entry.group))};
  for (std::uint64_t field : fields) chain_ = chained(chain_, field);
  for (const char* c = entry.processes; *c; ++c) chain_ = chained(chain_, static_cast<unsigned char>(*c));
  for (char c : entry.label) chain_ = chained(chain_, static_cast<unsigned char>(c));
}

std::string CollectiveLog::tail() const {
  std::string text;
  for (std::uint64_t i = noted_ > kept ? noted_ - kept : 0; i < noted_; ++i) {
    const Entry& e = last_[i % kept];
    text += fmt::format("#{} {} {} x {}, {} elements (cut {:08x}), group {}{}{}{}{}\n", e.sequence,
                        name_of(e.collective), e.buckets, name_of(e.type), e.elements, e.cut & 0xFFFFFFFF, e.group,
                        *e.processes ? " of " : "", e.processes, e.label[0] ? ", " : "", e.label.data());
  }
  return text;
}

void CollectiveLog::compare(Control& control) const {
  const auto mine = static_cast<std::int64_t>(chain_);
  if (control.max(mine) == ~control.max(~mine)) return;  // the greatest equals the least
  const std::vector<std::string> all = control.gather(tail());
  std::map<int, std::string> tails;
  for (const std::string& text : all) tails.emplace(static_cast<int>(tails.size()), text);
  const std::string difference = first_difference(tails);
  control.leave(difference.empty() ? fmt::format("collectives disagree, before the last {} of them", kept)
                                   : difference);
}

std::string first_difference(const std::map<int, std::string>& tails) {
  std::map<int, Records> ranks;
  Records any;
  for (const auto& [rank, tail] : tails) {
    ranks[rank] = parsed(tail);
    any.insert(ranks[rank].begin(), ranks[rank].end());
  }
  for (const auto& [sequence, first] : any) {
    std::map<std::string, std::vector<int>> callers;
    for (const auto& [rank, records] : ranks) {
      const auto found = records.find(sequence);
      if (found != records.end()) {
        callers[found->second].push_back(rank);
      } else if (records.empty() || sequence > records.rbegin()->first) {
        callers["nothing yet"].push_back(rank);
      }  // else the record is older than this rank's tail
    }
    if (callers.size() < 2) continue;
    std::string text = fmt::format("collectives disagree, first at #{}:", sequence);
    for (const auto& [what, who] : callers)
      text += fmt::format("\n  {} on rank{} {}", what, who.size() > 1 ? "s" : "", rank_list(who));
    return text;
  }
  return "";
}

}  // namespace tessera
