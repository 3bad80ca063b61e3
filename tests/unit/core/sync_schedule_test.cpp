#include "core/params/sync_schedule.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "core/params/labels.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"
#include "tests/support/drawn_configs.hpp"

namespace tessera {
namespace {

using namespace test::untied;

/// Visits as text: "embed/0 0r/1 | embed/0 ...": block or first parameter, payloads, "/slot", "|" between
/// micro-batches. "!" where the next visit is not prefetched, "*" where the group is staged with its gather.
std::string text(const RunPlan& plan, const Visits& visits, ProcessGroup processes) {
  std::string all;
  int micro_batch = 0;
  for (const Visit& visit : visits) {
    const BucketGroup& group = plan.layout.groups()[visit.group];
    if (group.processes != processes) continue;
    if (!all.empty()) all += visit.micro_batch == micro_batch ? " " : " | ";
    micro_batch = visit.micro_batch;
    const ParamSpec& first = plan.registry[plan.layout.buckets()[group.buckets.front()].members.front().param];
    if (plan.schedule.resides(visit.group))
      all += "g" + std::to_string(visit.group.value);
    else
      all += first.block < 0 ? first.name.substr(0, 5) : std::to_string(first.block);
    if (!plan.schedule.resides(visit.group) && contains(visit.sides, Sides::rowwise)) all += 'r';
    if (!plan.schedule.resides(visit.group) && contains(visit.sides, Sides::columnwise)) all += 'c';
    if (!plan.schedule.resides(visit.group)) all += "/" + std::to_string(visit.slot);
    if (visit.staged == StagedAt::gather) all += '*';
    if (visit.next != VisitId{} && visit.prefetch != visit.next) all += '!';
    if (visit.next == VisitId{} && visit.prefetch != VisitId{}) all += ">" + std::to_string(visit.prefetch.value);
  }
  return all;
}

/// Reductions as text: "0/0= 1/1= | 0/0+": group, "/slot", "=" or "+", "xN" where N micro-batches are added up before
/// it. "@V" behind resident visit V, "~" at the end of the step, "-N" without the last N ranks, "|" between rounds.
std::string reductions(const SyncSchedule& schedule) {
  std::string all;
  int round = 0;
  for (const Reduction& one : schedule.reductions) {
    if (!all.empty()) all += one.round == round ? " " : " | ";
    round = one.round;
    all += std::to_string(one.group.value) + "/" + std::to_string(one.slot) + (one.sum == SumInto::add ? "+" : "=");
    if (one.micro_batches != 1) all += "x" + std::to_string(one.micro_batches);
    if (one.after != VisitId{}) all += "@" + std::to_string(one.after.value);
    if (one.begin == BeginAt::end_of_step) all += '~';
    if (one.idle > 0) all += "-" + std::to_string(one.idle);
  }
  return all;
}

RunPlan plan_of(const RunConfig& config, int ranks = 2) { return resolve(config, ranks, 0); }
std::string training(const RunConfig& config, ProcessGroup processes = ProcessGroup::dense) {
  const RunPlan plan = plan_of(config);
  return text(plan, plan.schedule.training, processes);
}
std::string resident(const RunConfig& config, int ranks = 2) {
  const RunPlan plan = plan_of(config, ranks);
  return text(plan, plan.schedule.resident, ProcessGroup::dense) + " ; " +
         text(plan, plan.schedule.resident, ProcessGroup::expert);
}
std::string reductions(const RunConfig& config, int ranks = 2) { return reductions(plan_of(config, ranks).schedule); }
std::size_t amaxes(const RunConfig& config) { return plan_of(config).schedule.amaxes.size(); }

TEST(Full, OneForwardAndOneBackwardWhereOnePayloadServesBoth) {
  for (Mode mode : {Mode::none, Mode::selective, Mode::full})
    EXPECT_EQ(training(times(1, full(dense(), mode))), "embed/0 0/1 1/0 head./1 1/0 0/1");
  for (RecipeName recipe : {RecipeName::fp8_block, RecipeName::fp8_tensor, RecipeName::mxfp8_2d, RecipeName::nvfp4})
    EXPECT_EQ(training(times(1, full(dense(recipe), Mode::full))), "embed/0 0r/1 1r/0 head./1 1r/0 0r/1");
  EXPECT_EQ(training(times(1, full(dense(), Mode::none, module))), "embed/0 0/1 0/0 1/1 1/0 head./1 1/0 1/1 0/0 0/1");
}

TEST(Full, OnlyTheCopyThatIsReadWhereCopiesTravelApart) {
  const RunConfig apart = times(1, dense(RecipeName::mxfp8));
  EXPECT_EQ(training(full(apart)), "embed/0 0r/1 1r/0 head./1 1c/0 0c/1");
  EXPECT_EQ(training(full(apart, Mode::full)), "embed/0 0r/1 1r/0 head./1 1r/0 1c/1 0r/0 0c/1");
  EXPECT_EQ(training(full(apart, Mode::selective)), "embed/0 0r/1 1r/0 head./1 1rc/0 0rc/1");
  EXPECT_EQ(training(full(apart, Mode::selective, module)),
            "embed/0 0r/1 0r/0 1r/1 1r/0 head./1 1c/0 1r/1 1c/0 0c/1 0r/0 0c/1");
}

TEST(Full, MicroBatchesFollowEachOtherThroughTheSlots) {
  const RunPlan plan = plan_of(times(2, full(dense(RecipeName::mxfp8), Mode::full)));
  EXPECT_EQ(text(plan, plan.schedule.training, ProcessGroup::dense),
            "embed/0 0r/1 1r/0 head./1 1r/0 1c/1 0r/0 0c/1 | embed/0 0r/1 1r/0 head./1 1r/0 1c/1 0r/0 0c/1");
  for (VisitId visit : plan.schedule.training.ids()) {
    const VisitId next = visit.value + 1 < plan.schedule.training.size() ? VisitId{visit.value + 1} : VisitId{};
    EXPECT_EQ(plan.schedule.training[visit].next, next);
    EXPECT_EQ(plan.schedule.training[visit].prefetch, next);
  }
  EXPECT_EQ(reductions(plan.schedule), "0/0= 1/1= 2/0= 3/1= | 0/0+ 1/1+ 2/0+ 3/1+");
}

TEST(Full, WithoutOverlapNothingIsPrefetchedAndReductionsStartWhereTheyDid) {
  RunConfig config = times(2, full(dense()));
  config.proof.gather_overlap = config.proof.reduce_overlap = false;
  EXPECT_EQ(training(config), "embed/0! 0/1! 1/0! head./1! 1/0! 0/1! | embed/0! 0/1! 1/0! head./1! 1/0! 0/1");
  EXPECT_EQ(reductions(config), "0/0= 1/1= 2/0= 3/1= | 0/0+ 1/1+ 2/0+ 3/1+");
}

TEST(Full, AnEvaluationOnlyGoesForward) {
  const RunPlan plan = plan_of(times(3, full(dense(RecipeName::mxfp8), Mode::full)));
  EXPECT_EQ(text(plan, plan.schedule.evaluation, ProcessGroup::dense), "embed/0 0r/1 1r/0 head./1");
}

TEST(Full, AnInspectionGathersEveryPayloadIntoSlotZero) {
  const RunPlan plan = plan_of(full(dense(RecipeName::mxfp8)));
  EXPECT_EQ(text(plan, plan.schedule.inspection, ProcessGroup::dense), "embedr/0! 0r/0! 0c/0! 1r/0! 1c/0! head.r/0");
}

TEST(Full, ATiedEmbeddingIsVisitedByTheHeadAndReducedOnce) {
  RunConfig config = times(1, full(dense()));
  config.model.tied_head = true;
  EXPECT_EQ(training(config), "embed/0 0/1 1/0 final/1 embed/0 final/1 1/0 0/1");
  EXPECT_EQ(reductions(config), "0/1= 1/2= 2/1= 3/0=");
}

TEST(Full, ExpertsAreVisitedWithTheirBlockInAPoolOfTheirOwn) {
  const RunConfig moe = times(1, full(mixture(RecipeName::mxfp8)));
  EXPECT_EQ(training(moe), "embed/0 0r/1 1r/0 head./1 1c/0 0c/1");
  EXPECT_EQ(training(moe, ProcessGroup::expert), "0r/0 1r/1 1c/0 0c/1");
}

TEST(Full, ExpertsOfTheTurnStayInTheirSlot) {
  EXPECT_EQ(training(times(2, full(mixture())), ProcessGroup::expert), "0/0 1/1 0/0 | 1/1 0/0");
}

TEST(Full, AProcessGroupOfOneRankStaysResident) {
  RunConfig config = times(2, full(mixture()));
  config.parallel.expert = 2;
  const RunPlan plan = plan_of(config);
  EXPECT_EQ(text(plan, plan.schedule.training, ProcessGroup::expert), "");
  EXPECT_EQ(resident(config), " ; g3>1 g1");
  EXPECT_EQ(reductions(config), "0/0= 2/1= 4/0= 5/1= | 0/0+ | 1/2=x2 | 2/1+ | 3/3=x2 | 4/0+ 5/1+");
  EXPECT_EQ(resident(full(dense()), 1), "g3>1 g2>2 g1>3 g0 ; ");
}

TEST(Optimizer, OneChainByFirstUse) {
  EXPECT_EQ(resident(dense()), "g1>1 g0 ; ");
  EXPECT_EQ(resident(mixture()), "g3>1 g0>2 ; g2>3 g1");
  EXPECT_EQ(resident(dense(), 1), "g1>1 g0 ; ");
  EXPECT_EQ(training(dense()), "");
}

TEST(Optimizer, WithoutOverlapNothingIsPrefetched) {
  RunConfig config = dense();
  config.proof.gather_overlap = false;
  EXPECT_EQ(resident(config), "g1 g0 ; ");
}

TEST(Optimizer, OneReductionAGroupWithAllMicroBatches) {
  EXPECT_EQ(reductions(times(1, dense())), "0/0= 1/1=");
  EXPECT_EQ(reductions(times(3, dense())), "0/0=x3 1/1=x3");
  EXPECT_EQ(reductions(times(3, mixture())), "1/1=x3 2/2=x3 0/0=x3 3/3=x3");
}

TEST(Optimizer, InTheOrderOfTheBatchEveryMicroBatchIsReducedAndTheLastWithoutIdleRanks) {
  RunConfig config = dense();
  config.reduce.order = ReduceOrder::batch;
  config.batch = {.global = 2, .micro = 1};
  EXPECT_EQ(reductions(config), reductions(times(1, dense()))) << "one micro-batch a rank";
  config.batch = {.global = 5, .micro = 1};
  const std::string rounds = "0/0= 1/1= | 0/0+ 1/1+ | 0/0+-1 1/1+-1";
  EXPECT_EQ(reductions(config), rounds);
  config.proof.reduce_overlap = false;
  EXPECT_EQ(reductions(config), rounds);
  config = mixture();
  config.reduce.order = ReduceOrder::batch;
  config.parallel.expert = 2;
  config.batch = {.global = 6, .micro = 1};
  EXPECT_EQ(reductions(config, 4), "1/2= 0/0= 2/1= | 1/2+-1 0/0+-2 2/1+-2") << "two of four ranks are idle";
  // Nothing is staged in gradients that come and go.
  config = times(2, dense(RecipeName::mxfp8));
  config.reduce.order = ReduceOrder::batch;
  EXPECT_EQ(reductions(config).find('@'), std::string::npos);
}

/// Gradients of an untied embedding and head are the largest, and no neighbours in a micro-batch. Their memory has room
/// for one of them beside a layer.
TEST(Full, GradientSlotsAreTheEndsOfOneMemory) {
  RunConfig config = times(2, full(dense()));
  config.model.ffn = std::int64_t{8};
  config.model.kv_heads = std::int64_t{1};
  const RunPlan plan = plan_of(config);
  const SyncSchedule& schedule = plan.schedule;
  ASSERT_EQ(schedule.gradient_slots.size(), 2u);
  const GradientSlot &low = schedule.gradient_slots[0], &high = schedule.gradient_slots[1];
  EXPECT_EQ(low.memory, high.memory);
  EXPECT_EQ(low.elements, high.elements);
  EXPECT_EQ(std::pair(low.end, high.end), std::pair(End::low, End::high));
  std::int64_t largest = 0, neighbours = 0;
  const Reduction* before = nullptr;
  for (const Reduction& one : schedule.reductions) {
    if (one.round > 0) break;
    const std::int64_t elements = gradient_elements(plan.layout, one.group);
    largest = std::max(largest, elements);
    if (before) {
      neighbours = std::max(neighbours, elements + gradient_elements(plan.layout, before->group));
      EXPECT_FALSE(meet(schedule, plan.layout, *before, one));
    }
    before = &one;
  }
  EXPECT_EQ(low.elements, neighbours);
  EXPECT_LT(low.elements, 2 * largest);
  const auto last = before - schedule.reductions.data();
  const Reduction& next = schedule.reductions[static_cast<std::size_t>(last) + 1];
  EXPECT_TRUE(meet(schedule, plan.layout, *before, next)) << "the next micro-batch's first waits for this one's last";
}

TEST(Optimizer, WithoutOverlapReductionsStartAtTheEndInOrderOfGroups) {
  RunConfig config = times(3, dense());
  config.proof.reduce_overlap = false;
  EXPECT_EQ(reductions(config), "0/0=x3~ 1/1=x3~");
}

TEST(Optimizer, StagedInGradientsIsOpenedBeforeTheyAreWritten) {
  RunConfig config = times(2, dense(RecipeName::mxfp8));
  EXPECT_EQ(resident(config) + reductions(config), "g0 ; 0/0=x2@0");
  config.reduce.bucket_mib = 0.05;
  EXPECT_EQ(resident(config), "g1>1 g2>2 g0 ; ");
  EXPECT_EQ(reductions(config), "0/0=x2 2/2=x2@1 1/1=x2@0");
}

TEST(Optimizer, ARingStagesAtThePublicationWhatItHasRoomFor) {
  RunConfig config = dense(RecipeName::mxfp8);
  config.reduce.bucket_mib = 0.01;
  config.proof.staging = GatherStaging::ring;
  EXPECT_EQ(resident(config), "g9>1 g1>2 g8*>3 g7>4 g6*>5 g5*>6 g4*>7 g3*>8 g2*>9 g0 ; ");
  EXPECT_EQ(reductions(config).find('@'), std::string::npos);
}

TEST(Amaxes, AreAgreedOnWhereABlockOrATensorHasSeveralOwners) {
  EXPECT_EQ(amaxes(dense()), 0u);
  EXPECT_EQ(amaxes(dense(RecipeName::mxfp8)), 0u);
  EXPECT_EQ(amaxes(dense(RecipeName::fp8_block)), 1u);
  EXPECT_EQ(amaxes(mixture(RecipeName::fp8_block)), 2u);
  EXPECT_EQ(amaxes(full(dense(RecipeName::fp8_block))), 0u);
  EXPECT_EQ(amaxes(full(dense(RecipeName::nvfp4))), 1u);
  EXPECT_EQ(amaxes(dense(RecipeName::fp8_tensor)), 1u);
  EXPECT_EQ(amaxes(full(dense(RecipeName::fp8_tensor))), 1u);
  RunConfig tiles = dense(RecipeName::fp8_block), scaled = dense(RecipeName::nvfp4),
            whole = dense(RecipeName::fp8_tensor);
  tiles.proof.cuts = scaled.proof.cuts = whole.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(amaxes(tiles), 0u);
  EXPECT_EQ(amaxes(scaled), 1u);
  EXPECT_EQ(amaxes(whole), 1u);
}

TEST(Decoder, IsAnEvaluationAllOfWhoseGroupsAreResident) {
  const RunPlan plan = resolve_decoding(dense(RecipeName::mxfp8), 2, 0, 16);
  EXPECT_EQ(text(plan, plan.schedule.resident, ProcessGroup::dense), "g0");
  EXPECT_TRUE(plan.schedule.training.empty());
  EXPECT_TRUE(plan.schedule.evaluation.empty());
  EXPECT_TRUE(plan.schedule.reductions.empty());
  EXPECT_TRUE(plan.schedule.gradient_slots.empty());
}

/// A row made wrong, and a word of the sentence that must say so.
struct Broken {
  const char* fault;
  std::function<void(SyncSchedule&)> change;
};

TEST(Check, RejectsEveryBrokenRow) {
  const RunConfig sharded = times(2, full(dense(RecipeName::mxfp8), Mode::full));
  RunConfig tied = times(2, full(dense())), staged = times(2, dense(RecipeName::mxfp8));
  tied.model.tied_head = true;
  staged.reduce.bucket_mib = 0.05;
  const std::vector<Broken> of_full{
      {"no visit serves", [](auto& s) { s.training[{4}].sides = Sides::none; }},
      {"no visit serves", [](auto& s) { s.evaluation[{1}].group = {0}; }},
      {"in use", [](auto& s) { s.training[{3}].slot = 0; }},
      {"another pool's slot", [](auto& s) { s.training[{3}].slot = 2; }},
      {"in use", [](auto& s) { s.training[{2}].prefetch = {4}; }},
      {"not in its list", [](auto& s) { s.training[{2}].prefetch = {99}; }},
      {"no visit serves", [](auto& s) { s.training[{2}].next = {4}; }},
      {"opens its next visit", [](auto& s) { s.training.add(s.training[{15}]), s.training[{15}].next = {16}; }},
      {"do not add up", [](auto& s) { s.reductions.pop_back(); }},
      {"do not add up", [](auto& s) { s.reductions[1].micro_batches = 2; }},
      {"not numbered", [](auto& s) { s.reductions[4].round = 2; }},
      {"assigns", [](auto& s) { s.reductions[4].sum = SumInto::assign; }},
      {"not there", [](auto& s) { s.reductions[2].slot = 2; }},
      {"a second round would overwrite", [](auto& s) { s.gradient_slots[1].residency = Residency::resident; }},
      {"another place in the list", [](auto& s) { std::swap(s.reductions[1], s.reductions[2]); }},
  };
  const std::vector<Broken> of_tied{{"another group accumulates", [](auto& s) { s.reductions[0].slot = 0; }},
                                    {"another group accumulates", [](auto& s) { s.gradient_slots[0].memory = 1; }}};
  const std::vector<Broken> of_optimizer{
      {"not one resident visit", [](auto& s) { s.resident[{0}].group = {0}; }},
      {"is staged in its gradients", [](auto& s) { s.reductions[1].after = {0}; }},
      {"never complete", [](auto& s) { s.contributions[{3}] = 2; }},
      {"another place in the list", [](auto& s) { std::swap(s.reductions[0], s.reductions[1]); }},
      {"is never reduced", [](auto& s) { s.reductions.clear(); }},
  };
  for (const auto& [config, broken] :
       {std::pair{sharded, of_full}, std::pair{tied, of_tied}, std::pair{staged, of_optimizer}}) {
    const RunPlan plan = plan_of(config);
    EXPECT_EQ(check(plan.schedule, plan.sync_inputs()), std::vector<std::string>());
    for (std::size_t i = 0; i < broken.size(); ++i) {
      SyncSchedule schedule = plan.schedule;
      broken[i].change(schedule);
      std::string all;
      for (const std::string& one : check(schedule, plan.sync_inputs())) all += one + "\n";
      EXPECT_NE(all.find(broken[i].fault), std::string::npos) << i << ": " << broken[i].fault << "\nfound: " << all;
      EXPECT_NE(schedule.hash(), plan.schedule.hash()) << i;
    }
  }
}

/// Weights, gradients and amaxes of a step that begins behind a publication, as a dry engine asks for them.
std::vector<PlannedCollective> recorded(const RunPlan& plan) {
  Device device(Device::Kind::measuring);
  std::vector<Record> records;
  Mesh mesh = planning_mesh(plan.ranks);
  mesh.wrap([&](std::unique_ptr<Communicator> one) { return recording(std::move(one), records); });
  Engine engine(device, plan, mesh);
  engine.initialise();
  engine.step({{}, {}, plan.sizes.local()}, {});
  records.clear();
  engine.step({{}, {}, plan.sizes.local()}, {});
  std::vector<PlannedCollective> all;
  for (const Record& record : records)
    if (record.label == label::weights || record.label == label::shards || record.label == label::gradients ||
        record.label == "amaxes")
      all.push_back({record.collective, {record.group}});
  return all;
}

TEST(Collectives, AreThoseThatAStepAsksFor) {
  std::mt19937 random(7);
  std::size_t compared = 0, plans = 0;
  for (int number = 0; number < 330; ++number) {
    const int ranks = 1 + number % 4;
    const RunConfig config = drawn(random, ranks);
    if (!refusals(config, ranks).empty()) continue;
    const RunPlan plan = resolve(config, ranks, ranks - 1);
    ASSERT_EQ(check(plan.schedule, plan.sync_inputs()), std::vector<std::string>()) << number;
    const std::vector<PlannedCollective> planned = collectives_of(plan.schedule, plan.sync_inputs());
    ASSERT_EQ(planned, recorded(plan)) << number;
    compared += planned.size();
    ++plans;
  }
  EXPECT_GT(plans, 200u);
  EXPECT_GT(compared, 4000u);
}

}  // namespace
}  // namespace tessera
