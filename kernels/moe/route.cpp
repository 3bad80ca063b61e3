#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/moe/back.hpp"
#include "kernels/sort/sort.hpp"

namespace tessera {
namespace {

// The experts of one token, as the choice sees them.
template <class A> class Candidates {
 public:
  using Key = moe::RankKey<A>;
  static constexpr Key above_all = ~Key(0);

  KOKKOS_FUNCTION Candidates(const A* scores, const A* bias, std::int32_t experts, const ScoreRule& rule)
      : scores_(scores), bias_(bias), groups_(static_cast<std::int32_t>(rule.groups)), each_(experts / groups_) {
    if (rule.top_groups < rule.groups)
      for (std::int64_t i = 0; i < rule.top_groups; ++i) next_group();
    else
      last_group_ = {0, groups_};
  }

  // Finds the expert that follows in the order of choice: by key, then by index. Groups are looked at one by one.
  KOKKOS_FUNCTION std::int32_t next() {
    Ranked best{0, -1};
    for (std::int32_t g = 0; g < groups_; ++g) {
      const bool stays = groups_ == 1 || !follows({group_key(g), g}, last_group_);
      for (std::int32_t e = g * each_; e < (g + 1) * each_; ++e) {
        const Key own = key(e);
        const Ranked ranked{stays || own == moe::nan_key<A>() ? own : moe::masked_key<A>(), e};
        if (follows(ranked, last_) && (best.index < 0 || ranked.key > best.key)) best = ranked;
      }
    }
    last_ = best;
    return best.index;
  }

 private:
  struct Ranked {
    Key key;
    std::int32_t index;
  };
  // Whether `a` stands behind `b` in the descending order of keys.
  static KOKKOS_FUNCTION bool follows(const Ranked& a, const Ranked& b) {
    return a.key < b.key || (a.key == b.key && a.index > b.index);
  }
  KOKKOS_FUNCTION A value(std::int32_t e) const { return bias_ == nullptr ? scores_[e] : scores_[e] + bias_[e]; }
  KOKKOS_FUNCTION Key key(std::int32_t e) const { return moe::key_of(value(e)); }

  // The sum of a group's two largest values, or its only one.
  KOKKOS_FUNCTION Key group_key(std::int32_t g) const {
    const std::int32_t begin = g * each_;
    if (each_ == 1) return key(begin);
    std::int32_t first = begin, second = begin + 1;
    if (key(second) > key(first)) {
      first = begin + 1;
      second = begin;
    }
    for (std::int32_t e = begin + 2; e < begin + each_; ++e) {
      if (key(e) > key(first)) {
        second = first;
        first = e;
      } else if (key(e) > key(second)) {
        second = e;
      }
    }
    return moe::key_of(value(first) + value(second));
  }
  KOKKOS_FUNCTION void next_group() {
    Ranked best{0, -1};
    for (std::int32_t g = 0; g < groups_; ++g) {
      const Ranked ranked{group_key(g), g};
      if (follows(ranked, last_group_) && (best.index < 0 || ranked.key > best.key)) best = ranked;
    }
    last_group_ = best;
  }

  const A *scores_, *bias_;
  std::int32_t groups_, each_;
  Ranked last_{above_all, -1}, last_group_{above_all, -1};
};

// A logit, in bf16 where the rule says so.
template <class A> KOKKOS_INLINE_FUNCTION A rounded(A logit, bool rounds) {
  return rounds ? static_cast<A>(static_cast<float>(bf16(static_cast<float>(logit)))) : logit;
}

// Scores of a token's logits z; returns log_sum and the sum of the scores.
template <class A> struct Sums {
  A log_sum, total;
};
template <class A, class Z>
KOKKOS_INLINE_FUNCTION Sums<A> softmax(A* p, const Z& z, std::int32_t experts) {
  A top = z(0), sum = 0;
  for (std::int32_t e = 1; e < experts; ++e) top = z(e) > top ? z(e) : top;
  for (std::int32_t e = 0; e < experts; ++e) p[e] = exp_of(z(e) - top);
  for (std::int32_t e = 0; e < experts; ++e) sum += p[e];
  for (std::int32_t e = 0; e < experts; ++e) p[e] /= sum;
  return {top + log_of(sum), A(1)};
}
template <class A, class Z>
KOKKOS_INLINE_FUNCTION Sums<A> sigmoids(A* s, const Z& z, std::int32_t experts) {
  Sums<A> sums = softmax(s, z, experts);
  sums.total = 0;
  for (std::int32_t e = 0; e < experts; ++e) s[e] = moe::sigmoid(z(e));
  for (std::int32_t e = 0; e < experts; ++e) sums.total += s[e];
  return sums;
}

// The weights of a token's chosen experts.
template <class A>
KOKKOS_INLINE_FUNCTION void weigh(A* weights, const A* s, const std::int32_t* chosen, std::int64_t k, bool renormalize,
                                  A scale) {
  A total = 0;
  for (std::int64_t j = 0; j < k; ++j) total += s[chosen[j]];
  total += moe::least_sum<A>();
  for (std::int64_t j = 0; j < k; ++j)
    weights[j] = (renormalize ? s[chosen[j]] / total : s[chosen[j]]) * scale;
}

template <class A>
void choose_experts(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& logits,
                    const Tensor& bias) {
  const auto experts = static_cast<std::int32_t>(shape.experts);
  const std::int64_t k = shape.top_k;
  const bool renormalize = shape.renormalize, rounds = shape.rule.logits == DType::bf16;
  const bool sigmoid = shape.rule.scores == Scores::sigmoid;
  const ScoreRule rule = shape.rule;
  const A scale = A(rule.scale);
  const A *const in = logits.as<A>(), *const biases = bias ? bias.as<A>() : nullptr;
  A *const scores = routing.scores.as<A>(), *const log_sum = routing.log_sum.as<A>();
  A *const weights = routing.weight.as<A>(), *const totals = sigmoid ? routing.total.as<A>() : nullptr;
  std::int32_t* const expert = routing.expert.as<std::int32_t>();
  launch(stream, "route", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    const A* const given = in + m * experts;
    const auto z = [=](std::int32_t e) { return rounded(given[e], rounds); };
    A* const s = scores + m * experts;
    const Sums<A> sums = sigmoid ? sigmoids(s, z, experts) : softmax(s, z, experts);
    log_sum[m] = sums.log_sum;
    if (sigmoid) totals[m] = sums.total;

    std::int32_t* const chosen = expert + m * k;
    Candidates<A> candidates(s, biases, experts, rule);
    for (std::int64_t j = 0; j < k; ++j) chosen[j] = candidates.next();
    weigh(weights + m * k, s, chosen, k, renormalize, scale);  // mutation: bias_weighs
  });
}

// Takes the experts that are given instead of those that were chosen.
template <class A>
void take_given(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& given) {
  const std::int64_t k = shape.top_k, experts = shape.experts;
  const bool renormalize = shape.renormalize;
  const A scale = A(shape.rule.scale);
  const A* const scores = routing.scores.as<A>();
  A* const weights = routing.weight.as<A>();
  std::int32_t* const expert = routing.expert.as<std::int32_t>();
  const std::int32_t* const choices = given.as<std::int32_t>();
  launch(stream, "route_given", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    std::int32_t* const chosen = expert + m * k;
    for (std::int64_t j = 0; j < k; ++j) chosen[j] = choices[m * k + j];  // mutation: choices_of_its_own
    weigh(weights + m * k, scores + m * experts, chosen, k, renormalize, scale);
  });
}

