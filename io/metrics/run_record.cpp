#include "io/metrics/run_record.hpp"
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
  for (const char* key : {"started", "restart", "step", "resumed_from", "changes", "command_line", "deck", "software",
                          "hosts", "ranks", "threads_per_rank"})
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
      {"resumed_from", record.resumed_from.empty() ? Json() : Json(record.resumed_from)},
      {"changes", changes_of(record.changes)},
      {"command_line", record.command_line},
      {"deck", {{"path", record.deck_path}, {"hash", record.deck_hash}, {"resolved_hash", record.resolved_deck_hash}}},
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
  if (!record.library_plans.plans.choices.of.empty()) json["library_plans"] = plans_of(record.library_plans);
  json["starts"] = starts_in(earlier);
  json["starts"].push_back(start_of(json));
  // Command lines and variables may hold any bytes; invalid UTF-8 becomes replacement characters.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace tessera
