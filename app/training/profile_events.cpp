#include "app/training/profile_events.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/device/timeline.hpp"

namespace tessera {
namespace {

constexpr std::array stream_names = {"compute", "communication", "copies"};

/// Rows of a process, in the order in which they are shown.
enum Row : int { host = 0, regions = 1, kernels = 10, collectives = 100 };

class Events {
 public:
  Events(int process, std::int64_t origin) : process_(process), origin_(origin) {
    text_ =
        fmt::format(R"(,{{"ph":"M","pid":{},"name":"process_name","args":{{"name":"rank {}"}}}})", process, process);
  }

  void add(int row, const std::string& row_name, const std::string& name, const char* category, std::int64_t begin,
           std::int64_t end, const nlohmann::json& arguments) {
    if (rows_.try_emplace(row, row_name).second) title(row, row_name);
    text_ += fmt::format(
        ",\n"
        R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"{}","name":{},"args":{}}})",
        process_, row, microseconds(begin - origin_), microseconds(end - begin), category, nlohmann::json(name).dump(),
        arguments.dump());
  }
  const std::string& text() const { return text_; }

 private:
  static double microseconds(std::int64_t nanoseconds) { return 1e-3 * static_cast<double>(nanoseconds); }
  void title(int row, const std::string& name) {
    text_ += fmt::format(
        ",\n"
        R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
        process_, row, name);
    text_ += fmt::format(R"(,{{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
                         process_, row, row);
  }

  int process_;
  std::int64_t origin_;
  std::string text_;
  std::map<int, std::string> rows_;
};

std::string name_of(const Stretch& one) {
  if (one.name == RegionName::collective) return fmt::format("{} {}", one.transfer.operation, one.transfer.label);
  if (one.name == RegionName::step) return fmt::format("step {}", one.step);
  return name_of(one.name);
}

nlohmann::json arguments_of(const Stretch& one) {
  nlohmann::json arguments = nlohmann::json::object();
  if (one.step > 0) arguments["step"] = one.step;
  if (one.name == RegionName::collective) arguments["bytes"] = one.transfer.bytes;
  return arguments;
}

const char* category_of(const Stretch& one) { return one.name == RegionName::collective ? "collective" : "region"; }

}  // namespace

std::string profile_events(int rank, std::int64_t origin, Device& device, const KernelLog& log,
                           const std::vector<KernelRun>& kernels) {
  Events events(rank, origin);
  const std::array<Stream*, stream_names.size()> streams = {&device.compute(), &device.communication(),
                                                            &device.copies()};
  for (const Stretch& one : device.timeline().on_host()) {
    const bool beside = one.lane > 0;
    events.add(beside ? Row::collectives + one.lane : Row::host,
               beside ? fmt::format("collectives {}", one.lane) : "host", name_of(one), category_of(one), one.begin,
               one.end, arguments_of(one));
  }
  for (const Stretch& one : device.timeline().on_device())
    for (std::size_t s = 0; s < streams.size(); ++s)
      if (one.stream == streams[s])
        events.add(Row::regions + static_cast<int>(s), fmt::format("{}: regions", stream_names[s]), name_of(one),
                   category_of(one), one.begin, one.end, arguments_of(one));
  std::map<std::uint32_t, std::size_t> numbers;
  if (!kernels.empty())
    for (std::size_t s = 0; s < streams.size(); ++s) numbers[log.number_of(*streams[s])] = s;
  for (const KernelRun& one : kernels) {
    const auto known = numbers.find(one.stream);
    const bool own = known != numbers.end();
    events.add(
        Row::kernels + static_cast<int>(own ? known->second : streams.size() + one.stream),
        own ? fmt::format("{}: kernels", stream_names[known->second]) : fmt::format("stream {}: kernels", one.stream),
        one.name, "kernel", one.begin, one.end, nlohmann::json::object());
  }
  return events.text();
}

}  // namespace tessera