template <class A>
void count_differing(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& bias,
                     std::int64_t* differ) {
  const std::int64_t k = shape.top_k;
  const auto experts = static_cast<std::int32_t>(shape.experts);
  const ScoreRule rule = shape.rule;
  const A *const scores = routing.scores.as<A>(), *const biases = bias ? bias.as<A>() : nullptr;
  const std::int32_t* const expert = routing.expert.as<std::int32_t>();
  const auto of_token = KOKKOS_LAMBDA(std::int64_t m) {
    Candidates<A> candidates(scores + m * experts, biases, experts, rule);
    std::int64_t others = k;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int32_t own = candidates.next();
      for (std::int64_t j = 0; j < k; ++j) others -= expert[m * k + j] == own ? 1 : 0;
    }
    return others;
  };
  const std::int64_t tokens = shape.tokens();
  launch_rows(stream, "route_differ", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const auto all = row.sum<std::int64_t>(tokens, of_token);
    row.once([=] { *differ += all; });
  });
}

// Turns offsets without gaps into offsets in which each expert's rows begin at a multiple of row_multiple.
void spread(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& compact) {
  const std::int64_t multiple = shape.row_multiple, experts = shape.experts;
  std::int32_t* const spread = routing.offsets.as<std::int32_t>();
  const std::int32_t* const begins = compact.as<std::int32_t>();
  launch(stream, "route_spread", experts + 1, KOKKOS_LAMBDA(std::int64_t e) {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < e; ++i) begin += (begins[i + 1] - begins[i] + multiple - 1) / multiple * multiple;
    spread[e] = static_cast<std::int32_t>(begin);
  });
}

