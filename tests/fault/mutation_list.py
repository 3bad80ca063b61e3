"""Mutations: faults that occurred in production in systems of this kind, or that would break Tessera's promises. Each has
the place where it is put in and the tests that must detect it. `mutations.py` tries them."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    name: str
    fault: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # names of ctest tests, each with the part to run: a gtest filter, or the name of a Python test


def mutation(name, fault, file, old, new, *tests):
    return Mutation(name, fault, (Edit(file, old, new),), tests)


SYNC, WEIGHTS, GRADIENTS = (f"core/params/param_sync{part}.cpp" for part in ("", "_weights", "_gradients"))
SCHEDULE, SLOTS = "core/params/sync_schedule.cpp", "core/params/slots.cpp"
PENDING = "core/params/pending_reductions.cpp"
WIRES = "core/params/wires/"
STORED = "mpi.wires_test.{} Wires.EveryStoredByteIsTheQuantizedWeights"
SLICES = "mpi.full_sharding_test.{} FullSharding.EqualsShardedOptimizersUnderDelays"
PARTS = "unit.cuts_test Parts.AreWhatTheSlicesElementsAreMadeInto"
DROPPED = "unit.optimizers_test SteppedTest.ADroppedUpdateLeavesAllRoundingToPublication"
REPLAY = "unit.replay_test Replay.LeavesLogStatesAndCountsAsAnEagerStep"
READS = "unit.optimizers_test SteppedTest.PublicationReadsNoMasterThatTheUpdateRounds"
ROUNDED = "mpi.training_test.2 Training.StoredWeightsAreTheRoundedMastersAfterEveryStep"

MUTATIONS = [
    # Weights: stage, gather, consume.
    mutation("settled_without_consume", "a gather forced by an evaluation or a save ends without its post-processing", SYNC,
             "    if (!cursor_.open(visit.pool)) open(stream, visit.pool);",
             """    if (!cursor_.open(visit.pool)) {
      if (rules_.gather == Overlap::off) {
        open(stream, visit.pool);
        continue;
      }
      stage_with_gather(stream, visit);
      start_gather(stream, visit);
      WeightSlot& slot = slot_of(visit);
      if (slot.gather) slot.gather.wait(stream);
      slot.machine.to(SlotState::gathered, visit.group);
      slot.machine.to(SlotState::ready, visit.group);
      cursor_.advance(visit.pool);
    }""",
             "regression.fixed_cases.experts_in_one_tensor_or_in_one_each"),
    mutation("columnwise_of_the_first_publish", "the columnwise copy stays that of an earlier step", WIRES + "derived.cpp",
             "  build_columnwise(stream, *table);",
             """  static std::vector<const void*> built;
  for (const void* one : built)
    if (one == &*table) return;
  built.push_back(&*table);
  build_columnwise(stream, *table);""",
             STORED.format(1), STORED.format(2)),
    Mutation("gathered_mark_outlives_an_evaluation", "after an evaluation a stale mark skips the next gather",
             (Edit(WEIGHTS, "void ParamSync::invalidate(Stream& stream) {\n",
                   "bool gathered = false;\nvoid ParamSync::invalidate(Stream& stream) {\n"
                   "  if (std::exchange(gathered, false)) return;\n"),
              Edit(SYNC, "void ParamSync::unshard_all(Stream& stream) {\n",
                   "extern bool gathered;\nvoid ParamSync::unshard_all(Stream& stream) {\n"
                   "  gathered = rules_.gather == Overlap::on;\n")),
             ("mpi.training_test.2 Training.EvaluationChangesNoBit", ROUNDED)),
    mutation("lease_ignored", "gradients are written over staged bytes that still wait for their gather", GRADIENTS,
             "  if (reduction.after != VisitId{} && in_transit(group)) open(stream, group.pool);\n", "",
             "mpi.wires_test.2 Wires.GradientsAndStagedBytesShareTheirMemory",
             "mpi.param_sync_model_test.2"),
    mutation("staged_in_gradients_in_use", "staging does not ask whether the gradients that it overwrites are in use", SYNC,
             "    if (group.staged_in == StagedIn::gradients && group.gradients.state() != GradientState::empty)",
             "    if (group.uses < 0)",
             "mpi.wires_test.1 Wires.NothingIsStagedInGradientsThatAreInUse"),
    mutation("staged_bytes_in_sums", "slots that no micro-batch wrote keep old staged bytes, and are summed", GRADIENTS,
             "  if (bucket.size.value > end) clear(stream, gradients.flat(end, bucket.size.value - end));", "",
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory", "mpi.wires_test.1 Wires.GradientsAndStagedBytesShareTheirMemory"),
    mutation("slot_of_the_ring_in_use", "a group is staged in a slot of the ring that another still needs", WEIGHTS,
             "  return holder == groups_.end() ? nullptr : &*holder;", "  return holder == groups_.end() || true ? nullptr : &*holder;",
             "mpi.param_sync_model_test.2"),
    mutation("all_of_the_ring_is_staged_at_once", "a publication stages more groups than the ring has slots", SCHEDULE,
             "std::exchange(slot, true) ? StagedAt::gather", "std::exchange(slot, false) ? StagedAt::gather",
             "unit.sync_schedule_test Optimizer.ARingStagesAtThePublicationWhatItHasRoomFor", STORED.format(2)),
    mutation("cast_twice", "weights are quantized again, which the gather then overwrites", SYNC, "  stage(stream, published_);\n",
             "  stage(stream, published_);\n  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, published_);\n",
             "mpi.wires_test.1 Wires.LaunchesDoNotDepend*"),
    mutation("gathered_twice", "a group's weights are gathered twice a step", SYNC, "  stage(stream, published_);\n",
             "  stage(stream, published_);\n  unshard_all(stream);\n  invalidate(stream);\n  reduce_amaxes(stream);\n  stage(stream, published_);\n",
             "mpi.wires_test.2 Wires.GathersMoveWhatTheFormatsSay"),
    mutation("empty_shard_skips_the_gather", "a rank without a part of a group's first bucket leaves its all-gather out", WEIGHTS,
             "  if (group.rank.size > 1) {\n    slot.exchanges.clear();",
             "  if (group.rank.size > 1 && group.buckets.front().gradient_shard.elements() > 0) {\n"
             "    slot.exchanges.clear();",
             STORED.format(4)),
    mutation("dropped_gather_is_left_behind", "a pending collective that is dropped is not finished", "core/comm/communicator.cpp",
             "Pending::~Pending() {\n  if (owner_) owner_->abandon(slot_);", "Pending::~Pending() {",
             "mpi.collectives_test.2 *DroppedPendingFinishes*"),
    # Masters, published weights and quantization.
    mutation("masters_from_weights", "masters begin as what the weights' type holds of them", "core/step/engine.cpp",
             "  built_.sync.publish(stream_, std::move(start));\n",
             """  built_.sync.publish(stream_, std::move(start));
  built_.sync.unshard_all(stream_);
  built_.sync.visit_planes([&](const Plane& plane) {
    if (plane.kind == PlaneKind::rowwise && plane.values.type == DType::bf16)
      convert(stream_, built_.masters.shard(plane.bucket),
              plan_.layout.buckets()[plane.bucket].slice(plane.values, mesh_.ranks()));
  });
