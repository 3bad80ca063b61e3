#include "app/training/tell/profile_events.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/device/timeline.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array stream_names = {"compute", "communication", "copies"};

/// First row numbers of a process, in the order of display.
enum Row : int { host = 0, regions = 1, kernels = 10, collectives = 100 };

class Events {
 public:
  Events(int process, std::int64_t origin) : process_(process), origin_(origin) {
    meta("process_name", {{"name", fmt::format("rank {}", process)}});
  }

  void add(int row, const std::string& row_name, const std::string& name, const char* category, std::int64_t begin,
           std::int64_t end, const Json& arguments) {
    if (rows_.try_emplace(row, row_name).second) {
      meta("thread_name", {{"name", row_name}}, row);
      meta("thread_sort_index", {{"sort_index", row}}, row);
    }
    put({{"ph", "X"},
         {"pid", process_},
         {"tid", row},
         {"ts", microseconds(begin - origin_)},
         {"dur", microseconds(end - begin)},
         {"cat", category},
         {"name", name},
         {"args", arguments}});
  }
  const std::string& text() const { return text_; }

 private:
  static double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }
  /// Adds a metadata event: name or sort position of a process, or of one of its rows.
  void meta(const char* what, const Json& arguments, std::optional<int> row = {}) {
    Json event = {{"ph", "M"}, {"pid", process_}};
    if (row) event["tid"] = *row;
    event["name"] = what;
    event["args"] = arguments;
    put(event);
  }
  void put(const Json& event) { text_ += ",\n" + event.dump(); }

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

Json arguments_of(const Stretch& one) {
  Json arguments = Json::object();
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
        one.name, "kernel", one.begin, one.end, Json::object());
  }
  return events.text();
}

}  // namespace tessera