// invert() for rows with gaps between experts.
void invert_spread(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& order,
                   const Tensor& compact) {
  const std::int64_t k = shape.top_k;
  const std::int32_t *const slot = order.as<std::int32_t>(), *const expert = routing.expert.as<std::int32_t>();
  const std::int32_t *const begins = compact.as<std::int32_t>(), *const spread = routing.offsets.as<std::int32_t>();
  std::int32_t *const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = routing.token_of_row.as<std::int32_t>();
  launch(stream, "route_no_token", shape.rows(), KOKKOS_LAMBDA(std::int64_t row) { token_of_row[row] = -1; });
  launch(stream, "route_invert", shape.slots(), KOKKOS_LAMBDA(std::int64_t i) {
    const std::int32_t s = slot[i], e = expert[s], row = spread[e] + static_cast<std::int32_t>(i) - begins[e];
    row_of_slot[s] = row;
    token_of_row[row] = static_cast<std::int32_t>(s / k);
  });
}

void invert(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& order) {
  const std::int64_t k = shape.top_k;
  const std::int32_t* const slot = order.as<std::int32_t>();
  std::int32_t *const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = routing.token_of_row.as<std::int32_t>();
  launch(stream, "route_invert", shape.slots(), KOKKOS_LAMBDA(std::int64_t row) {
    row_of_slot[slot[row]] = static_cast<std::int32_t>(row);
    token_of_row[row] = static_cast<std::int32_t>(slot[row] / k);
  });
}

// Which slots an expert takes of each sequence, of those that are sorted by expert and so by token.
struct TakenSlots {
  const std::int32_t *load, *taken;  // [sequences,E]; [E] of the sequence before, or null
  std::int64_t experts, capacity;

  KOKKOS_FUNCTION std::int64_t room(std::int64_t e) const {
    const std::int64_t left = capacity - (taken != nullptr ? taken[e] : 0);
    return left > 0 ? left : 0;
  }
  // Of the first `sequences` sequences, the expert's slots, and those that it takes.
  KOKKOS_FUNCTION std::int64_t slots(std::int64_t sequences, std::int64_t e) const {
    std::int64_t sum = 0;
    for (std::int64_t b = 0; b < sequences; ++b) sum += load[b * experts + e];
    return sum;
  }
  KOKKOS_FUNCTION std::int64_t kept(std::int64_t sequences, std::int64_t e) const {
    std::int64_t sum = 0;
    for (std::int64_t b = 0; b < sequences; ++b)
      sum += load[b * experts + e] < room(e) ? load[b * experts + e] : room(e);
    return sum;
  }
};

// invert_spread() for experts that take some of their slots: `begins` of all, `kept` of those.
void invert_kept(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& order,
                 const Tensor& begins, const TakenSlots& places) {
  const std::int64_t k = shape.top_k, of_sequence = shape.length * k;
  const std::int32_t *const slot = order.as<std::int32_t>(), *const expert = routing.expert.as<std::int32_t>();
  const std::int32_t *const first = begins.as<std::int32_t>(), *const offsets = routing.offsets.as<std::int32_t>();
  std::int32_t *const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = routing.token_of_row.as<std::int32_t>();
  launch(stream, "route_no_token", shape.rows(), KOKKOS_LAMBDA(std::int64_t row) { token_of_row[row] = -1; });
  launch(stream, "route_invert", shape.slots(), KOKKOS_LAMBDA(std::int64_t i) {
    const std::int32_t s = slot[i], e = expert[s];
    const std::int64_t b = s / of_sequence, place = i - first[e] - places.slots(b, e);  // in its sequence
    const bool kept = place < places.room(e);  // mutation: an_expert_takes_one_more
    const auto row = static_cast<std::int32_t>(kept ? offsets[e] + places.kept(b, e) + place : -1);
    row_of_slot[s] = row;
    if (kept) token_of_row[row] = static_cast<std::int32_t>(s / k);
  });
}

