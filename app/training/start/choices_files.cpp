#include "app/training/start/choices_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/files/access.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What decides which window of which corpus a sample is, besides seed and corpora.
std::string order_text(const Prepared& run) {
  const DataConfig& data = run.deck.config.data;
  std::string text = fmt::format("shuffle {}, mixture {}", data.shuffle, fmt::join(data.mixture, " "));
  for (const CutCorpus& one : run.corpora)
    text += fmt::format(", {} windows, {} apart, seed {}", one.windows.train, one.windows.stride(),
                        one.windows.drawn.empty() ? 0 : data.eval_seed);
  return text;
}

/// The head of a record that this run begins at `position`.
ChoicesHeader header_at(const Prepared& run, const RunPosition& position) {
  const RunConfig& config = run.deck.config;
  const MoeConfig& moe = *config.model.moe;
  ChoicesHeader header;
  header.blocks = config.model.layers;
  header.with_experts = moe.blocks();
  header.experts = moe.experts;
  header.top_k = moe.top_k;
  header.length = config.model.seq_len;
  header.global = config.batch.global;
  header.seed = config.run.seed;
  header.corpus = run.corpus_hash();
  header.order = fnv1a64(order_text(run));
  header.run = fnv1a64(fs::absolute(config.checkpoint.dir.get()).lexically_normal().string());
  header.first_step = position.step + 1;
  header.first_sample = position.next_sample;
  return header;
}

/// Why the run may not write to a record that is there; empty if it may.
std::string why_not_written(const ChoicesFile& file, const ChoicesHeader& needed, const RunRequest& request) {
  const ChoicesHeader& head = file.header();
  const std::int64_t step = needed.first_step - 1, last = file.last_step();
  const std::string held = fmt::format("steps {} to {}", head.first_step, last);
  constexpr const char* remedy = "name another file, or move this one away";
  if (head.run != needed.run)
    return fmt::format("is the record of a run in another directory, of {}: {}", held, remedy);
  if (head.first_step <= step) {
    if (const std::string other = difference_of(head, needed); !other.empty())
      return fmt::format("is the record of another run, of {}: {}: {}", held, other, remedy);
    if (last < step)
      return fmt::format("is a record of {}, and the run goes on after step {}: the steps between are missing: {}",
                         held, step, remedy);
  }
  if (last > step && std::holds_alternative<FromCheckpoint>(request.resume))
    return fmt::format("is a record of {}, of which a branch that begins after step {} would overwrite some: {}", held,
                       step, remedy);
  return "";
}

/// Throws Error{file} if a step of a record has not been written whole.
void require_whole(const ChoicesFile& file, std::int64_t step) {
  const ChoicesHeader& head = file.header();
  std::vector<std::int32_t> choices(static_cast<std::size_t>(head.slots()));
  for (std::int64_t layer = 0; layer < head.layers(); ++layer) file.read(step, layer, 0, choices);
}

/// Why the run may not follow a record; empty if it may. Only the last step of a record can be there in part.
std::string why_not_followed(const ChoicesFile& file, const ChoicesHeader& needed, std::int64_t until) {
  const ChoicesHeader& head = file.header();
  const std::int64_t last = file.last_step();
  if (const std::string other = difference_of(head, needed); !other.empty())
    return fmt::format("is the record of another run: {}: give one of the same model, batch and data", other);
  if (head.first_step > needed.first_step || last < until)
    return fmt::format("holds steps {} to {}, and this run makes {} to {}: give a record of all of them, or make fewer "
                       "(run.steps, --stop-at)",
                       head.first_step, last, needed.first_step, until);
  if (until == last && until >= needed.first_step) require_whole(file, until);
  return "";
}

}  // namespace

void check_choices_files(const Prepared& run, const RunRequest& request, const RunPosition& position,
                         Problems& problems) {
  const RunConfig& config = run.deck.config;
  if (!config.model.moe || run.corpora.empty()) return;
  const ChoicesHeader needed = header_at(run, position);
  const auto refuse = [&](const char* key, const std::string& file, const std::string& why) {
    if (!why.empty()) problems.add(Exit::file, run.deck.provenance.located({{key}, file + ": " + why}));
  };
  const std::string &record = config.routing.record, &replay = config.routing.replay;
  if (!record.empty())
    attempt(problems, [&] {
      if (entry_at(record) == Entry::none) return;
      refuse("routing.record", record, why_not_written({record, ChoicesFile::Mode::read}, needed, request));
    });
  if (replay.empty()) return;
  if (std::error_code absent; fs::equivalent(record, replay, absent))
    return refuse("routing.record", record, "is the file of routing.replay too: name another");
  const std::int64_t steps = config.run.steps;
  const std::int64_t until = request.stop_at < 0 ? steps : std::min(steps, request.stop_at);
  Problems found;
  attempt(found, [&] {
    refuse("routing.replay", replay, why_not_followed({replay, ChoicesFile::Mode::read}, needed, until));
  });
  for (const Problem& problem : found.list())
    problems.add(problem.code, run.deck.provenance.located({{"routing.replay"}, problem.text}));
}

void open_choices_files(const Prepared& run, const RunRequest& request, Training& training, Control& control) {
  const RunConfig& config = run.deck.config;
  const std::string &record = config.routing.record, &replay = config.routing.replay;
  if (!config.model.moe || (record.empty() && replay.empty())) return;
  const RunPosition position{training.step(), training.next_sample()};
  Problems problems;
  check_choices_files(run, request, position, problems);
  control.agree(problems);
  if (!record.empty() && control.rank() == 0)
    attempt(problems, [&] {
      const bool goes_on = entry_at(record) != Entry::none &&
                           ChoicesFile(record, ChoicesFile::Mode::read).header().first_step <= position.step;
      if (goes_on) ChoicesFile::keep_up_to(record, position.step);  // mutation: a_record_keeps_steps_of_another_line
      else ChoicesFile::create(record, header_at(run, position));
    });
  control.agree(problems);
  attempt(problems, [&] {
    if (!record.empty()) training.record_choices(std::make_unique<RecordedChoices>(record, *run.plan));
    if (!replay.empty()) training.replay_choices(std::make_unique<ReplayedChoices>(replay));
  });
  control.agree(problems);
}

}  // namespace tessera
