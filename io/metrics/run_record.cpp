#include "io/metrics/run_record.hpp"
#include "io/files/json_text.hpp"
#include "kernels/digest/digest.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

namespace tessera {
namespace {

constexpr std::string_view families[] = {"OMP_",      "KMP_",     "KOKKOS_", "NCCL_",  "MPICH_",
                                         "OMPI_MCA_", "TESSERA_", "DNNL_",   "ONEDNN_"};
constexpr std::string_view variables[] = {
    "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "GOMP_CPU_AFFINITY",  "GOMP_SPINCOUNT",
    "HYDRA_LAUNCHER",       "SLURM_ARRAY_TASK_ID",  "SLURM_CLUSTER_NAME", "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK",  "SLURM_JOB_ID",         "SLURM_JOB_NAME",     "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",  "SLURM_NNODES",         "SLURM_NTASKS",       "SLURM_RESTART_COUNT"};

using Json = nlohmann::ordered_json;

/// The algorithms that libraries use.
Json plans_of(const AgreedPlans& agreed) {
  Json json = {{"made_for", agreed.plans.made_for}, {"kept", agreed.kept}, {"chosen", agreed.chosen}};
  if (!agreed.outdated.empty()) json["outdated"] = agreed.outdated;
  std::istringstream lines(to_text(agreed.plans));
  std::string line;
  std::getline(lines, line);
  for (json["plans"] = Json::array(); std::getline(lines, line);) json["plans"].push_back(line);
  return json;
}

/// The kinds of native products that the start has checked; a distance that is no number is null.
Json units_of(const std::vector<RunRecord::Unit>& units) {
  Json list = Json::array();
  for (const RunRecord::Unit& unit : units) {
    list.push_back({{"products", unit.products}, {"route", unit.route}, {"apart", unit.apart}});
    if (!unit.fault.empty()) list.back()["fault"] = unit.fault;
  }
  return list;
}

Json changes_of(const std::vector<RecordedChange>& changes) {
  Json list = Json::array();
  for (const RecordedChange& change : changes)
    list.push_back({{"key", change.key}, {"before", change.before}, {"now", change.now}});
  return list;
}

bool allowed(std::string_view name) {
  return std::ranges::find(variables, name) != std::end(variables) ||
         std::ranges::any_of(families, [&](std::string_view family) { return name.starts_with(family); });
}

/// The short form of a start in `starts`.
Json start_of(const Json& record) {
  Json start = Json::object();
  for (const char* key : {"started", "restart", "step", "reached", "resumed_from", "changes", "command_line", "deck",
                          "recipe", "units", "software", "hosts", "ranks", "threads_per_rank"})
    if (record.contains(key)) start[key] = record[key];
  return start;
}

/// The starts in run.json. A record of an older version, without `starts`, counts as one start.
Json starts_in(const std::string& text) {
  if (text.empty()) return Json::array();
  const Json record = Json::parse(text, nullptr, false);
  if (!record.is_object()) throw Error(Exit::file, "is no JSON object");
  const Json starts = record.value("starts", Json::array({start_of(record)}));
  if (!starts.is_array()) throw Error(Exit::file, "lists no starts");
  return starts;
}

/// Command lines and variables may hold any bytes; invalid UTF-8 becomes replacement characters.
std::string text_of(const Json& json) { return json_text(json, 2) + '\n'; }

}  // namespace

std::map<std::string, std::string> allowed_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (const auto sign = text.find('='); sign != std::string_view::npos && allowed(text.substr(0, sign)))
      found.emplace(text.substr(0, sign), text.substr(sign + 1));
  }
  return found;
}

std::string to_json(const RunRecord& record, const std::string& earlier) {
  std::set<std::string> hosts;
  Json rank_map = Json::array();
  for (std::size_t r = 0; r < record.ranks.size(); ++r) {
    const RankPlace& place = record.ranks[r];
    hosts.insert(place.host);
    rank_map.push_back({{"rank", r}, {"host", place.host}});
    if (place.device >= 0) rank_map.back().update({{"device", place.device}, {"device_name", place.device_name}});
  }
  Json json = {
      {"name", record.name},
      {"started", record.started},
      {"restart", record.restart},
      {"step", record.step},
      {"reached", record.reached},
      {"resumed_from", record.resumed_from.empty() ? Json() : Json(record.resumed_from)},
      {"changes", changes_of(record.changes)},
      {"command_line", record.command_line},
      {"deck", {{"path", record.deck_path}, {"hash", record.deck_hash}, {"resolved_hash", record.resolved_deck_hash}}},
      {"recipe", record.recipe},
      {"seed", record.seed},
      {"data",
       {{"hash", hex(record.data_hash)},
        {"files", record.data_files},
        {"tokens", record.data_tokens}}},
      {"software",
       {{"version", record.version},
        {"git_sha", record.git_sha},
        {"compiler", record.compiler},
        {"back_end", record.back_end},
        {"mpi", record.mpi},
        {"libraries", record.libraries}}},
      {"hosts", hosts},
      {"ranks", record.ranks.size()},
      {"threads_per_rank", record.threads_per_rank},
      {"rank_map", rank_map},
      {"environment", record.environment},
  };
  if (!record.mixed_hosts.empty()) json["mixed_hosts"] = record.mixed_hosts;
  if (!record.units.empty()) json["units"] = units_of(record.units);
  if (!record.library_plans.plans.choices.of.empty()) json["library_plans"] = plans_of(record.library_plans);
  json["starts"] = starts_in(earlier);
  json["starts"].push_back(start_of(json));
  return text_of(json);
}

std::string with_progress(const std::string& record, const StartProgress& progress) {
  Json json = Json::parse(record, nullptr, false), starts = starts_in(record);
  if (starts.empty()) throw Error(Exit::file, "lists no starts");
  Json& start = starts.back();
  start["last_step"] = progress.last_step;
  start["saves"] = progress.saves;
  if (!progress.end.empty()) start.update({{"end", progress.end}, {"ended", progress.ended}});
  json["starts"] = starts;
  return text_of(json);
}

std::vector<RecordedStart> read_starts(const std::string& record) {
  std::vector<RecordedStart> all;
  for (const Json& json : starts_in(record)) {
    RecordedStart& start = all.emplace_back();
    const auto text = [](const Json& from, const char* key) {
      const auto found = from.is_object() ? from.find(key) : from.end();
      return found != from.end() && found->is_string() ? found->get<std::string>() : "";
    };
    const auto number = [&](const char* key) {
      const auto found = json.find(key);
      return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
    };
    if (!json.is_object()) continue;
    const auto list = [&](const char* key) { return json.value(key, Json::array()); };
    const Json software = json.value("software", Json::object());
    start.started = text(json, "started");
    start.resumed_from = text(json, "resumed_from");
    start.recipe = text(json, "recipe");
    start.program = text(software, "version") + " " + text(software, "git_sha");
    for (const Json& host : list("hosts"))
      if (host.is_string()) start.hosts += (start.hosts.empty() ? "" : " ") + host.get<std::string>();
    start.restart = number("restart");
    start.step = number("step");
    start.reached = number("reached");
    start.ranks = number("ranks");
    start.threads = number("threads_per_rank");
    for (const Json& change : list("changes"))
      start.changes.push_back({text(change, "key"), text(change, "before"), text(change, "now")});
    start.progress = {number("last_step"), {}, text(json, "end"), text(json, "ended")};
    for (const Json& step : list("saves"))
      if (step.is_number_integer()) start.progress.saves.push_back(step.get<std::int64_t>());
  }
  return all;
}

}  // namespace tessera
