#include "io/metrics/metrics_log.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "io/metrics/console.hpp"
#include "io/metrics/run_record.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

MetricsRow row_of(std::int64_t step, std::int64_t restart = 0) {
  MetricsRow row;
  row.step = step;
  row.loss = 3.25f;
  row.restart = restart;
  return row;
}

TEST(MetricsRow, IsOneObjectWithTheDocumentedKeysInOrder) {
  MetricsRow row = row_of(7, 2);
  row.eval_loss = 3.5f;
  row.balance_loss = 1.0625f;
  row.z_loss = 0.1f;
  row.expert_load = 1.5f;
  row.grad_norm = 1.02f;
  row.clip_coef = 0.98039216f;
  row.lr = 3e-4f;
  row.tokens = 57344;
  row.step_ms = 123.4567;
  row.tokens_per_s = 66361.14;
  row.mfu = 0.41234567;
  row.memory_bytes = 1 << 20;
  row.ranks = 3;
  row.time = 1.7e9;
  row.skipped = true;
  EXPECT_EQ(to_json(row),
            R"({"step":7,"loss":3.25,"eval_loss":3.5,"balance_loss":1.0625,"z_loss":0.1,"expert_load":1.5,)"
            R"("grad_norm":1.02,)"
            R"("clip_coef":0.98039216,"lr":3e-04,"tokens":57344,"step_ms":123.457,"tokens_per_s":66361.140,)"
            R"("mfu":0.41235,"memory_bytes":1048576,"ranks":3,"time":1700000000.000,)"
            R"("skipped":true,"spike":false,"restart":2})");
}

TEST(MetricsRow, HasAnEvaluationOnlyWhereThereWasOne) {
  EXPECT_FALSE(Json::parse(to_json(row_of(1))).contains("eval_loss"));
}

TEST(MetricsRow, SaysNullWhereNotFinite) {
  MetricsRow row = row_of(1);
  row.loss = nan;
  row.eval_loss = inf;
  row.grad_norm = -inf;
  row.clip_coef = nan;
  row.balance_loss = nan;
  row.step_ms = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(to_json(row));
  for (const char* key : {"loss", "eval_loss", "grad_norm", "clip_coef", "balance_loss", "step_ms"})
    EXPECT_TRUE(json.at(key).is_null()) << key;
  EXPECT_EQ(json.at("z_loss"), 0);
  EXPECT_TRUE(json.at("mfu").is_null());
}

TEST(MetricsRow, GivesBackEveryFloatFromItsShortestDecimal) {
  std::mt19937 random(1);
  std::vector<float> values{0.0f, -0.0f, 1e-45f, 3.4028235e38f, 1.17549435e-38f, 16777216.0f, 0.1f, 1e20f};
  for (int i = 0; i < 2000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xBFFFFFFFu));
  for (const float value : values) {
    MetricsRow row = row_of(1);
    row.loss = value;
    const std::string text = to_json(row);
    EXPECT_EQ(static_cast<float>(Json::parse(text).at("loss").get<double>()), value) << text;
    const std::string decimal = text.substr(text.find("loss") + 6, text.find(',', 10) - text.find("loss") - 6);
    EXPECT_LE(decimal.size(), 15u) << text;
  }
}

std::vector<std::int64_t> steps_in(const std::filesystem::path& path) {
  std::istringstream lines(test::read_file(path));
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line).at("step"));
  return steps;
}
using Steps = std::vector<std::int64_t>;

TEST(MetricsLog, HoldsEachRowAsSoonAsItIsAppended) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsLog log(path, 0);
  EXPECT_EQ(test::read_file(path), "");
  for (std::int64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(log.append(row_of(step)).empty());
    EXPECT_EQ(steps_in(path).back(), step);
  }
  EXPECT_EQ(test::read_file(path).substr(0, to_json(row_of(1)).size() + 1), to_json(row_of(1)) + '\n');
  EXPECT_EQ(log.restarts(), 0);
}

