#include "app/cli/hosts.hpp"

#include <gnu/libc-version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/build.hpp"
#include "kernels/base/product_isa.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// "2-5, 7", of numbers in rising order.
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A line for each host whose clock is far from rank 0's.
std::vector<std::string> clocks_text(const std::vector<std::string>& hosts, const std::vector<double>& clocks) {
  constexpr double far = 60;  // seconds
  std::vector<std::string> told;
  for (std::size_t r = 1; r < hosts.size(); ++r) {
    const double ahead = clocks[r] - clocks.front();
    if (std::abs(ahead) < far || std::ranges::find(hosts, hosts[r]) - hosts.begin() < static_cast<std::ptrdiff_t>(r))
      continue;
    told.push_back(fmt::format("clocks:   that of {} is {:.0f} s {} that of {}; only times in logs depend on them",
                               hosts[r], std::abs(ahead), ahead > 0 ? "ahead of" : "behind", hosts.front()));
  }
  return told;
}

}  // namespace

std::string places_text(const std::vector<std::string>& hosts, const std::vector<int>& ranks) {
  std::map<std::string, std::vector<int>> of_hosts;
  for (int rank : ranks) of_hosts[hosts[static_cast<std::size_t>(rank)]].push_back(rank);
  std::string text;
  for (const auto& [host, own] : of_hosts)
    text +=
        fmt::format("{}{} (rank{} {})", text.empty() ? "" : ", ", host, own.size() > 1 ? "s" : "", ranges_text(own));
  return text;
}

std::optional<int> ranks_of_each_host(const std::vector<std::string>& hosts) {
  const auto of_host = std::ranges::count(hosts, hosts.front());
  std::set<std::string> seen;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const bool begins = r % static_cast<std::size_t>(of_host) == 0;
    if (begins ? !seen.insert(hosts[r]).second : hosts[r] != hosts[r - 1]) return std::nullopt;
  }
  if (std::ssize(hosts) % of_host != 0) return std::nullopt;
  return static_cast<int>(of_host);
}

Equipment own_equipment(int gpu) {
  const Build build = this_build();
  Equipment all{{"version", build.version},
                {"commit", build.git_sha},
                {"MPI", build.mpi},
                {"C library", ::gnu_get_libc_version()},
                {"oneDNN's instructions", product_isa()}};
  for (const Library& part : parts_of_bits(build)) all.emplace_back(part.name, part.version);
  if (gpu >= 0) {
    const Gpu own = Runtime::gpus()[static_cast<std::size_t>(gpu)];
    all.emplace_back("GPU", own.name);
    all.emplace_back("GPU driver", Runtime::gpu_driver());
  }
  return all;
}

std::vector<std::string> differences(const std::vector<std::string>& hosts, const std::vector<Equipment>& all) {
  std::vector<std::string> names;
  for (const Equipment& one : all)
    for (const auto& [name, value] : one)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    std::vector<std::pair<std::string, std::vector<int>>> by_value;  // in the order of their first ranks
    for (std::size_t r = 0; r < all.size(); ++r) {
      const auto given = std::ranges::find(all[r], name, &Equipment::value_type::first);
      const std::string value = given == all[r].end() || given->second.empty() ? "none" : given->second;
      auto place = std::ranges::find(by_value, value, [](const auto& one) { return one.first; });
      if (place == by_value.end()) place = by_value.insert(by_value.end(), {value, {}});
      place->second.push_back(static_cast<int>(r));
    }
    const auto most = std::ranges::max_element(by_value, {}, [](const auto& one) { return one.second.size(); });
    for (auto one = by_value.begin(); one != by_value.end(); ++one)
      if (one != most)
        found.push_back(fmt::format("hosts differ: {}: {} {}, others {}", places_text(hosts, one->second), name,
                                    one->first, most->first));
  }
  return found;
}

HostsFound compare_hosts(const Mpi& mpi, Control& control, int gpu) {
  if (mpi.size() == 1) return {};
  control.max(0);  // all ranks are here: their clocks are read at about one time
  const nlohmann::json mine = {seconds_now(), own_equipment(gpu)};
  std::vector<Equipment> all;
  std::vector<double> clocks;
  for (const std::string& text : control.gather(mine.dump())) {
    const auto one = nlohmann::json::parse(text);
    clocks.push_back(one[0].get<double>());
    all.push_back(one[1].get<Equipment>());
  }
  return {differences(mpi.hosts(), all), clocks_text(mpi.hosts(), clocks)};
}

}  // namespace tessera