// Gives rows to the slots that experts take; `taken` then counts the tokens too.
void place_kept(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, const Tensor& order,
                const Tensor& begins, const Tensor& taken) {
  const std::int64_t experts = shape.experts, sequences = shape.sequences;
  std::int32_t* const before = taken ? taken.as<std::int32_t>() : nullptr;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  const TakenSlots places{load, before, experts, shape.capacity};
  const Tensor compact = arena.temp(DType::i32, routing.offsets.shape);
  std::int32_t* const kept = compact.as<std::int32_t>();
  launch(stream, "route_kept", experts + 1, KOKKOS_LAMBDA(std::int64_t e) {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < e; ++i) begin += places.kept(sequences, i);
    kept[e] = static_cast<std::int32_t>(begin);
  });
  spread(stream, shape, routing, compact);
  invert_kept(stream, shape, routing, order, begins, places);
  if (before == nullptr) return;  // mutation: every_piece_begins_a_sequence
  launch(stream, "route_taken", experts, KOKKOS_LAMBDA(std::int64_t e) { before[e] += load[e]; });
}

void count_load(Stream& stream, const RouterShape& shape, const Routing& routing) {
  const std::int64_t experts = shape.experts, slots = shape.length * shape.top_k;
  const std::int32_t* const expert = routing.expert.as<std::int32_t>();
  std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "route_load", shape.sequences * experts, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int32_t e = static_cast<std::int32_t>(i % experts), *const chosen = expert + i / experts * slots;
    const std::int32_t count =
        row.sum<std::int32_t>(slots, [=](std::int64_t s) { return static_cast<std::int32_t>(chosen[s] == e); });
    row.once([=] { load[i] = count; });
  });
}

// What the balance loss takes for a probability: a sigmoid's share of the token's sum.
template <class A> KOKKOS_INLINE_FUNCTION A share_of(A score, A total) { return score / (total + moe::least_sum<A>()); }

// The sum of what a batch counted, in ascending order; at least 1, so that shares of nothing are 0.
template <class A> KOKKOS_INLINE_FUNCTION A sum_of_counts(const A* counted, std::int64_t experts) {
  A sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += counted[e];
  return sum > A(1) ? sum : A(1);
}

// For every sequence: E sum_e f_e P_e, and the sum of log_sum^2.
template <class A>
void sequence_losses(Stream& stream, const RouterShape& shape, const Routing& routing, const A* counted,
                     double* balance, double* z) {
  const std::int64_t experts = shape.experts, length = shape.length;
  // E f_e P_e = E (load / (T k)) (sum p / T).
  const double slots = static_cast<double>(length * shape.top_k);
  const double mean = static_cast<double>(experts) / static_cast<double>(length);
  const double share = static_cast<double>(experts) / slots / static_cast<double>(length);
  const A *const scores = routing.scores.as<A>(), *const log_sum = routing.log_sum.as<A>();
  const A* const totals = shape.rule.scores == Scores::sigmoid ? routing.total.as<A>() : nullptr;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "auxiliary_losses", shape.sequences, KOKKOS_LAMBDA(const Row& row, std::int64_t b) {
    double total = 0;
    const double all = counted == nullptr ? 1 : static_cast<double>(sum_of_counts(counted, experts));
    for (std::int64_t e = 0; e < experts; ++e) {
      const A* const s = scores + b * length * experts + e;
      const double own = counted == nullptr ? load[b * experts + e] : static_cast<double>(counted[e]) / all;
      total += own * row.sum<double>(length, [=](std::int64_t t) {
        const A score = s[t * experts];
        return static_cast<double>(totals == nullptr ? score : share_of(score, totals[b * length + t]));
      });
    }
    const A* const lse = log_sum + b * length;
    const double squares = row.sum<double>(length, [=](std::int64_t t) { return double(lse[t]) * double(lse[t]); });
    row.once([=] {
      balance[b] = (counted == nullptr ? share : mean) * total;
      z[b] = squares;
    });
  });
}