""",
             "regression.fixed_cases.a_dense_deck"),
    mutation("owner_quantizes_fp32", "the owner holds Q(fp32), the others Q(bf16(fp32))", "kernels/quantize/shard_host.cpp",
             "  work.template operator()<FromMaster>();", "  work.template operator()<FromFp32>();",
             STORED.format(2), "unit.partial_cast_test PartialCast*.GatheredPartsAreTheWhole"),
    mutation("amax_of_own_part", "the amax of a weight is that of the part that is owned", WIRES + "codes.cpp",
             "      if (bucket.key.owner == OwnerKind::element_sharded)\n", "      if (bucket.members.empty())\n",
             STORED.format(2)),
    mutation("amax_stays_with_its_owner", "the amax of a weight that one rank owns does not travel", WIRES + "codes.cpp",
             "    if (amax && bucket.key.owner == OwnerKind::whole_matrix)", "    if (amax && bucket.members.empty())",
             STORED.format(2), "mpi.wires_test.2 Wires.GathersMoveWhatTheFormatsSay"),
    mutation("scales_of_a_neighbour", "scales of a part that begins inside a weight are the next rows'", WIRES + "shard_ranges.cpp",
             "  return array.members[m].first + within / density.elements * density.entries;",
             "  return array.members[m].first + (within / density.elements + (within > 0)) * density.entries;",
             PARTS, STORED.format(3)),
    mutation("bytes_padded_by_themselves", "bytes are dealt evenly, elements by their cuts: the owner is not the shipper",
             WIRES + "shard_ranges.cpp",
             """    parts.begins.push_back(formats::data_bytes(format, bucket.begins[r]));
    parts.counts.push_back(formats::data_bytes(format, bucket.begins[r] + bucket.counts[r]) - parts.begins[r]);""",
             """    const std::int64_t even = bucket.size.value / std::ssize(bucket.counts);
    parts.begins.push_back(formats::data_bytes(format, even * static_cast<std::int64_t>(r)));
    parts.counts.push_back(formats::data_bytes(format, even));""",
             PARTS, STORED.format(3)),
    mutation("nibble_before_the_shard", "a shard that begins in a byte's second half writes the byte's first half too",
             "kernels/quantize/host_shard.hpp",
             "    if (first < end && (position + first) % 2 != 0) put(first++);", "    if (first > 0 && (position + first) % 2 != 0) --first;",
             "unit.partial_cast_test PartialCast*"),
    mutation("bytes_behind_the_shard", "codes are written to the end of a row that the shard ends in",
             "kernels/quantize/host_shard.hpp",
             "    store_range<typename F::Element>(codes, position, first, end, d.side[0].data);",
             "    store_range<typename F::Element>(codes, position, first, p.columns, d.side[0].data);",
             "unit.partial_cast_test PartialCast*"),
    # Layout.
    mutation("one_size_for_all_process_groups", "experts are cut for all ranks, and shared by fewer", "core/layout/layout.cpp",
             "  return processes == ProcessGroup::dense ? rules.dense_ranks : rules.expert_ranks;",
             "  return processes == ProcessGroup::dense ? rules.dense_ranks : rules.dense_ranks;",
             "unit.layout_test ParamLayout.*", "mpi.param_sync_test.4 ParamSync.ReducesOverPoisonedMemory"),
    mutation("gaps_forgotten", "members of a weight lie as if nothing aligned them", "core/layout/layout.cpp",
             "round_up(spec.member_elements(), alignment)};", "spec.member_elements()};",
             "mpi.param_sync_test.1 ParamSync.EveryRankHoldsQuantizedMastersAfterPublish"),
    mutation("owner_of_the_groups_first_bucket", "who steps a bucket is read from the first bucket of its group",
             "core/optim/optimizers.cpp",
             "      if (layout.buckets()[b].key.owner == kind) buckets.push_back(b);",
             "      if (const ParamId one = layout.buckets()[b].members.front().param;\n"
             "          layout.buckets()[layout.groups()[layout.group_of(one)].buckets.front()].key.owner == kind)\n"
             "        buckets.push_back(b);",
             "mpi.muon_training_test.2 Muon.EveryGroupIsGatheredOnceAStep"),
    # Gradients, norm, skipped and redone steps.
    mutation("added_to_last_steps_gradients", "a gradient's first write adds to what the step before left", GRADIENTS,
             "rounds_.written(param) ? 1.0f : 0.0f;", "rounds_.written(param) || true ? 1.0f : 0.0f;",
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory"),
    mutation("every_gradient_is_written_once", "how often a gradient is written is not what the dry pass counted", SCHEDULE,
             "  for (const Contribution& one : of.usage.contributions) ++schedule.contributions[one.param];",
             "  for (const Contribution& one : of.usage.contributions) schedule.contributions[one.param] = 1;",
             "mpi.training_test.1 Training.EvaluationChangesNoBit"),
    # One order of sums, whatever the number of ranks.
    mutation("running_sum_comes_last", "the ranks' gradients of a round are added up, then added to the running sum",
             "kernels/reduce/reduce.cpp",
             "        const T* const first = more ? y : in.part(0);",
             """        if (more) {
          for (std::int64_t l = 0; l < Strip::width; ++l) sum[l] = 0;
          for (std::int64_t r = 0; r < in.counted; ++r)
            strip.each([&](std::int64_t l, std::int64_t i) { sum[l] += in.part(r)[i]; });
          strip.each([&](std::int64_t l, std::int64_t i) { y[i] += sum[l]; });
          return;
        }
        const T* const first = in.part(0);""",
             "unit.reduce_test SumInOrder*", "regression.any_ranks.bf16"),
    mutation("padding_is_added", "gradients of a rank that is idle in the last round are added like others'",
             "core/params/pending_reductions.cpp", "rank.rank, flight.reduction->idle}", "rank.rank, 0}", "regression.any_ranks.bf16"),
    mutation("dealt_by_blocks", "a rank's micro-batches follow each other in the batch", "core/data/sampler.cpp",
             "  const std::int64_t begin = std::min(global_, (round * ranks_ + rank) * micro_);",
             "  const std::int64_t begin = std::min(global_, (rank * rounds() + round) * micro_);",
             "unit.sampler_test BatchPlan*", "regression.any_ranks.bf16"),
    mutation("one_rank_accumulates", "a rank alone adds each contribution to its running sum", SCHEDULE,
             "  return schedule.resides(group) && !of.rules.reduces_each_micro_batch();",
             "  return schedule.resides(group) && (of.ranks.world.size == 1 || !of.rules.reduces_each_micro_batch());",
             "regression.any_ranks.bf16"),
    mutation("sums_by_rank", "losses are added up rank by rank", "core/step/step_memory.cpp",
             "    const std::int64_t place = m % world_.size * rounds_ + m / world_.size;", "    const std::int64_t place = m;",
             "regression.any_ranks.bf16"),
    mutation("norm_of_one_rank", "the norm counts the elements of one rank", "core/optim/clip.cpp",
             "  if (world.size() > 1) {", "  if (world.size() < 0) {", "mpi.golden_training_test.2 *Fp32*"),
    Mutation("one_rank_skips", "what is not finite on a rank skips the step on that rank alone",
             (Edit("core/optim/clip.cpp", "  if (not_finite) add_not_finite(stream, words, not_finite);\n", ""),
              Edit("core/optim/clip.cpp", "  clip_from_squares(", "  if (not_finite) add_not_finite(stream, words, not_finite);\n"
                   "  clip_from_squares(")),
             ("regression.recipes.notfinite.a_gradient",)),
    mutation("redo_keeps_counts", "a redone step meets the counts of the first try", GRADIENTS,
             "  rounds_.restart();\n}\n\nTensor ParamSync::claim", "}\n\nTensor ParamSync::claim",
             "mpi.param_sync_test.2 ParamSync.ADroppedStepMayBeDoneAgain",
             "mpi.param_sync_test.2 ParamSync.AStepMayBeDoneAgainAfterItsReduction"),
    mutation("redo_keeps_sums", "a redone step adds to the loss of the first try", "core/step/engine.cpp",
             "      memory_.clear_sums(stream_);\n", "", "regression.recipes.notfinite.a_step_made_again"),
    mutation("spot_checks_of_ones_own", "a spot check has each rank compute its own micro-batch again, which errs as before", "core/layout/ranks.hpp",
             "world.rank + groups * experts.size)", "world.rank + groups * 0)",
             "unit.batches_test MixedBatches.OfASpotCheckEndWithTheFirstMicroBatchesOfRanksFurtherOn",
             "regression.suspects SpotChecks.test_a_fault_that_looks_sound_is_named"),
    mutation("spot_checks_of_losses_alone", "a spot check digests no gradient", "core/step/fingerprint.cpp",
             "  if (--unwritten_[param] == 0) {", "  if (--unwritten_[param] == -1) {",
             "regression.suspects SpotChecks.test_a_fault_that_looks_sound_is_named"),
    mutation("spot_checks_count_in_the_sums", "the sums of a spot check's computation stay in those of the step", "core/step/engine.cpp",
             "  const StepFingerprint made = fingerprint(memory_.first_sums());\n  memory_.clear_sums(stream_);\n",
             "  const StepFingerprint made = fingerprint(memory_.first_sums());\n",
             "regression.suspects SpotChecks.test_checks_change_no_bit"),
    mutation("redo_adds_up_the_first_try", "a redone step sums what reductions of the first try have received", PENDING,
             "  oldest_ = in_flight_ = 0;",
             "  oldest_ = 0;",
             "mpi.param_sync_model_test.2"),
    mutation("counters_begin_anew_at_load", "a resumed run counts its updates from zero", "core/step/engine.cpp",
             "  memory_.initialise(stream_, optimizers_.words_of(state.counters.rules));",
             "  memory_.initialise(stream_, optimizers_.words_of(optimizers_.counters()));",
             "mpi.checkpoint_test.2 Checkpoints.ResumeChangesNoBit"),
    # Products.
    mutation("not_finite_is_lost", "what is not finite vanishes in a format that saturates", "core/model/layers/factors.cpp",
             "  matrix.draws = {call", "  matrix.not_finite = {};\n  matrix.draws = {call", "regression.recipes.notfinite.a_gradient"),
    mutation("evaluation_hides_not_finite", "an evaluation over activations that are not finite has a loss", "core/step/engine.cpp",
             "  if (quantizes()) spoil(stream_, &sums->loss, {&sums->not_finite, DType::u64, {1}});\n", "  (void)sums;\n",
             "mpi.passes_test.2 Passes.AnEvaluationOfWhatIsNotFiniteHasNoLoss"),
    mutation("draws_repeat", "random rounding draws the same in every step", "core/step/step_memory.cpp",
             "    const StepInputs inputs{scalars, batch.step, target_scale};",
             "    const StepInputs inputs{scalars, 1, target_scale};",
             "mpi.passes_test.2 Passes.EveryStepDrawsAnew"),
    mutation("alpha_of_the_first_member", "products of experts are scaled by the amax of the first", "kernels/gemm/decoded.cpp",
             "amaxes.of[e / each][e % each])", "amaxes.of[0][0])",
             "unit.coded_product_test CodedProduct*.OfExpertsAreThoseOfEachAlone"),
    mutation("codes_of_the_first_member", "discrete experts are all decoded from the first one's codes",
             "kernels/quantize/dequantize_host.cpp", "member_apart(table.one, copies, side, task);",
             "member_apart(table.one, copies, side, Task{0, 0, task.row, task.column});",
             "unit.coded_product_test CodedProduct*.OfManyDiscreteExpertsTakeFewLaunches"),
    mutation("hadamard_of_gradients_alone", "one factor of a product is rotated, the other is not",
             "kernels/quantize/host_quantize.hpp",
             "  if constexpr (F::hadamard && M::rotates) {\n    alignas(64) float y",
             "  if constexpr (F::hadamard && M::rotates && M::draws) {\n    alignas(64) float y",
             "unit.quantize_test *Rotated*"),
    mutation("rules_reversed", "of the rules that match a matrix the first one decides", "core/recipe/treatment.cpp",
             "  for (std::size_t i = list.size(); i > 0; --i)\n    if (list[i - 1].matches(block, part)) return static_cast<int>(i) - 1;",
             "  for (std::size_t i = 0; i < list.size(); ++i)\n    if (list[i].matches(block, part)) return static_cast<int>(i);",
             "unit.layout_test TreatmentRules.*", "regression.slots.meaning Meaning.test_layers"),
    mutation("a_slot_is_dropped", "activations are quantized only where the weight is", "core/model/layers/factors.cpp",
             "    : treatment_(weight.treatment),",
             "    : treatment_(weight.format.codes ? weight.treatment : Treatment{.plain = weight.treatment.plain}),",
             "unit.slots_test Slots.EachChangesItsProductAlone", "regression.slots.meaning Meaning.test_single"),
    mutation("bias_weighs", "experts are weighted by what they are chosen by, their score plus bias", "kernels/moe/route.cpp",
             "(renormalize ? s[chosen[j]] / total : s[chosen[j]]) * scale;",
             "(renormalize ? s[chosen[j]] / total : s[chosen[j]] + (biases ? biases[chosen[j]] : A(0))) * scale;",
             "unit.moe_test Route/*.EqualsReference"),
    mutation("counts_in_the_norm", "counts of tokens are taken for slopes of the loss, in the gradient norm", "core/optim/clip.cpp",
             "if (layout.buckets()[b].key.owner == OwnerKind::counted) continue;", "", "unit.balance_rule_test BalanceRule.StepsMembersAlone"),
    mutation("gaps_are_balanced", "what lies between the biases of two routers is stepped too, and drifts", "core/optim/balance.cpp",
             "slice.kinds.resize(static_cast<std::size_t>(size));", "slice.kinds.resize(static_cast<std::size_t>(size), 1.0f);",
             "unit.balance_rule_test BalanceRule.StepsMembersAlone"),
    mutation("skipped_steps_balance", "a skipped step moves the biases of routers", "kernels/optim/balance.cpp",
             "if (clip->skip != 0 || kinds", "if (kinds", "unit.balance_rule_test BalanceRule.ASkippedStepChangesNothing"),
    mutation("counts_of_one_micro_batch", "a step's counts are those of its last micro-batch", "kernels/moe/route.cpp",
             "beta * out[e] + A(own)", "A(own)", "unit.moe_test Route/*.LoadIsAddedUp"),
    mutation("shared_expert_forgets", "what the shared expert's input gets of its gradient is overwritten by the other experts'",
             "core/model/layers/moe.cpp", "shared_ ? dx : Tensor{});", "Tensor{});", "unit.gpt_gradients_test GptGradients.LikeDeepSeek"),
    mutation("choices_without_their_token", "the digest of choices knows where a token lies in its micro-batch alone, not in the batch", "kernels/moe/record.cpp",
             "static_cast<std::uint64_t>(first_token * shape.top_k)", "static_cast<std::uint64_t>(0 * first_token)",
             "unit.moe_record_test Record/*.AddsUpOverMicroBatches"),
    mutation("routing_of_one_rank", "what is recorded of the routing is not summed over the ranks", "core/optim/clip.cpp",
             "{sums, also ? 2u : 1u}", "{sums, 1u}", "regression.routing"),
    mutation("norm_of_one_head_for_all", "query and key norm over the width is that of the first head", "kernels/attention/head_norm.cpp",
             "return {1, 2, 3, s.heads * n, s.kv_heads * n, tokens};", "return {1, 2, 3, n, s.kv_heads * n, tokens};",
             "unit.head_norm_test HeadNorm/*.OrAllOfATokenTogether"),
    mutation("angles_of_the_whole_head", "heads that turn in part turn by the angles of heads that turn whole", "kernels/attention/rotary.cpp",
             "Kokkos::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(dim))", "Kokkos::pow(base, -1.0 * static_cast<double>(j) / static_cast<double>(dim))",
             "unit.attention_test Attention/*.RotaryTurnsPairsAndTurnsThemBack"),
    mutation("rows_between_experts_are_kept", "rows that are no token's keep old data in the forward pass", "kernels/moe/permute.cpp",
             "    row.each(n, [=](std::int64_t j) { to[j] = m < 0 ? T(0) : from[j]; });",
             "    if (m >= 0) row.each(n, [=](std::int64_t j) { to[j] = from[j]; });",
             "unit.moe_test *RowsOfNoTokenAreZeroAndNumberedZero"),
    mutation("gradients_between_experts_are_kept", "rows that are no token's keep old data in the backward pass",
             "kernels/moe/permute.cpp", "return token[r] < 0;", "return false && token[r] < 0;",
             "unit.moe_test *RowsOfNoTokenAreZeroAndNumberedZero"),
    # Full sharding.
    mutation("released_before_the_last_access", "weights of which ranks keep slices are given up behind their first access",
             "core/params/param_sync.hpp", "{ --group_of(param).uses; }",
             "{\n  ParamGroup& group = group_of(param);\n  if (--group.uses > 0 || slots_[group.pool].size() == 1) return;\n"
             "  for (WeightSlot& slot : slots_[group.pool])\n"
             "    if (slot.visit && slot.visit->group == group.id && slot.machine.state() == SlotState::ready)\n"
             "      slot.machine.to(SlotState::free, group.id);\n}",
             SLICES.format(2)),
    mutation("slot_in_use_is_gathered_to", "the next visit is gathered over the one under way", SLOTS,
             "      const Tensor slot = device.allocate(Category::staging, DType::u8, ",
             "      static Tensor slot;\n      if (i == 0) slot = device.allocate(Category::staging, DType::u8, ",
             SLICES.format(2)),
    mutation("columnwise_side_of_the_first_publish", "columnwise codes that travel by themselves do so once", WEIGHTS,
             "      const std::span<const Exchange> exchanges = wire->exchanges(group.id, {visit.slot, visit.sides});\n",
             "      if (visit.sides == Sides::columnwise && group.weights.epoch() > 1) continue;\n"
             "      const std::span<const Exchange> exchanges = wire->exchanges(group.id, {visit.slot, visit.sides});\n",
             SLICES.format(2)),
    mutation("blocks_in_place_of_modules", "granularity module gathers whole blocks", "core/plan/plan.cpp",
             "  return gathers_modules(config) ? GatherUnit::module : GatherUnit::block;", "  return GatherUnit::block;",
             "unit.sync_schedule_test Full.OneForwardAndOneBackwardWhereOnePayloadServesBoth"),
    Mutation("a_tied_embedding_is_reduced_twice", "the head's part of a tied embedding is reduced before the tokens' is there",
             (Edit("core/params/rounds.hpp", "    return ++count.written == count.expected && ", "    return ++count.written > 0 && "),),
             (SLICES.format(2),)),
    mutation("prefetched_into_the_open_slot", "the visits of a pool do not alternate between its slots", SCHEDULE,
             "        visit.slot = (open.slot + 1) % schedule.pools[visit.pool].slots;\n", "",
             "unit.sync_schedule_test Full.MicroBatchesFollowEachOtherThroughTheSlots"),
    mutation("a_reduction_a_write_early", "a group is reduced before its last parameter is written", GRADIENTS,
             "  if (rounds_.completes(param) && rounds_.now", "  if ((rounds_.completes(param) || true) && rounds_.now",
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory"),
    # Replay.
    mutation("a_log_not_repeated", "replayed steps are missing in the log that ranks compare", "core/comm/control.cpp",
             "  for (const Entry& entry : kept_for_replays_) append(entry);", "", REPLAY,
             "unit.collective_log_test CollectiveLog.ReplaysAreNotedAsIfTheyHadBeenSubmitted"),
    mutation("a_replay_without_an_end", "neither log nor watchdog hear that a graph has been launched", "core/step/repeated_work.cpp",
             "  mesh_.replayed(end);\n", "", REPLAY),
    mutation("epochs_stand_still", "a replay leaves the epochs of weights where they were", SYNC,
             "    group.weights.replayed();\n", "", REPLAY),
    # Saves while training goes on.
    mutation("live_state_is_written", "what is written beside training is not the copy but the state, which later steps change",
             "io/checkpoint/snapshot.cpp", "      range.values.data = at;\n", "",
             "mpi.checkpoint_ways_test.2 Checkpoints.AreTheSameBytesWrittenWhileTrainingGoesOn"),
    # Muon.
    mutation("owned_matrices_are_never_staged", "masters of matrices that are owned whole are stepped and never travel",
             WIRES + "rounded.cpp",
             "    slices.push_back(\n", "    if (bucket.key.owner != OwnerKind::whole_matrix) slices.push_back(\n", ROUNDED),
    mutation("owned_codes_are_never_cast", "of matrices that are owned whole the owner quantizes nothing", WIRES + "bucket.cpp",
             "    if (first < last) {", "    if (first < last && bucket.key.owner != OwnerKind::whole_matrix) {", STORED.format(2)),
    Mutation("staged_before_the_step", "what travels are the masters before the optimizer's step",
             (Edit(SYNC, "  if (updated.weights() == Updated::Weights::current) invalidate(stream);\n"
                   "  reduce_amaxes(stream);\n  stage(stream, published_);\n",
                   "  if (groups_[GroupId{0}].weights.epoch() == 0) {\n"
                   "    invalidate(stream);\n    reduce_amaxes(stream);\n    stage(stream, published_);\n  }\n"),
              Edit("core/params/tokens.cpp", "  held().invalidate(stream);\n", "  (void)stream;\n"),
              Edit(GRADIENTS, "  for (ParamGroup& group : groups_) group.gradients.to(GradientState::reduced);\n",
                   "  for (ParamGroup& group : groups_) group.gradients.to(GradientState::reduced);\n"
                   "  invalidate(stream);\n  reduce_amaxes(stream);\n  stage(stream, published_);\n")),
             (ROUNDED,)),
    mutation("weights_of_a_dropped_update", "publication leaves out weights that an update which was dropped did not write",
             WEIGHTS, "  for (const std::unique_ptr<Wire>& wire : wires_) wire->release_claims();\n", "", DROPPED),
    mutation("weights_of_an_update_rounded_again", "publication reads the masters of weights that the update has written",
             WIRES + "rounded.cpp", "  claimed_[static_cast<std::size_t>(slice - slices_.begin())] = true;\n", "", READS),
    mutation("weights_written_before_their_masters", "an update writes the weights of the masters before it",
             "kernels/optim/adamw.cpp",
             "          row.each(count, [=](std::int64_t j) { factors.update(p[j], m[j], v[j], g[j], decay); });\n"
             "          if (bf16* const rounded = run.rounded ? run.rounded + begin : nullptr)\n"
             "            row.each(count, [=](std::int64_t j) { rounded[j] = bf16(p[j]); });\n",
             "          if (bf16* const rounded = run.rounded ? run.rounded + begin : nullptr)\n"
             "            row.each(count, [=](std::int64_t j) { rounded[j] = bf16(p[j]); });\n"
             "          row.each(count, [=](std::int64_t j) { factors.update(p[j], m[j], v[j], g[j], decay); });\n",
             ROUNDED),
    mutation("gradient_to_another_owner", "slices are sent as if owners stood in the order of ranks", SLOTS,
             """    exchanges.push_back({own.gradients, slot.flat(offset, received.elements()).view(received), bucket.counts,
                         bucket.begins});""",
             """    auto& begins = *new std::vector<std::int64_t>(1, 0);
    for (std::size_t r = 0; r + 1 < bucket.counts.size(); ++r) begins.push_back(begins.back() + bucket.counts[r]);
    exchanges.push_back({own.gradients, slot.flat(offset, received.elements()).view(received), bucket.counts, begins});""",
             "regression.muon Muon.test_owners_change_no_bit"),
    mutation("momentum_of_a_skipped_step", "a skipped step changes the momentum", "kernels/optim/muon.cpp",
             "        if (clip->skip != 0) return;", "        if (clip->skip != 0 && name[5] == 'u') return;  // muon_update",
             "unit.muon_test *ASkippedStepChangesNothing", "mpi.muon_training_test.2 Muon.ASkippedStepChangesNothing"),
    mutation("update_of_a_batch", "a matrix's update depends on those that are made orthogonal beside it",
             "kernels/newton_schulz/newton_schulz.cpp",
             "        const std::int64_t first = rows[m].first_chunk, chunks = rows[m + 1].first_chunk - first;",
             "        const std::int64_t first = 0, chunks = rows[count].first_chunk;",
             "unit.newton_schulz_test NewtonSchulz.TheBitsOfAMatrixAreItsOwn"),
]