TEST(MetricsLog, DropsWhatARestoredRunWritesAgain) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(path, 0);
    for (std::int64_t step = 1; step <= 10; ++step) EXPECT_TRUE(log.append(row_of(step)).empty());
  }
  {
    MetricsLog log(path, 6);
    EXPECT_EQ(log.restarts(), 1);
    EXPECT_EQ(steps_in(path), (Steps{1, 2, 3, 4, 5, 6}));
    EXPECT_TRUE(log.append(row_of(7, log.restarts())).empty());
  }
  EXPECT_EQ(MetricsLog(path, 7).restarts(), 2);
  EXPECT_EQ(steps_in(path), (Steps{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(MetricsLog(path, 2).restarts(), 2) << "dropped rows count";
  EXPECT_EQ(steps_in(path), (Steps{1, 2}));
  EXPECT_EQ(MetricsLog(path, 0).restarts(), 1);
  EXPECT_EQ(test::read_file(path), "");
  EXPECT_EQ(MetricsLog(path, 5).restarts(), 1) << "resumed, though its rows are gone";
}

TEST(MetricsLog, CutsOffAnUnfinishedOrBrokenEnd) {
  const TemporaryFolder folder;
  const std::string whole = to_json(row_of(1)) + '\n' + to_json(row_of(2)) + '\n';
  for (const std::string& end : {std::string(R"({"step":3,"lo)"), to_json(row_of(3)), std::string("\n\n"),
                                 std::string("noise\n"), std::string("[1]\n"), std::string(100, '\0')}) {
    const auto path = folder.write("metrics.jsonl", whole + end);
    MetricsLog log(path, 2);
    EXPECT_EQ(test::read_file(path), whole);
    EXPECT_TRUE(log.append(row_of(3)).empty());
    EXPECT_EQ(steps_in(path), (Steps{1, 2, 3}));
  }
}

TEST(MetricsLog, SaysWhyItCannotBeOpened) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "folder");
  const test::WithoutPrivileges user;
  for (const char* name : {"metrics.jsonl", "folder", "gone/metrics.jsonl"}) {
    try {
      MetricsLog log(folder.path() / name, 0);
      ADD_FAILURE() << name << " was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::environment);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("checkpoint.dir"), std::string::npos) << error.what();
    }
  }
}

/// Limits this process's files to `bytes` while it lives, like a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(MetricsLog, KeepsWholeRowsOnAFullDiskAndGoesOnWhenThereIsRoom) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  MetricsLog log(path, 0);
  EXPECT_TRUE(log.append(row_of(1)).empty());
  const std::string before = test::read_file(path);
  {
    const FullDisk disk(before.size() + 20);
    const Problems problems = log.append(row_of(2));
    ASSERT_EQ(problems.list().size(), 1u);
    EXPECT_EQ(problems.list()[0].code, Exit::environment);
    for (const char* word : {"metrics.jsonl", "step 2", "make room"})
      EXPECT_NE(problems.list()[0].text.find(word), std::string::npos) << problems.list()[0].text;
  }
  EXPECT_EQ(test::read_file(path), before);
  EXPECT_TRUE(log.append(row_of(2)).empty());
  EXPECT_EQ(steps_in(path), (Steps{1, 2}));
}

TEST(Console, ShowsAStepInOneLine) {
  ConsoleRow row{120, 5000, 3.21709f, {}, 1.0212f, 3e-4f, 123.4, {}, 512345, std::int64_t{65820000000}, 602, false};
  EXPECT_EQ(to_line(row),
            "step 120/5000 | loss 3.2171 | norm 1.02 | lr 3.0e-04 | 123 ms | 512k tok/s | 61.3 GiB | ETA 10:02");
  row.mfu = 0.414;
  row.eval_loss = 3.30124f;
  row.skipped = true;
  row.norm = -nan;
  EXPECT_EQ(
      to_line(row),
      "step 120/5000 | loss 3.2171 | eval 3.3012 | norm nan | lr 3.0e-04 | 123 ms | 41% MFU | 512k tok/s | 61.3 GiB | "
      "ETA 10:02 | skipped");
  row.mfu = 0.0043;
  EXPECT_NE(to_line(row).find("| 0.4% MFU |"), std::string::npos);
}