void add_sequences(Stream& stream, double* sum, const double* parts, std::int64_t sequences) {
  if (sum == nullptr) return;
  launch_rows(stream, "auxiliary_sum", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const double total = row.sum<double>(sequences, [=](std::int64_t b) { return parts[b]; });
    row.once([=] { *sum += total; });
  });
}

// What the gradients of a step's tokens share.
template <class A> struct Slopes {
  // d balance / d share_e = E f_e / T, with f_e = load / (T k), the same for all tokens of a sequence, or
  // counted / sum, the same for all. `balance` is that of f_e = 1, divided by T k in the first case.
  A balance, z;
  const std::int32_t* load;  // [sequences,E]
  const A* counted;          // [E], or null
  std::int64_t length, experts;

  KOKKOS_FUNCTION A factor() const { return counted == nullptr ? balance : balance / sum_of_counts(counted, experts); }
  KOKKOS_FUNCTION A slots(std::int64_t m, std::int64_t e) const {
    return counted == nullptr ? A(load[m / length * experts + e]) : counted[e];
  }
};

template <class A>
void softmax_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                      const Routing& routing, const Slopes<A>& slopes) {
  const std::int64_t experts = shape.experts, k = shape.top_k;
  const bool renormalize = shape.renormalize;
  const A z_slope = slopes.z, scale = A(shape.rule.scale);
  const A *const probabilities = routing.scores.as<A>(), *const log_sum = routing.log_sum.as<A>();
  const A *const weights = routing.weight.as<A>(), *const dweights = dweight.as<A>();
  const std::int32_t* const expert = routing.expert.as<std::int32_t>();
  A* const out = dlogits.as<A>();
  launch(stream, "route_backward", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    const A *const p = probabilities + m * experts, *const w = weights + m * k, *const dw = dweights + m * k;
    const A slope = slopes.factor();
    A along = 0, balance = 0;
    for (std::int64_t j = 0; j < k; ++j) along += dw[j] * w[j];
    for (std::int64_t e = 0; e < experts; ++e) balance += p[e] * (slope * slopes.slots(m, e));
    // Renormalised weights are scale times a softmax over the chosen experts alone, so dweight has no part in the other
    // experts' gradients.
    const A all = z_slope * log_sum[m] - balance - (renormalize ? A(0) : along);
    for (std::int64_t e = 0; e < experts; ++e) out[m * experts + e] = p[e] * (slope * slopes.slots(m, e) + all);
    for (std::int64_t j = 0; j < k; ++j)
      out[m * experts + expert[m * k + j]] += w[j] * (dw[j] - (renormalize ? along / scale : A(0)));
  });
}

template <class A>
void sigmoid_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                      const Routing& routing, const Slopes<A>& slopes) {
  const std::int64_t experts = shape.experts, k = shape.top_k;
  const bool renormalize = shape.renormalize;
  const A z_slope = slopes.z, scale = A(shape.rule.scale);
  const A *const scores = routing.scores.as<A>(), *const totals = routing.total.as<A>();
  const A *const log_sum = routing.log_sum.as<A>(), *const z = z_slope == A(0) ? nullptr : routing.logits.as<A>();
  const A *const weights = routing.weight.as<A>(), *const dweights = dweight.as<A>();
  const std::int32_t* const expert = routing.expert.as<std::int32_t>();
  const bool rounds = shape.rule.logits == DType::bf16;
  A* const out = dlogits.as<A>();
  launch(stream, "route_backward", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    const A *const s = scores + m * experts, *const w = weights + m * k, *const dw = dweights + m * k;
    const std::int32_t* const chosen = expert + m * k;
    const A slope = slopes.factor();
    A along = 0, sum = 0, balance = 0;
    for (std::int64_t j = 0; j < k; ++j) along += dw[j] * w[j];
    for (std::int64_t j = 0; j < k; ++j) sum += s[chosen[j]];
    for (std::int64_t e = 0; e < experts; ++e) balance += share_of(s[e], totals[m]) * (slope * slopes.slots(m, e));
    const A lse = z_slope * log_sum[m];
    for (std::int64_t e = 0; e < experts; ++e) {
      A d = s[e] * (A(1) - s[e]) * share_of(slope * slopes.slots(m, e) - balance, totals[m]);
      if (z != nullptr) d += lse * exp_of(rounded(z[m * experts + e], rounds) - log_sum[m]);
      out[m * experts + e] = d;
    }
    for (std::int64_t j = 0; j < k; ++j) {
      const A own = s[chosen[j]], ds = renormalize ? share_of(scale * dw[j] - along, sum) : scale * dw[j];
      out[m * experts + chosen[j]] += own * (A(1) - own) * ds;
    }
  });
}

