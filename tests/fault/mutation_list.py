"""Mutations: faults that occurred in production in systems of this kind, or that would break Tessera's promises. Each has
what it makes of the lines that bear its mark in the source, `// mutation: NAME` (NAME.1, NAME.2 where there are several), at the
end of the line or above it; and the tests that must detect it. `mutations.py` tries them."""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Edit:
    """What becomes of the line that bears the mark, and of those behind it if it takes several `lines`."""
    lines: int = field(default=1, kw_only=True)

    def of(self, lines):
        raise NotImplementedError


@dataclass(frozen=True)
class Instead(Edit):
    text: str

    def of(self, lines):
        return [self.text]


@dataclass(frozen=True)
class Before(Edit):
    text: str

    def of(self, lines):
        return [self.text, *lines]


@dataclass(frozen=True)
class After(Edit):
    text: str

    def of(self, lines):
        return [*lines, self.text]


@dataclass(frozen=True)
class Dropped(Edit):
    def of(self, lines):
        return []


@dataclass(frozen=True)
class Swapped(Edit):
    """A piece of the line, which must be there once, for another."""
    old: str
    new: str

    def of(self, lines):
        (line,) = lines
        if line.count(self.old) != 1:
            raise ValueError(f"has {line.count(self.old)} times {self.old!r}: {line.strip()}")
        return [line.replace(self.old, self.new)]


@dataclass(frozen=True)
class Mutation:
    name: str
    fault: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # names of ctest tests, each with the part to run: a gtest filter, or the name of a Python test


def mutation(name, fault, edit, *tests):
    return Mutation(name, fault, (edit,), tests)


STORED = "mpi.wires_test.{} Wires.EveryStoredByteIsTheQuantizedWeights"
SLICES = "mpi.full_sharding_test.{} FullSharding.EqualsShardedOptimizersUnderDelays"
GROUPS = "mpi.sharding_groups_test.4 ShardingGroups.OfAnySizeGiveTheSameBitsUnderDelays"
PARTS = "unit.cuts_test Parts.AreWhatTheSlicesElementsAreMadeInto"
DROPPED = "unit.optimizers_test SteppedTest.ADroppedUpdateLeavesAllRoundingToPublication"
REPLAY = "unit.replay_test Replay.LeavesLogStatesAndCountsAsAnEagerStep"
READS = "unit.optimizers_test SteppedTest.PublicationReadsNoMasterThatTheUpdateRounds"
ROUNDED = "mpi.training_test.2 Training.StoredWeightsAreTheRoundedMastersAfterEveryStep"