TEST(Console, ScalesItsUnits) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999.4), "999");
  EXPECT_EQ(count_text(1234), "1.2k");
  EXPECT_EQ(count_text(999499), "999k");
  EXPECT_EQ(count_text(999500), "1.0M");
  EXPECT_EQ(count_text(2.5e10), "25G");
  EXPECT_EQ(bytes_text(1 << 20), "1.0 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{1000} << 20), "1.0 GiB");
  EXPECT_EQ(time_text(5), "0:05");
  EXPECT_EQ(time_text(59.7), "1:00");
  EXPECT_EQ(time_text(3 * 3600 + 602), "3:10:02");
  EXPECT_EQ(time_text(2 * 86400 + 3 * 3600 + 602), "2d 03:10:02");
  EXPECT_EQ(time_text(nan), "?");
  EXPECT_EQ(time_text(-1), "?");
}

TEST(Console, FlushesEachLineAndDrawsNothingInAFile) {
  const TemporaryFolder folder;
  const auto path = folder.write("log", "");
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  Console console(file);
  console.line("one");
  EXPECT_EQ(test::read_file(path), "one\n");
  console.bar(to_bar(1, 2, 3));
  console.warning("two");
  EXPECT_EQ(test::read_file(path), "one\ntwo\n");
  std::fclose(file);
}