void check(const char* kernel, const RouterShape& s, const Routing& r) {
  const std::int64_t tokens = s.tokens();
  require(s.experts > 0 && s.top_k > 0 && s.top_k <= s.experts, kernel, "1 <= top_k <= experts");
  require(s.rule.groups > 0 && s.experts % s.rule.groups == 0 && s.rule.top_groups > 0 &&
              s.rule.top_groups <= s.rule.groups && s.rule.top_groups * (s.experts / s.rule.groups) >= s.top_k,
          kernel, "groups divide the experts, and the top groups hold the chosen ones");
  require(r.scores.elements() == tokens * s.experts && r.log_sum.elements() == tokens, kernel,
          "scores are [M,E], log_sum [M]");
  require(s.rule.scores == Scores::softmax || r.total.elements() == tokens, kernel, "of sigmoids, total is [M]");
  require(r.expert.elements() == s.slots() && r.weight.elements() == s.slots(), kernel, "expert and weight are [M,k]");
  require(r.load.elements() == s.sequences * s.experts, kernel, "load is [sequences,E]");
}

void check_given(const RouterShape& shape, const Routing& routing, const RouteGiven& given) {
  require(!given.choices || given.choices.elements() == shape.slots(), "route", "given choices are i32 [M,k]");
  require(routing.drops || shape.capacity == 0, "route", "experts of a capacity drop slots");
  require(!given.taken || (given.taken.elements() == shape.experts && shape.sequences == 1 && shape.capacity > 0),
          "route", "taken is i32 [E], of one sequence with a capacity");
}

void check_counted(const char* kernel, const RouterShape& shape, const Routing& routing, const Tensor& counted) {
  require(counted.shape.rank() == 0 || (counted.elements() == shape.experts && counted.type == routing.weight.type),
          kernel, "counted is [E], of the weights' type");
}

// n = beta n + each expert's slots, over all sequences.
template <class A>
void add_load_to(Stream& stream, const Gradient& n, const RouterShape& shape, const Routing& routing) {
  const std::int64_t sequences = shape.sequences, experts = shape.experts;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  A* const out = n.sum.as<A>();
  const A beta = A(n.beta);
  launch(stream, "add_load", experts, KOKKOS_LAMBDA(std::int64_t e) {
    std::int64_t own = 0;
    for (std::int64_t b = 0; b < sequences; ++b) own += load[b * experts + e];
    out[e] = beta == A(0) ? A(own) : beta * out[e] + A(own);  // mutation: counts_of_one_micro_batch
  });
}

template <class F> void dispatch_statistic(DType type, const char* kernel, const F& f) {
  require(type == DType::f32 || type == DType::f64, kernel, "router values are f32 or f64");
  if (type == DType::f32) f.template operator()<float>();
  else f.template operator()<double>();
}

}  // namespace