MUTATIONS = [
    # Weights: stage, gather, consume.
    mutation("settled_without_consume", "a gather forced by an evaluation or a save ends without its post-processing",
             Instead("""    if (!cursor_.open(visit.pool)) {
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
    }
"""),
             "regression.fixed_cases.experts_in_one_tensor_or_in_one_each"),
    mutation("columnwise_of_the_first_publish", "the columnwise copy stays that of an earlier step",
             Before("""  static std::vector<const void*> built;
  for (const void* one : built)
    if (one == &*table) return;
  built.push_back(&*table);
"""),
             STORED.format(1), STORED.format(2)),
    Mutation("gathered_mark_outlives_an_evaluation", "after an evaluation a stale mark skips the next gather",
             (Instead("""bool gathered = false;
void ParamSync::invalidate(Stream& stream) {
  if (std::exchange(gathered, false)) return;
"""),
              Instead("""extern bool gathered;
void ParamSync::unshard_all(Stream& stream) {
  gathered = rules_.gather == Overlap::on;
""")),
             ("mpi.training_test.2 Training.EvaluationChangesNoBit", ROUNDED)),
    mutation("lease_ignored", "gradients are written over staged bytes that still wait for their gather", Dropped(),
             "mpi.wires_test.2 Wires.GradientsAndStagedBytesShareTheirMemory",
             "mpi.param_sync_model_test.2"),
    mutation("staged_in_gradients_in_use", "staging does not ask whether the gradients that it overwrites are in use",
             Swapped("staged_in == StagedIn::gradients && group.gradients.state() != GradientState::empty", "uses < 0"),
             "mpi.wires_test.1 Wires.NothingIsStagedInGradientsThatAreInUse"),
    mutation("staged_bytes_in_sums", "slots that no micro-batch wrote keep old staged bytes, and are summed", Dropped(),
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory", "mpi.wires_test.1 Wires.GradientsAndStagedBytesShareTheirMemory"),
    mutation("slot_of_the_ring_in_use", "a group is staged in a slot of the ring that another still needs",
             Swapped("end() ", "end() || true "),
             "mpi.param_sync_model_test.2"),
    mutation("all_of_the_ring_is_staged_at_once", "a publication stages more groups than the ring has slots", Swapped("true", "false"),
             "unit.sync_schedule_test Optimizer.ARingStagesAtThePublicationWhatItHasRoomFor", STORED.format(2)),
    mutation("cast_twice", "weights are quantized again, which the gather then overwrites",
             After("  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, published_);\n"),
             "mpi.wires_test.1 Wires.LaunchesDoNotDepend*"),
    mutation("gathered_twice", "a group's weights are gathered twice a step",
             After("""  unshard_all(stream);
  invalidate(stream);
  reduce_amaxes(stream);
  stage(stream, published_);
"""),
             "mpi.wires_test.2 Wires.GathersMoveWhatTheFormatsSay"),
    mutation("empty_shard_skips_the_gather", "a rank without a part of a group's first bucket leaves its all-gather out",
             Swapped("1", "1 && group.buckets.front().gradient_shard.elements() > 0"),
             STORED.format(4)),
    mutation("dropped_gather_is_left_behind", "a pending collective that is dropped is not finished", Dropped(),
             "mpi.collectives_test.2 *DroppedPendingFinishes*"),
    # Masters, published weights and quantization.
    mutation("masters_from_weights", "masters begin as what the weights' type holds of them",
             After("""  built_.sync.unshard_all(stream_);
  built_.sync.visit_planes([&](const Plane& plane) {
    if (plane.kind == PlaneKind::rowwise && plane.values.type == DType::bf16)
      convert(stream_, built_.masters.shard(plane.bucket),
              plan_.layout.buckets()[plane.bucket].slice(plane.values, mesh_.ranks()));
  });
"""),
             "regression.fixed_cases.a_dense_deck"),
    mutation("owner_quantizes_fp32", "the owner holds Q(fp32), the others Q(bf16(fp32))", Swapped("FromMaster", "FromFp32"),
             STORED.format(2), "unit.partial_cast_test PartialCast*.GatheredPartsAreTheWhole"),
    mutation("amax_of_own_part", "the amax of a weight is that of the part that is owned",
             Swapped("key.owner == OwnerKind::element_sharded", "members.empty()"),
             STORED.format(2)),
    mutation("amax_stays_with_its_owner", "the amax of a weight that one rank owns does not travel",
             Swapped("key.owner == OwnerKind::whole_matrix", "members.empty()"),
             STORED.format(2), "mpi.wires_test.2 Wires.GathersMoveWhatTheFormatsSay"),
    mutation("scales_of_a_neighbour", "scales of a part that begins inside a weight are the next rows'",
             Swapped("within / density.elements", "(within / density.elements + (within > 0))"),
             PARTS, STORED.format(3)),
    mutation("bytes_padded_by_themselves", "bytes are dealt evenly, elements by their cuts: the owner is not the shipper",
             Instead("""    const std::int64_t even = (cut.begins.back() + cut.counts.back()) / std::ssize(cut.counts);
    parts.begins.push_back(formats::data_bytes(format, even * static_cast<std::int64_t>(r)));
    parts.counts.push_back(formats::data_bytes(format, even));
""", lines=2),
             PARTS, STORED.format(3)),
    mutation("nibble_before_the_shard", "a shard that begins in a byte's second half writes the byte's first half too",
             Swapped("< end && (position + first) % 2 != 0) put(first++)", "> 0 && (position + first) % 2 != 0) --first"),
             "unit.partial_cast_test PartialCast*"),
    mutation("bytes_behind_the_shard", "codes are written to the end of a row that the shard ends in",
             Swapped("end", "p.columns"),
             "unit.partial_cast_test PartialCast*"),
    # Layout.
    mutation("one_size_for_all_process_groups", "experts are cut for all ranks, and shared by fewer",
             Swapped("expert_ranks", "dense_ranks"),
             "unit.layout_test ParamLayout.*", "mpi.param_sync_test.4 ParamSync.ReducesOverPoisonedMemory"),
    mutation("gaps_forgotten", "members of a weight lie as if nothing aligned them",
             Swapped("round_up(spec.member_elements(), aligned", "spec.member_elements("),
             "mpi.param_sync_test.1 ParamSync.EveryRankHoldsQuantizedMastersAfterPublish"),
    mutation("owner_of_the_groups_first_bucket", "who steps a bucket is read from the first bucket of its group",
             Instead("""      if (const ParamId one = layout.buckets()[b].members.front().param;
          layout.buckets()[layout.groups()[layout.group_of(one)].buckets.front()].key.owner == kind)
        buckets.push_back(b);
"""),
             "mpi.muon_training_test.2 Muon.EveryGroupIsGatheredOnceAStep"),
    # Gradients, norm, skipped and redone steps.
    mutation("added_to_last_steps_gradients", "a gradient's first write adds to what the step before left",
             Swapped("param) ", "param) || true "),
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory"),
    mutation("every_gradient_is_written_once", "how often a gradient is written is not what the dry pass counted",
             Swapped("++schedule.contributions[one.param]", "schedule.contributions[one.param] = 1"),
             "mpi.training_test.1 Training.EvaluationChangesNoBit"),
    # One order of sums, whatever the number of ranks.
    mutation("running_sum_comes_last", "the ranks' gradients of a round are added up, then added to the running sum",
             Instead("""        if (more) {
          for (std::int64_t l = 0; l < Strip::width; ++l) sum[l] = 0;
          for (std::int64_t r = 0; r < in.counted; ++r)
            strip.each([&](std::int64_t l, std::int64_t i) { sum[l] += in.part(r)(i); });
          strip.each([&](std::int64_t l, std::int64_t i) { y[i] += sum[l]; });
          return;
        }
        const In first = in.part(0);
"""),
             "unit.reduce_test SumInOrder*", "regression.any_ranks.bf16"),
    mutation("padding_is_added", "gradients of a rank that is idle in the last round are added like others'",
             Swapped("reduction.idle", "0"), "regression.any_ranks.bf16"),
    mutation("own_gradients_are_not_rounded", "one rank alone sums its gradients as they are, whatever the wire",
             Swapped("layout_.buckets()[own.id].key.wire == GradientWire::fp32", "true"),
             "regression.wire_oracle.mxfp8"),
    mutation("draws_by_rank", "random rounding of gradients draws by rank",
             Swapped("std::int64_t{reduction.round} * rank.size + rank.rank", "std::int64_t{reduction.round} + std::int64_t{1000} * rank.rank"),
             "regression.wire_oracle.drawn", "regression.any_ranks.wires"),
    Mutation("a_block_across_a_cut", "ranks cut gradients inside a wire's block",
             (Swapped("begin % cut_of(bucket.key.wire) == 0", "begin >= 0"),
              Swapped("std::max(ParamLayout::cut_elements, cut_of(bucket.key.wire))", "ParamLayout::cut_elements")),
             ("unit.wire_layout_test WireLayout.NoBlockLiesAcrossACutOrTwoMatrices",)),
    mutation("sums_in_bf16", "a sum of gradients is rounded behind each addition",
             Swapped("sum[l] += next(i)", "sum[l] = static_cast<T>(bf16(static_cast<float>(sum[l] + next(i))))"),
             "unit.wire_test Wire.SumsAreNotRounded", "regression.wire_oracle.bf16"),
    mutation("dealt_by_blocks", "a rank's micro-batches follow each other in the batch",
             Swapped("round * ranks_ + rank", "rank * rounds() + round"),
             "unit.sampler_test BatchPlan*", "regression.any_ranks.bf16"),
    mutation("one_rank_accumulates", "a rank alone adds each contribution to its running sum",
             Swapped("!of.rules.reduces_each_micro_batch(", "(of.ranks.world.size == 1 || !of.rules.reduces_each_micro_batch()"),
             "regression.any_ranks.bf16"),
    mutation("sums_by_rank", "losses are added up rank by rank", Swapped(" % world_.size * rounds_ + m / world_.size", ""),
             "regression.any_ranks.bf16"),
    mutation("norm_of_one_rank", "the norm counts the elements of one rank", Swapped("> 1", "< 0"), "mpi.golden_training_test.2 *Fp32*"),
    Mutation("one_rank_skips", "what is not finite on a rank skips the step on that rank alone",
             (Dropped(),
              Before("  if (not_finite) add_not_finite(stream, words, not_finite);\n")),
             ("regression.recipes.notfinite.a_gradient",)),
    mutation("redo_keeps_counts", "a redone step meets the counts of the first try", Dropped(),
             "mpi.param_sync_test.2 ParamSync.ADroppedStepMayBeDoneAgain",
             "mpi.param_sync_test.2 ParamSync.AStepMayBeDoneAgainAfterItsReduction"),
    mutation("redo_keeps_sums", "a redone step adds to the loss of the first try",
             Dropped(), "regression.recipes.notfinite.a_step_made_again"),
    mutation("spot_checks_of_ones_own", "a spot check has each rank compute its own micro-batch again, which errs as before",
             Swapped("experts.size", "0"),
             "unit.batches_test MixedBatches.OfASpotCheckEndWithTheFirstMicroBatchesOfRanksFurtherOn",
             "regression.suspects SpotChecks.test_a_fault_that_looks_sound_is_named"),
    mutation("spot_checks_of_losses_alone", "a spot check digests no gradient", Swapped("0", "-1"),
             "regression.suspects SpotChecks.test_a_fault_that_looks_sound_is_named"),
    mutation("spot_checks_count_in_the_sums", "the sums of a spot check's computation stay in those of the step", Dropped(),
             "regression.suspects SpotChecks.test_checks_change_no_bit"),
    mutation("redo_adds_up_the_first_try", "a redone step sums what reductions of the first try have received",
             Swapped("in_flight_ = ", ""),
             "mpi.param_sync_model_test.2"),
    mutation("counters_begin_anew_at_load", "a resumed run counts its updates from zero",
             Swapped("state.counters.rules", "optimizers_.counters()"),
             "mpi.checkpoint_test.2 Checkpoints.ResumeChangesNoBit"),
    # Products.
    mutation("not_finite_is_lost", "what is not finite vanishes in a format that saturates",
             Before("  matrix.not_finite = {};\n"), "regression.recipes.notfinite.a_gradient"),
    mutation("evaluation_hides_not_finite", "an evaluation over activations that are not finite has a loss",
             Swapped("if (quantizes()) spoil(stream_, &sums->loss, {&sums->not_finite, DType::u64, {1}})", "(void)sums"),
             "mpi.passes_test.2 Passes.AnEvaluationOfWhatIsNotFiniteHasNoLoss"),
    mutation("draws_repeat", "random rounding draws the same in every step", Swapped("batch.step", "1"),
             "mpi.passes_test.2 Passes.EveryStepDrawsAnew"),
    mutation("alpha_of_the_first_member", "products of experts are scaled by the amax of the first", Swapped("e / each][e % each", "0][0"),
             "unit.coded_product_test CodedProduct*.OfExpertsAreThoseOfEachAlone"),
    mutation("codes_of_the_first_member", "discrete experts are all decoded from the first one's codes",
             Swapped("task", "Task{0, 0, task.row, task.column}"),
             "unit.coded_product_test CodedProduct*.OfManyDiscreteExpertsTakeFewLaunches"),
    mutation("hadamard_of_gradients_alone", "one factor of a product is rotated, the other is not",
             Swapped("rotates", "rotates && M::draws"),
             "unit.quantize_test *Rotated*"),
    mutation("rules_reversed", "of the rules that match a matrix the first one decides",
             Instead("""  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].matches(block, part)) return static_cast<int>(i);
""", lines=2),
             "unit.layout_test TreatmentRules.*", "regression.slots.meaning Meaning.test_layers"),
    mutation("a_slot_is_dropped", "activations are quantized only where the weight is",
             Swapped(".treatment", ".format.codes ? weight.treatment : Treatment{.plain = weight.treatment.plain}"),
             "unit.slots_test Slots.EachChangesItsProductAlone", "regression.slots.meaning Meaning.test_single"),
    mutation("recipe_changes_a_step_late", "the step at which a recipe of precision.schedule comes is computed with the one before",
             Swapped("> step", ">= step"), "unit.config_test RecipeSchedule.AStepIsOfTheLastChangeThatHasCome"),
    mutation("key_of_the_first_recipe_stays", "weights stay as the first recipe holds them when another comes", Dropped(),
             "unit.config_test RecipeSchedule.WhatTheFirstRecipeDerivesIsDerivedAnew"),
    mutation("a_change_trusts_its_checkpoint", "behind a change of recipe the run goes on with the new one from any step that loads",
             Swapped("beginning.step == after", "after >= 0"), "regression.schedule Schedule.test_a_step_damaged_at_a_change_leads_back_over_it"),
    mutation("commands_die_at_a_change", "a command of run.on_save is killed where the recipe changes", Dropped(),
             "regression.schedule Schedule.test_a_step_damaged_at_a_change_leads_back_over_it"),
    mutation("bias_weighs", "experts are weighted by what they are chosen by, their score plus bias",
             Before("if (biases) for (std::int32_t e = 0; e < experts; ++e) s[e] += biases[e];"),
             "unit.moe_test Route/*.BiasChoosesAndDoesNotWeigh"),
    mutation("counts_in_the_norm", "counts of tokens are taken for slopes of the loss, in the gradient norm",
             Dropped(), "unit.balance_rule_test BalanceRule.StepsMembersAlone"),
    mutation("gaps_are_balanced", "what lies between the biases of two routers is stepped too, and drifts", Swapped("size)", "size), 1.0f"),
             "unit.balance_rule_test BalanceRule.StepsMembersAlone"),
    mutation("skipped_steps_balance", "a skipped step moves the biases of routers",
             Swapped("clip->skip != 0 || ", ""), "unit.balance_rule_test BalanceRule.ASkippedStepChangesNothing"),
    mutation("counts_of_one_micro_batch", "a step's counts are those of its last micro-batch",
             Swapped("beta * out[e] + ", ""), "unit.moe_test Route/*.LoadIsAddedUp"),
    mutation("shared_expert_forgets", "what the shared expert's input gets of its gradient is overwritten by the other experts'",
             Swapped("shared_ ? dx : ", ""), "unit.gpt_gradients_test GptGradients.LikeDeepSeek"),
    mutation("choices_without_their_token", "the digest of choices knows where a token lies in its micro-batch alone, not in the batch",
             Swapped("first_token * shape.top_k", "0 * first_token"),
             "unit.moe_record_test Record/*.AddsUpOverMicroBatches"),
    mutation("choices_of_its_own", "a replay computes with the experts that the router itself has chosen", Dropped(),
             "unit.moe_capacity_test Capacity/*.GivenChoicesAreTakenAndWeighedByOwnScores"),
    mutation("evaluations_follow_a_record", "evaluations take the choices that the last step was given", Dropped(),
             "regression.choices Choices.test_a_run_that_follows_its_own_record_has_its_bits"),
    mutation("choices_of_another_rank", "ranks write their choices over each other's", Swapped("piece.first", "round * piece.count"),
             "regression.choices Choices.test_any_ranks_write_the_same_and_no_bit_changes"),
    mutation("a_record_keeps_steps_of_another_line", "a resumed run leaves in its record what it will make again, and more",
             Swapped("position.step)", "position.step + 99)"), "regression.choices Choices.test_a_resumed_run_goes_on_in_its_record"),
    mutation("an_expert_takes_one_more", "an expert takes one token more than its capacity", Swapped("place < ", "place <= "),
             "unit.moe_capacity_test CapacityByHand.*"),
    mutation("every_piece_begins_a_sequence", "a cached sequence forgets how many tokens its experts have taken", Instead("  return;"),
             "unit.moe_capacity_test Capacity/*.PiecesCountTheSlotsBeforeThem"),
    mutation("dropped_slots_have_a_gradient", "the weight of an expert that did not take the token gets whatever lies in memory for a slope",
             Dropped(), "unit.moe_capacity_test Capacity/*.DroppedSlotsHaveNeitherAnswerNorGradient"),
    mutation("no_gaps_where_slots_drop", "rows that dropped slots leave unused are not cleared", Swapped(" && !routing.drops", ""),
             "unit.moe_capacity_test Capacity/*.DroppedSlotsHaveNeitherAnswerNorGradient"),
    mutation("probes_of_another_line", "an evaluation is compared with one that the run was restored from before", Swapped(" || head.step > step", ""),
             "regression.routing Routing.test_evaluations_say_which_choices_are_kept"),
    mutation("padding_is_recorded", "what a rank computes for padding counts in what is recorded of the routing",
             Swapped(" && counts(round)", ""), "regression.routing Routing.test_no_rank_count_shows_and_no_bit_changes"),
    mutation("routing_of_one_rank", "what is recorded of the routing is not summed over the ranks",
             Swapped("also ? 2u : ", ""), "regression.routing"),
    mutation("norm_of_one_head_for_all", "query and key norm over the width is that of the first head", Swapped("s.heads * ", ""),
             "unit.head_norm_test HeadNorm/*.OrAllOfATokenTogether"),
    mutation("angles_of_the_whole_head", "heads that turn in part turn by the angles of heads that turn whole", Swapped("2", "1"),
             "unit.attention_test Attention/*.RotaryTurnsPairsAndTurnsThemBack"),
    mutation("rows_between_experts_are_kept", "rows that are no token's keep old data in the forward pass",
             Swapped("row.each(n, [=](std::int64_t j) { to[j] = m < 0 ? T(0) :", "if (m >= 0) row.each(n, [=](std::int64_t j) { to[j] ="),
             "unit.moe_test *RowsOfNoTokenAreZeroAndNumberedZero"),
    mutation("gradients_between_experts_are_kept", "rows that are no token's keep old data in the backward pass",
             Swapped("return ", "return false && "),
             "unit.moe_test *RowsOfNoTokenAreZeroAndNumberedZero"),
    mutation("rows_of_peers_overlap", "rows in peers' memory are written over those of earlier ranks", Dropped(),
             "unit.peer_rows_test PeerRows.ShiftsLeadToTheRowsOfAnExchange"),
    mutation("rows_behind_those_of_peers_are_kept", "in peers' memory, rows that are no token's keep old data",
             Swapped("token[r] < 0", "token[r] < -1"), "unit.peer_rows_test InPeersMemory/*.RowsAndTheirNumbersArriveSorted"),
    mutation("rows_behind_the_end", "a quantizer reads and writes one row behind those in use", Swapped("clamp_to(*d.rows_end, 0", "clamp_to(*d.rows_end + 1, 0"),
             "unit.quantize_one_test QuantizeOne/*.RowsFromTheEndOnAreNeitherReadNorWritten"),
    mutation("rows_are_sent_unasked", "a rank writes rows into another's memory before that one is ready for them", Dropped(),
             "mpi.peer_memory_test.2 PeerMemory.IsWrittenWhenAllAreReadyAndReadWhenAllHaveWritten"),
    mutation("one_row_behind_the_end", "an activation writes one row behind those that hold something", Swapped("row >= *end", "row > *end"),
             "unit.activation_test Activation/*.RowsFromTheEndOnAreLeft"),
    # Full sharding.
    mutation("released_before_the_last_access", "weights of which ranks keep slices are given up behind their first access",
             Instead("""  void ended(ParamId param) noexcept override {
  ParamGroup& group = group_of(param);
  if (--group.uses > 0 || slots_[group.pool].size() == 1) return;
  for (WeightSlot& slot : slots_[group.pool])
    if (slot.visit && slot.visit->group == group.id && slot.machine.state() == SlotState::ready)
      slot.machine.to(SlotState::free, group.id);
}
"""),
             SLICES.format(2)),
    mutation("slot_in_use_is_gathered_to", "the next visit is gathered over the one under way",
             Swapped("interval_at(end", "interval_at(End::low"),
             SLICES.format(2)),
    mutation("both_slots_at_one_end", "two gradient slots begin at the same end of their memory, so that one waits for the other",
             Swapped("slot == low ? End::low : End::high", "End::low"),
             "unit.sync_schedule_test Full.GradientSlotsAreTheEndsOfOneMemory"),
    mutation("the_other_end_is_not_awaited", "gradients are written over those of the other end that are still being summed",
             Swapped("a.memory == b.memory", "one.slot == other.slot"),
             "mpi.full_sharding_test.2 FullSharding.LargeGradientsOfTwoMicroBatchesDoNotMeet"),
    mutation("columnwise_side_of_the_first_publish", "columnwise codes that travel by themselves do so once",
             Before("      if (visit.sides == Sides::columnwise && group.weights.epoch() > 1) continue;\n"),
             SLICES.format(2)),
    mutation("blocks_in_place_of_modules", "granularity module gathers whole blocks",
             Swapped("gathers_modules(config) ? GatherUnit::module : ", ""),
             "unit.sync_schedule_test Full.OneForwardAndOneBackwardWhereOnePayloadServesBoth"),
    Mutation("a_tied_embedding_is_reduced_twice", "the head's part of a tied embedding is reduced before the tokens' is there",
             (Swapped("== count.expected", "> 0"),),
             (SLICES.format(2),)),
    mutation("prefetched_into_the_open_slot", "the visits of a pool do not alternate between its slots", Dropped(),
             "unit.sync_schedule_test Full.MicroBatchesFollowEachOtherThroughTheSlots"),
    mutation("a_reduction_a_write_early", "a group is reduced before its last parameter is written",
             Swapped("rounds_.completes(param", "(rounds_.completes(param) || true"),
             "mpi.param_sync_test.2 ParamSync.ReducesOverPoisonedMemory"),
    # Formats.
    mutation("scale_of_another_element", "scales of MX blocks are those of E4M3, whatever the element", Swapped("Element::max", "448.0f"),
             "unit.quantize_test Quantize*"),
    mutation("a_tie_takes_four", "of two scales that lose equally much the other is taken", Swapped("<", "<="),
             "unit.quantize_test Quantize*"),
    mutation("half_a_block_decides", "the scale of a block is chosen by the errors of its first columns", Swapped("(j + 1) * width", "j * width + (width + 1) / 2"),
             "unit.quantize_test Quantize*"),
    mutation("rows_by_the_inverse", "values of a row are encoded by the inverse of its power of two", Swapped("line.encode", "line.inverse"),
             "unit.quantize_test Quantize*"),
    mutation("rows_of_the_first_patch", "rows of all patches have the scales of the first patch's", Swapped("p.row + row", "row"),
             "unit.quantize_test Quantize*"),
    mutation("amaxes_of_the_step_before", "a row keeps the largest amax that it had in any step", Dropped(),
             "unit.quantize_test Quantize*"),
    mutation("half_a_byte", "a copy may have lines that begin within a byte", Dropped(),
             "unit.quantize_table_test Table.RefusesLinesThatEndWithinAByte"),
    # Sharding groups.
    mutation("each_group_begins_a_sum", "every sharding group begins a sum of its own, and that of the groups before is lost",
             Swapped("here_.rank == 0 && ", ""), GROUPS),
    mutation("pieces_of_a_shard_overlap", "behind the first, the slices of a shard are gathered one entry, such as a scale, too early",
             Swapped("at -= begin", "at -= at > begin ? begin + 1 : begin"), GROUPS),
    mutation("gathered_from_shards_of_the_step_before", "weights are gathered from shards in which the other groups' slices are old",
             Swapped("level == Level::inside", "level == Level::inside && group.weights.epoch() < 2"), GROUPS),
    # Replay.
    mutation("a_log_not_repeated", "replayed steps are missing in the log that ranks compare", Dropped(), REPLAY,
             "unit.collective_log_test CollectiveLog.ReplaysAreNotedAsIfTheyHadBeenSubmitted"),
    mutation("a_replay_without_an_end", "neither log nor watchdog hear that a graph has been launched", Dropped(), REPLAY),
    mutation("epochs_stand_still", "a replay leaves the epochs of weights where they were", Dropped(), REPLAY),
    # Saves while training goes on.
    mutation("live_state_is_written", "what is written beside training is not the copy but the state, which later steps change",
             Dropped(),
             "mpi.checkpoint_ways_test.2 Checkpoints.AreTheSameBytesWrittenWhileTrainingGoesOn"),
    # Muon.
    mutation("owned_matrices_are_never_staged", "masters of matrices that are owned whole are stepped and never travel",
             Swapped("    slices", "    if (bucket.key.owner != OwnerKind::whole_matrix) slices"), ROUNDED),
    mutation("owned_codes_are_never_cast", "of matrices that are owned whole the owner quantizes nothing",
             Swapped("last", "last && bucket.key.owner != OwnerKind::whole_matrix"), STORED.format(2)),
    Mutation("staged_before_the_step", "what travels are the masters before the optimizer's step",
             (Instead("""  if (groups_[GroupId{0}].weights.epoch() == 0) {
    invalidate(stream);
    reduce_amaxes(stream);
    stage(stream, published_);
  }
""", lines=3),
              Swapped("held().invalidate(stream)", "(void)stream"),
              After("""  invalidate(stream);
  reduce_amaxes(stream);
  stage(stream, published_);
""")),
             (ROUNDED,)),
    mutation("weights_of_a_dropped_update", "publication leaves out weights that an update which was dropped did not write",
             Dropped(), DROPPED),
    mutation("weights_of_an_update_rounded_again", "publication reads the masters of weights that the update has written",
             Dropped(), READS),
    mutation("weights_written_before_their_masters", "an update writes the weights of the masters before it",
             Instead("""          if (bf16* const rounded = run.rounded ? run.rounded + begin : nullptr)
            row.each(count, [=](std::int64_t j) { rounded[j] = bf16(p[j]); });
          row.each(count, [=](std::int64_t j) { factors.update(p[j], m[j], v[j], g[j], decay); });
""", lines=3),
             ROUNDED),
    mutation("gradient_to_another_owner", "slices are sent as if owners stood in the order of ranks",
             Instead("""    auto& begins = *new std::vector<std::int64_t>(1, 0);
    for (std::size_t r = 0; r + 1 < bucket.shards.counts.size(); ++r) begins.push_back(begins.back() + bucket.shards.counts[r]);
    reduction.exchanges.push_back({sent.values, others.values, bucket.shards.counts, begins});
"""),
             "regression.muon Muon.test_owners_change_no_bit"),
    mutation("momentum_of_a_skipped_step", "a skipped step changes the momentum",
             Swapped(") return;", " && name[5] == 'u') return;  // muon_update"),
             "unit.muon_test *ASkippedStepChangesNothing", "mpi.muon_training_test.2 Muon.ASkippedStepChangesNothing"),
    mutation("update_of_a_batch", "a matrix's update depends on those that are made orthogonal beside it",
             Swapped("rows[m].first_chunk, chunks = rows[m + 1].first_chunk - first", "0, chunks = rows[count].first_chunk"),
             "unit.newton_schulz_test NewtonSchulz.TheBitsOfAMatrixAreItsOwn"),
    mutation("steps_wait_as_saves_do", "waits inside steps keep the time-out of saves, however short steps are",
             Swapped("turns_ < enough", "turns_ >= 0"), "unit.step_timeout_test StepTimeout.IsTwentyTimesTheLongestTurn"),
    mutation("nobody_waits_for_retention", "ranks go on to the next step, with its shorter time-out, while rank 0 removes checkpoints",
             Dropped(), "regression.step_timeout StepTimeout.test_slow_retention_has_the_time_out_of_saves"),
    mutation("sums_of_ranks_are_alike", "a resume on other ranks, whose sums have another order, is not told",
             Swapped("by_batch ? 0 : ranks", "by_batch ? 0 : 1"), "unit.config_test Keys.OfSumsAreToldWhereTheirOrderChanges"),
    mutation("groups_are_never_told", "a resume under sharding groups whose sums have another order is not told",
             Swapped("told_of_sums", "may_change"), "unit.config_test Keys.OfShardingGroupsAreToldWhereTheOrderOfSumsChanges"),
    mutation("one_deck_for_all_steps", "an audit makes all steps with the deck of its first part",
             Swapped("|| !changes.empty()", "|| changes.size() > 99"), "regression.audit Audit.test_each_stretch_has_the_deck_that_made_it"),
    mutation("audits_follow_no_record", "an audit of a replay reads no choices from the record", Dropped(),
             "regression.audit Audit.test_a_replay_follows_its_record"),
    # Answers and documents.
    mutation("attention_crosses_documents", "tokens see the documents before theirs, although these are apart",
             Swapped("positions == nullptr", "positions == nullptr || length > 0"),
             "unit.document_attention_test", "unit.gpt_documents_test"),
    mutation("gradients_of_no_target", "a token that is no target keeps its logits where their gradient belongs", Dropped(),
             "unit.loss_test"),
    mutation("answers_weigh_as_all_tokens", "a loss of answers alone is divided by all tokens of the batch",
             Swapped("!batch.counted", "!batch.counted || plan_.sizes.length > 0"),
             "regression.answers Equal.test_loss_and_gradient_are_means_over_answers"),
    # Choosing among steps; averages of weights.
    mutation("an_equal_loss_is_a_gain", "of equal evaluations the last is the best, so that no plateau ends a run",
             Swapped("loss < loss_", "loss <= loss_"), "unit.best_step_test"),
    mutation("the_best_step_is_retired", "retention removes the step with the lowest loss",
             Swapped("best.contains(folder.step)", "folder.step < 0"), "regression.answers Chosen"),
    mutation("a_best_step_needs_no_checkpoint", "retention keeps the best step's place, although it has no checkpoint, and removes the best one",
             Swapped("folder != folders.end() && known", "folder == folders.end() || known"),
             "regression.best_steps BestSteps.test_the_best_step_that_was_saved_is_kept"),
    Mutation("averages_before_the_step", "averages take the weights before the step",
             (Before("  if (average_) average_->step(stream_, built_.masters, memory_.clip());\n"), Dropped()),
             ("mpi.averages_test.1 Averages.AreTheReferencesOfEveryStep",)),
    mutation("averages_of_another_decay", "averages decay by what they should take of the weights", Swapped("1 - decay", "decay"),
             "mpi.averages_test.1 Averages.AreTheReferencesOfEveryStep"),
    mutation("skipped_steps_average", "a skipped step moves the averages", Swapped("clip->skip == 0", "clip->norm >= 0"),
             "unit.average_test AverageStep.EqualsReference"),
    mutation("averages_stay_in_place", "an evaluation of averages leaves them as the weights", Dropped(),
             "mpi.averages_test.1 Averages.ChangeNoBitOfTraining"),
    mutation("an_end_that_began_before", "a text ends at an end that is whole, although another one begins before it",
             Swapped("first() <= undecided && ", ""), "unit.stop_texts_test StopTexts.EndWhereverTokensDivideThem"),
    mutation("recomputed_factors_are_measured_twice", "statistics count what recomputation quantizes again",
             Dropped(), "regression.statistics.fp8_block"),
    mutation("padding_is_measured", "statistics count the padding of ranks that are idle in the last round",
             Swapped(" || !counts(round)", ""),
             "regression.statistics.elements_are_those_of_all_micro_batches"),
    mutation("rows_of_no_token_are_measured", "statistics count the gaps between the rows of experts",
             Swapped("job.tokens == nullptr || job.tokens[p.row + row] >= 0", "p.row + row >= 0"),
             "unit.measure_test Measure/*.GivesTheReferencesFields"),
    mutation("micro_batches_in_one_place", "tensors of all micro-batches are written over each other",
             Swapped("index * values.elements()", "0 * index"), "regression.tensors.products"),
    mutation("exported_scales_of_a_neighbour", "a weight that is a part of a matrix is written with the scales of its neighbour",
             Swapped("row / unit * group.scale_row", "0 * unit"), "regression.codes_out.mxfp8"),
    mutation("codes_of_the_first_recipe", "codes are those of the recipe that a schedule begins with",
             Swapped("config_at(config, step.manifest().counters.step)", "config_at(config, 0)"),
             "regression.codes_out.the_recipe_of_the_step"),
    mutation("averages_left_out_unsaid", "a conversion does not say that it leaves out the averages, of which evaluations are",
             Swapped("leaves_averages(options)", "false"), "regression.folders Folders.test_companions_go_through_training_and_back"),
    mutation("statistics_of_one_rank", "statistics are those of one rank's micro-batches", Dropped(),
             "regression.statistics.fp8_block"),
]