TEST(Console, KeepsABarBelowTheLinesOfATerminal) {
  ::setenv("TERM", "xterm", 1);
  int terminal = 0, behind = 0;
  ASSERT_EQ(::openpty(&behind, &terminal, nullptr, nullptr, nullptr), 0);
  std::FILE* file = ::fdopen(terminal, "w");
  ASSERT_NE(file, nullptr);
  Console console(file);
  console.line("one");
  console.bar("[#]");
  console.warning("two");
  console.bar("");
  const std::string expected = "\r\033[Kone\r\n\r\033[K[#]\r\r\033[K\033[33mtwo\033[0m\r\n\r\033[K\r";
  std::string shown;  // a terminal may deliver output in several pieces
  pollfd ready{behind, POLLIN, 0};
  while (shown.size() < expected.size() && ::poll(&ready, 1, 10'000) == 1) {
    std::array<char, 200> piece;
    const auto size = ::read(behind, piece.data(), piece.size());
    ASSERT_GT(size, 0);
    shown.append(piece.data(), static_cast<std::size_t>(size));
  }
  EXPECT_EQ(shown, expected);
  std::fclose(file);
  ::close(behind);
}

TEST(Console, FillsItsBar) {
  EXPECT_EQ(to_bar(0, 300, 602), "[                    ] 0% | ETA 10:02");
  EXPECT_EQ(to_bar(120, 300, 5), "[########            ] 40% | ETA 0:05");
  EXPECT_EQ(to_bar(300, 300, 0), "[####################] 100% | ETA 0:00");
  EXPECT_EQ(to_bar(0, 0, 0), "[####################] 100% | ETA 0:00");
}

TEST(RunRecord, SaysWhatTheRunWas) {
  RunRecord record;
  record.name = "demo";
  record.command_line = {"tessera", "train", "a \"b\".yaml"};
  record.deck_hash = "abc";
  record.ranks = {{"node2", -1, ""}, {"node1", 3, "H200"}, {"node1", -1, ""}};
  record.threads_per_rank = 2;
  record.seed = std::numeric_limits<std::uint64_t>::max();
  record.data_hash = 0x00ab;
  record.git_sha = "0123456";
  record.mpi = "MPICH 4.0.2";
  record.libraries = {{"fmt", "9.1.0"}};
  record.restart = 2;
  record.environment = {{"OMP_NUM_THREADS", "2"}, {"KOKKOS_ODD", "\xFF"}};
  const Json json = Json::parse(to_json(record, ""));
  EXPECT_EQ(json.at("command_line"), Json(record.command_line));
  EXPECT_EQ(json.at("deck").at("hash"), "abc");
  EXPECT_EQ(json.at("hosts"), Json({"node1", "node2"}));
  EXPECT_EQ(json.at("ranks"), 3);
  EXPECT_EQ(json.at("rank_map")[0], Json({{"rank", 0}, {"host", "node2"}}));
  EXPECT_EQ(json.at("rank_map")[1], Json({{"rank", 1}, {"host", "node1"}, {"device", 3}, {"device_name", "H200"}}));
  EXPECT_EQ(json.at("seed").get<std::uint64_t>(), record.seed);
  EXPECT_EQ(json.at("data").at("hash"), "00000000000000ab");
  EXPECT_EQ(json.at("restart"), 2);
  EXPECT_EQ(json.at("software").at("git_sha"), "0123456");
  EXPECT_EQ(json.at("software").at("mpi"), "MPICH 4.0.2");
  EXPECT_EQ(json.at("software").at("libraries").at("fmt"), "9.1.0");
  EXPECT_EQ(json.at("environment").at("OMP_NUM_THREADS"), "2");
  EXPECT_FALSE(json.contains("library_plans"));
}

TEST(RunRecord, SaysHowItCameByItsLibrariesPlans) {
  RunRecord record;
  record.library_plans = {{"Library 1.3", {{{{1, 2}, {3}}, {{4}, {}}}}}, 1, 2, ""};
  const Json plans = Json::parse(to_json(record, "")).at("library_plans");
  EXPECT_EQ(plans, Json({{"made_for", "Library 1.3"},
                         {"kept", 1},
                         {"chosen", 2},
                         {"plans", {"00000000000000010000000000000002 0000000000000003", "0000000000000004 "}}}));
  record.library_plans.outdated = "Library 1.2";
  EXPECT_EQ(Json::parse(to_json(record, "")).at("library_plans").at("outdated"), "Library 1.2");
}

TEST(RunRecord, ListsEveryStart) {
  RunRecord record;
  record.command_line = {"tessera", "train", "a.yaml"};
  record.started = "2026-01-01T00:00:00Z";
  const std::string first = to_json(record, "");
  record.command_line.push_back("--stop-at");
  record.restart = 1;
  record.step = 20;
  record.resumed_from = "/run/step_00000020";
  const std::string second = to_json(record, first);
  record.restart = 2;
  const Json json = Json::parse(to_json(record, second)), starts = json.at("starts");
  ASSERT_EQ(starts.size(), 3);
  EXPECT_EQ(starts[0].at("started"), "2026-01-01T00:00:00Z");
  EXPECT_EQ(starts[0].at("command_line").size(), 3);
  EXPECT_EQ(starts[0].at("resumed_from"), Json());
  EXPECT_EQ(starts[1].at("step"), 20);
  EXPECT_EQ(starts[1].at("resumed_from"), "/run/step_00000020");
  for (const auto& [key, value] : starts[2].items()) EXPECT_EQ(value, json.at(key)) << key;
  EXPECT_FALSE(starts[2].contains("starts"));

  // A record of an older version, without a list of starts, counts as one start.
  Json old = Json::parse(second);
  old.erase("starts");
  EXPECT_EQ(Json::parse(to_json(record, old.dump())).at("starts"), Json({starts[1], starts[2]}));
  for (const char* broken : {"{", "[]", "7", R"({"starts": 7})"}) EXPECT_THROW(to_json(record, broken), Error);
}

TEST(RunRecord, TakesTheEnvironmentThatIsAllowedAlone) {
  ::setenv("OMP_TESSERA_TEST", "a=b", 1);
  ::setenv("SLURM_JOB_ID", "17", 1);
  ::setenv("SLURM_JWT", "secret", 1);
  ::setenv("HF_TOKEN", "secret", 1);
  const auto found = allowed_environment();
  EXPECT_EQ(found.at("OMP_TESSERA_TEST"), "a=b");
  EXPECT_EQ(found.at("SLURM_JOB_ID"), "17");
  for (const auto& [name, value] : found) EXPECT_NE(value, "secret") << name;
}

}  // namespace
}  // namespace tessera