void route(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, const Tensor& logits,
           const Tensor& bias, const RouteGiven& given) {
  check("route", shape, routing);
  check_given(shape, routing, given);
  require(bias.shape.rank() == 0 || (bias.elements() == shape.experts && bias.type == logits.type), "route",
          "bias is [E], of the logits' type");
  require(logits.elements() == shape.tokens() * shape.experts, "route", "logits are [M,E]");
  require(routing.offsets.elements() == shape.experts + 1 && routing.row_of_slot.elements() == shape.slots() &&
              routing.token_of_row.elements() == shape.rows(),
          "route", "offsets are [E+1], row_of_slot [M,k], token_of_row [S]");
  if (!moe::choose_experts(stream, shape, routing, logits, bias))
    dispatch_statistic(logits.type, "route", [&]<class A>() {
      choose_experts<A>(stream, shape, routing, logits, bias);
    });
  if (given.choices)
    dispatch_statistic(logits.type, "route", [&]<class A>() { take_given<A>(stream, shape, routing, given.choices); });
  if (!moe::count_load(stream, shape, routing)) count_load(stream, shape, routing);
  const Arena::Frame frame(arena);
  const Tensor order = arena.temp(DType::i32, Shape{shape.slots()});
  if (shape.capacity > 0) {
    const Tensor begins = arena.temp(DType::i32, routing.offsets.shape);
    sort_by_key(stream, arena, order, begins, routing.expert);
    place_kept(stream, arena, shape, routing, order, begins, given.taken);
  } else if (shape.row_multiple == 1) {
    sort_by_key(stream, arena, order, routing.offsets, routing.expert);
    invert(stream, shape, routing, order);
  } else {
    const Tensor compact = arena.temp(DType::i32, routing.offsets.shape);
    sort_by_key(stream, arena, order, compact, routing.expert);
    spread(stream, shape, routing, compact);
    invert_spread(stream, shape, routing, order, compact);
  }
}

void count_differing(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& bias,
                     std::int64_t* differ) {
  check("count_differing", shape, routing);
  dispatch_statistic(routing.scores.type, "count_differing", [&]<class A>() {
    count_differing<A>(stream, shape, routing, bias, differ);
  });
}

void auxiliary_losses(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, double* balance,
                      double* z, const Tensor& counted) {
  check("auxiliary_losses", shape, routing);
  check_counted("auxiliary_losses", shape, routing, counted);
  const Arena::Frame frame(arena);
  double* const parts = arena.temp(DType::f64, Shape{2, shape.sequences}).as<double>();
  dispatch_statistic(routing.weight.type, "auxiliary_losses", [&]<class A>() {
    const A* const batch = counted ? counted.as<A>() : nullptr;
    sequence_losses<A>(stream, shape, routing, batch, parts, parts + shape.sequences);
  });
  add_sequences(stream, balance, parts, shape.sequences);
  add_sequences(stream, z, parts + shape.sequences, shape.sequences);
}

void add_load(Stream& stream, const Gradient& n, const RouterShape& shape, const Routing& routing) {
  check("add_load", shape, routing);
  require(n.sum.elements() == shape.experts, "add_load", "n is [E]");
  dispatch_statistic(n.sum.type, "add_load", [&]<class A>() { add_load_to<A>(stream, n, shape, routing); });
}

void add_busiest_expert(Stream& stream, const RouterShape& shape, const Routing& routing, double* slots) {
  check("add_busiest_expert", shape, routing);
  const std::int64_t sequences = shape.sequences, experts = shape.experts;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "busiest_expert", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const std::int64_t most = row.max<std::int64_t>(experts, [=](std::int64_t e) {
      std::int64_t own = 0;
      for (std::int64_t b = 0; b < sequences; ++b) own += load[b * experts + e];
      return own;
    });
    row.once([=] { *slots += static_cast<double>(most); });
  });
}

void route_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                    const Routing& routing, double balance_scale, double z_scale, const Tensor& counted) {
  check("route_backward", shape, routing);
  check_counted("route_backward", shape, routing, counted);
  require(dlogits.elements() == shape.tokens() * shape.experts && dweight.elements() == shape.slots(), "route_backward",
          "dlogits are [M,E], dweight [M,k]");
  const bool sigmoid = shape.rule.scores == Scores::sigmoid;
  require(!sigmoid || z_scale == 0 || routing.logits.elements() == dlogits.elements(), "route_backward",
          "of sigmoids with a z-loss, the logits are kept");
  const double per_token = balance_scale * static_cast<double>(shape.experts) / static_cast<double>(shape.length);
  dispatch_statistic(dlogits.type, "route_backward", [&]<class A>() {
    const double slots = counted ? 1 : static_cast<double>(shape.length * shape.top_k);
    const Slopes<A> slopes{A(per_token / slots),
                           A(2 * z_scale),
                           routing.load.as<std::int32_t>(),
                           counted ? counted.as<A>() : nullptr,
                           shape.length,
                           shape.experts};
    if (sigmoid) sigmoid_backward<A>(stream, shape, dlogits, dweight, routing, slopes);
    else softmax_backward<A>(stream, shape, dlogits, dweight, routing, slopes);
  });
}

}  // namespace tessera
