#include "io/checkpoint/branch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/phase.hpp"
#include "io/files/access.hpp"
#include "io/files/fault.hpp"
#include "io/files/json_text.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

bool there(const fs::path& path) { return entry_at(path) != Entry::none; }

/// The contents of branch.json.
struct Branch {
  fs::path run;
  std::int64_t number = 1;  ///< counts the branches of this run from 1
  std::string parent;       ///< the checkpoint from which the branch goes on
  Names keeps, leaves;      ///< step folders that existed when it began
  Names records;            ///< files of rows that the branch goes on with, set aside as they were
  Names begun;              ///< those that were not there

  fs::path aside(const std::string& name) const { return run / abandoned_name(number, name); }
  bool still_to_leave(const std::string& name) const {
    return contains(leaves, name) && there(run / name) && !there(aside(name));
  }
  /// Whether the branch has committed a checkpoint: a step folder that did not exist when it began, or that took the
  /// name of one set aside.
  bool committed() const {
    return std::ranges::any_of(step_folders(run), [&](const StepFolder& folder) {
      const std::string name = folder.path.filename().string();
      return !contains(keeps, name) && !still_to_leave(name);
    });
  }
};

fs::path file_of(const fs::path& run) { return run / "branch.json"; }

void write(const Branch& branch) {
  const nlohmann::ordered_json json = {{"number", branch.number},
                                       {"parent", branch.parent},
                                       {"keeps", branch.keeps},
                                       {"leaves", branch.leaves},
                                       {"records", branch.records},
                                       {"begun", branch.begun}};
  replace_text_file(file_of(branch.run), json_text(json, 2) + '\n');
  sync_folder(branch.run);
}

std::optional<Branch> under_way(const fs::path& run) {
  if (!there(file_of(run))) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(read_text_file(file_of(run)));
    return Branch{run,
                  json.at("number"),
                  json.at("parent"),
                  json.at("keeps").get<Names>(),
                  json.at("leaves").get<Names>(),
                  json.contains("record") ? Names{json["record"]} : json.at("records").get<Names>(),  // one, before
                  json.value("begun", Names())};
  } catch (const nlohmann::json::exception& error) {
    throw Error(Exit::file, fmt::format("{}: does not say which steps a branch of the run leaves behind: {}; rename "
                                        "those steps as others are, or keep them, and remove the file",
                                        file_of(run).string(), error.what()));
  }
}

std::int64_t next_number(const fs::path& run) {
  std::int64_t most = 0;
  for (const fs::path& entry : list_folder(run).value_or(std::vector<fs::path>())) {
    const std::string name = entry.filename().string();
    if (const std::optional<AbandonedName> parts = abandoned(name)) most = std::max(most, parts->branch);
  }
  return most + 1;
}

/// The rows of a record that lead to the branch's parent, if that is a checkpoint set aside in this directory; else
/// empty.
std::string rows_before(const Branch& branch, const std::string& record) {
  const fs::path parent = fs::path(branch.parent) / "", folder = parent.parent_path();
  const std::string name = folder.filename().string();
  const std::optional<AbandonedName> parts = abandoned(name);
  std::error_code unknown;
  if (!parts || !fs::equivalent(folder.parent_path(), branch.run, unknown)) return "";
  const fs::path rows = branch.run / abandoned_name(parts->branch, record);
  return there(rows) ? read_text_file(rows) : "";
}

/// Ends a branch by removing branch.json, after all renames have reached the disk.
void forget(const Branch& branch) {
  sync_folder(branch.run);
  std::error_code error;
  if (!fs::remove(file_of(branch.run), error))
    throw Error(Exit::environment,
                fmt::format("{}: cannot be removed: {}", file_of(branch.run).string(), error.message()));
  sync_folder(branch.run);
}

void finish(const Branch& branch) {
  Names aside;
  for (const std::string& name : branch.leaves) {
    if (branch.still_to_leave(name)) {
      move_entry(branch.run / name, branch.aside(name));
      fault::enter(Phase::aside);
    }
    if (there(branch.aside(name))) aside.push_back(branch.aside(name).filename().string());
  }
  forget(branch);
  fmt::print("set aside in {}: {}; the run goes on from {}\n", branch.run.string(), fmt::join(aside, ", "),
             step_folders(branch.run).back().path.filename().string());
}

void take_back(const Branch& branch) {
  for (const std::string& name : branch.leaves)
    if (!there(branch.run / name) && there(branch.aside(name))) move_entry(branch.aside(name), branch.run / name);
  for (const std::string& record : branch.records)
    if (there(branch.aside(record))) move_entry(branch.aside(record), branch.run / record);
  for (const std::string& record : branch.begun) {
    std::error_code gone;
    fs::remove(branch.run / record, gone);
  }
  forget(branch);
  fmt::print(stderr, "{}: a branch from {} ended before its first checkpoint; the run goes on as if it had not begun\n",
             branch.run.string(), branch.parent);
}

}  // namespace

std::vector<std::string> begin_branch(const fs::path& run, const fs::path& parent, std::int64_t kept,
                                      const std::vector<std::string>& records) {
  Branch branch{run, next_number(run), parent.string(), {}, {}, {}, {}};
  for (const std::string& record : records) (there(run / record) ? branch.records : branch.begun).push_back(record);
  for (const StepFolder& folder : step_folders(run))
    (folder.step <= kept ? branch.keeps : branch.leaves).push_back(folder.path.filename().string());
  if (branch.leaves.empty()) return {};
  fault::enter(Phase::branch);
  fault::strike(file_of(run));
  write(branch);
  fault::enter(Phase::branch);
  for (const std::string& record : branch.records)
    replace_text_file(branch.aside(record), read_text_file(run / record));
  sync_folder(run);
  fault::enter(Phase::branch);
  if (kept < 0)
    for (const std::string& record : records)
      if (const std::string rows = rows_before(branch, record); !rows.empty() || there(run / record))
        replace_text_file(run / record, rows);
  return branch.leaves;
}

std::vector<std::string> leave_lost_line(const fs::path& run, const std::vector<std::string>& records) {
  std::vector<std::string> left;
  if (latest_step(run).empty() || !step_folders(run).empty()) return left;
  const std::int64_t number = next_number(run);
  for (const std::string& record : records) {
    if (!there(run / record)) continue;
    left.push_back(abandoned_name(number, record));
    move_entry(run / record, run / left.back());
  }
  std::error_code gone;
  fs::remove(run / "latest", gone);  // last: a start that is killed before goes on with the rest
  sync_folder(run);
  return left;
}

void make_way(const fs::path& run, std::string_view step) {
  const std::optional<Branch> branch = under_way(run);
  const std::string name(step);
  if (branch && branch->still_to_leave(name)) move_entry(run / name, branch->aside(name));
}

void set_aside(const fs::path& run, const std::string& step) {
  const std::string aside = abandoned_name(next_number(run), step);
  move_entry(run / step, run / aside);
  fmt::print(stderr, "{}: was there and may be sound: set aside as {}\n", (run / step).string(), aside);
}

void settle_branch(const fs::path& run) {
  const std::optional<Branch> branch = under_way(run);
  if (!branch) return;
  branch->committed() ? finish(*branch) : take_back(*branch);
}

void settle_branch_after_save(const fs::path& run, Control& control) {
  const PhaseNote note(control);
  in_phase(control, Phase::aside, [&] {
    if (control.rank() == 0) settle_branch(run);
  });
}

}  // namespace tessera
