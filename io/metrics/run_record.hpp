#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/plan/library_plans.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

inline constexpr const char* record_file = "run.json";

/// Host and device of a rank.
struct RankPlace {
  std::string host;
  std::int64_t device = -1;  ///< -1: none
  std::string device_name;   ///< empty without a device
};

/// A key that a start changed by `train --allow-change`; values as decks write them.
struct RecordedChange {
  std::string key, before, now;
};

/// Contents of run.json: provenance of one start of a run, that is of a fresh run or a resumed one.
struct RunRecord {
  std::string name;
  std::vector<std::string> command_line;
  std::string deck_path;
  std::string deck_hash;           ///< of the deck's text
  std::string resolved_deck_hash;  ///< of the deck as resolved
  std::string version, git_sha;
  std::string compiler, back_end, mpi;
  std::map<std::string, std::string> libraries;  ///< name -> version
  std::vector<RankPlace> ranks;                  ///< in rank order
  std::int64_t threads_per_rank = 0;
  std::map<std::string, std::string> environment;  ///< allowed_environment()
  std::string recipe;
  std::uint64_t seed = 0;
  std::uint64_t data_hash = 0;
  std::int64_t data_files = 0, data_tokens = 0;
  std::string started;       ///< ISO 8601, UTC
  std::int64_t restart = 0;  ///< number of times that the run has been resumed
  std::int64_t step = 0;     ///< steps done before this start
  std::int64_t reached = 0;  ///< steps that the start before had done, those to be made again included
  std::string resumed_from;  ///< the checkpoint of that step; empty: none
  std::vector<RecordedChange> changes;
  AgreedPlans library_plans;
  struct Unit {
    std::string products, route;  ///< a kind of products of codes; "native" or "decoded"
    double apart = 0;             ///< distance from decoded ones, in parts of what sums allow
    std::string fault;            ///< empty: none
  };
  std::vector<Unit> units;  ///< of kinds that this start has checked against decoded products
  std::vector<std::string> mixed_hosts;  ///< in what the hosts differ, which proof.mixed_hosts allowed
};

/// Environment variables of this process that affect results or speed, by a list of names and prefixes. Variables that
/// may hold secrets are not in the list.
std::map<std::string, std::string> allowed_environment();

/// Text of run.json: an indented JSON object of this start, with hashes as hex digits, each host once, and the rank map
/// in rank order. Its `starts` lists every start of the run in short, this one last. `earlier`: run.json as the start
/// before left it, or empty; throws Error{file} if it is not such an object.
std::string to_json(const RunRecord& record, const std::string& earlier);

/// What a start has come to so far.
struct StartProgress {
  std::int64_t last_step = 0;           ///< steps done
  std::vector<std::int64_t> saves = {}; ///< steps after which it has saved
  std::string end = {}, ended = {};     ///< why and when (ISO 8601, UTC) it ended; empty: it still runs, or was killed
};
/// Text of run.json with the progress of its last start. Throws Error{file} if `record` is not such a text.
std::string with_progress(const std::string& record, const StartProgress& progress);

/// One start of a run, as run.json lists it. What an older version did not record is 0 or empty.
struct RecordedStart {
  std::string started, resumed_from, hosts, program, recipe;  ///< program: version and commit
  std::int64_t restart = 0, step = 0, reached = 0, ranks = 0, threads = 0;
  std::vector<RecordedChange> changes;
  StartProgress progress;
};
/// The starts in a text of run.json, oldest first. Throws Error{file} if it is not such a text.
std::vector<RecordedStart> read_starts(const std::string& record);

}  // namespace tessera
