#include "kernels/base/strips.hpp"
#include "kernels/moe/back.hpp"

namespace tessera {
namespace {

// Gathers rows. T: any type of the elements' width.
template <class T> void gather_rows(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing) {
  const std::int64_t n = x.columns();
  T* const out = static_cast<T*>(x_rows.data);
  const T* const in = static_cast<const T*>(x.data);
  const std::int32_t* const token = routing.token_of_row.as<std::int32_t>();
  launch_rows(stream, "permute_forward", x_rows.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    T* const to = out + r * n;
    const std::int64_t m = token[r];
    const T* const from = in + m * n;
    row.each(n, [=](std::int64_t j) { to[j] = m < 0 ? T(0) : from[j]; });  // mutation: rows_between_experts_are_kept
  });
}

template <class T> T* as_or_null(const Tensor& tensor) { return tensor ? tensor.as<T>() : nullptr; }

// Rows: the addresses of slots' rows; null where a row is 0.
template <class T, class Rows>
void sum_slots(Stream& stream, const char* name, const Tensor& y, const Rows& in, const moe::SlotSum& terms,
               const Routing& routing) {
  using A = Accumulator<T>;
  const A* const weights = as_or_null<A>(terms.weights);
  const T *const first = as_or_null<T>(terms.first), *const behind = as_or_null<T>(terms.last);
  const std::int64_t n = in.columns, k = routing.row_of_slot.columns();
  T *const out = as_or_null<T>(y), *const kept = as_or_null<T>(terms.kept);  // null: not wanted
  const std::int32_t* const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  launch_strips(stream, name, routing.row_of_slot.rows(), n, KOKKOS_LAMBDA(std::int64_t m, const Strip& strip) {
    const std::int32_t* const rows = row_of_slot + m * k;
    A total[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t c) { total[l] = first != nullptr ? A(first[m * n + c]) : A(0); });
    std::int32_t last = -1;
    for (std::int64_t step = 0; step < k; ++step) {
      const std::int64_t j = moe::slot_after(last, rows, k);
      if (j < 0) break;  // the others were dropped
      last = rows[j];
      const T* const from = in.at(m * k + j);
      const A weight = weights != nullptr ? weights[m * k + j] : A(1);
      if (from != nullptr) strip.each([&](std::int64_t l, std::int64_t c) { total[l] += weight * A(from[c]); });
      if (kept == nullptr) continue;
      T* const own = kept + last * n;
      strip.each([&](std::int64_t, std::int64_t c) { own[c] = from != nullptr ? from[c] : T(0); });
    }
    if (out == nullptr) return;
    if (behind != nullptr) strip.each([&](std::int64_t l, std::int64_t c) { total[l] += A(behind[m * n + c]); });
    strip.each([&](std::int64_t l, std::int64_t c) { out[m * n + c] = T(total[l]); });
  });
}

void add_up(Stream& stream, const char* name, const Tensor& y, const Tensor& y_rows, const moe::SlotSum& terms,
            const Routing& routing) {
  for (const Tensor& term : {terms.first, terms.last})
    require(!term || (term.shape == y.shape && term.type == y.type), name, "a term has the tokens' shape and type");
  if (moe::sum_slots(stream, y, y_rows, terms, routing)) return;
  dispatch_real(y_rows.type, name, [&]<class T>() {
    if (terms.peers)
      return sum_slots<T>(stream, name, y, moe::RowsAtPeers<const T>(y_rows, routing, *terms.peers), terms, routing);
    const moe::RowsHere<const T> here{y_rows.as<T>(), y_rows.columns(), routing.row_of_slot.as<std::int32_t>()};
    sum_slots<T>(stream, name, y, here, terms, routing);
  });
}

template <class T>
void send_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& weight, const Routing& routing,
               const PeerRows& peers) {
  using A = Accumulator<T>;
  const std::int64_t n = x.columns(), k = routing.row_of_slot.columns();
  const T* const in = x.as<T>();
  const A* const weights = as_or_null<A>(weight);
  const moe::RowsAtPeers<T> out(rows, routing, peers);
  launch_rows(stream, "send_rows", routing.row_of_slot.elements(), KOKKOS_LAMBDA(const Row& row, std::int64_t slot) {
    T* const to = out.at(slot);
    const T* const from = in + slot / k * n;
    if (to == nullptr) return;
    if (weights == nullptr) return row.each(n, [=](std::int64_t j) { to[j] = from[j]; });
    const A factor = weights[slot];
    row.each(n, [=](std::int64_t j) { to[j] = T(factor * A(from[j])); });
  });
}

template <class T>
void backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy, const Tensor& y_rows,
              const Routing& routing) {
  using A = Accumulator<T>;
  const std::int64_t n = dy.columns(), k = routing.row_of_slot.columns();
  T* const out = as_or_null<T>(dy_rows);
  A* const dweights = dweight.as<A>();
  const T *const up = dy.as<T>(), *const in = y_rows.as<T>();
  const A* const weights = routing.weight.as<A>();
  const std::int32_t* const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  launch_rows(stream, "combine_backward", dy.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const T* const g = up + m * n;
    for (std::int64_t s = m * k; s < (m + 1) * k; ++s) {
      if (row_of_slot[s] < 0) {
        row.once([=] { dweights[s] = A(0); });  // mutation: dropped_slots_have_a_gradient
        continue;
      }
      const T* const y = in + row_of_slot[s] * n;
      const A weight = weights[s];
      // The product comes first, since dy_rows may be y_rows.
      const A along = buffered_sum<A>(row, n, [=](std::int64_t j) { return A(g[j]) * A(y[j]); });
      row.once([=] { dweights[s] = along; });
      if (out == nullptr) continue;
      T* const d = out + row_of_slot[s] * n;
      row.each(n, [=](std::int64_t j) { d[j] = T(weight * A(g[j])); });
    }
  });
}

// Clears the rows for which `unused(row)` is true. They are few, and a GPU's block for each row would cost more than
// the writes, so that a work item looks at many.
template <class Word, class F>
void clear_rows(Stream& stream, const char* name, const Tensor& rows, const F& unused) {
  const std::int64_t words = rows.columns() * size_of(rows.type) / static_cast<std::int64_t>(sizeof(Word));
  Word* const out = static_cast<Word*>(rows.data);
  constexpr std::int64_t at_once = 32;
  const std::int64_t end = rows.rows();
  launch_rows(stream, name, ceil_div(end, at_once), KOKKOS_LAMBDA(const Row& row, std::int64_t group) {
    for (std::int64_t r = group * at_once; r < end && r < (group + 1) * at_once; ++r) {
      if (!unused(r)) continue;
      Word* const to = out + r * words;
      row.each(words, [=](std::int64_t i) { to[i] = Word{}; });
    }
  });
}

// There are no unused rows if there are as many rows as slots and none of these is dropped. Clears in words where rows
// consist of them.
template <class F>
void clear_unused(Stream& stream, const char* name, const Tensor& rows, const Routing& routing, const F& unused) {
  if (rows.rows() == routing.row_of_slot.elements() && !routing.drops) return;  // mutation: no_gaps_where_slots_drop
  const auto place = reinterpret_cast<std::uintptr_t>(rows.data);
  if ((place | static_cast<std::uintptr_t>(rows.columns() * size_of(rows.type))) % sizeof(std::uint64_t) == 0)
    clear_rows<std::uint64_t>(stream, name, rows, unused);
  else
    clear_rows<std::uint8_t>(stream, name, rows, unused);
}

void check(const char* kernel, const Tensor& tokens, const Tensor& rows, const Routing& routing) {
  require(routing.row_of_slot.elements() <= rows.rows() && routing.token_of_row.elements() == rows.rows(), kernel,
          "there is a row for each slot");
  require(routing.row_of_slot.rows() == tokens.rows() && rows.columns() == tokens.columns(), kernel,
          "tokens are [M,C], rows [S,C], row_of_slot [M,k]");
}

void check_fetch(const char* kernel, const Tensor& y, const Tensor& y_rows, const Routing& routing) {
  require(!y || (routing.row_of_slot.rows() == y.rows() && y.columns() == y_rows.columns() && y.type == y_rows.type),
          kernel, "tokens are [M,C], rows [S,C] of the same type, row_of_slot [M,k]");
}

}  // namespace

void permute_forward(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing) {
  check("permute_forward", x, x_rows, routing);
  require(x.type == x_rows.type, "permute_forward", "rows keep their type");
  if (moe::gather_rows(stream, x_rows, x, routing)) return;
  switch (size_of(x.type)) {
    case 2: return gather_rows<std::uint16_t>(stream, x_rows, x, routing);
    case 4: return gather_rows<std::uint32_t>(stream, x_rows, x, routing);
    case 8: return gather_rows<std::uint64_t>(stream, x_rows, x, routing);
    default: return gather_rows<std::uint8_t>(stream, x_rows, x, routing);
  }
}

void permute_backward(Stream& stream, const Tensor& dx, const Tensor& dx_rows, const Routing& routing,
                      const Tensor& first) {
  check("permute_backward", dx, dx_rows, routing);
  add_up(stream, "permute_backward", dx, dx_rows, {.first = first}, routing);
}

void combine_forward(Stream& stream, const Tensor& y, const Tensor& y_rows, const Routing& routing,
                     const Tensor& last) {
  check("combine_forward", y, y_rows, routing);
  add_up(stream, "combine_forward", y, y_rows, {.weights = routing.weight, .last = last}, routing);
}

void combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing) {
  check("combine_backward", dy, y_rows, routing);
  require((!dy_rows || dy_rows.shape == y_rows.shape) && dweight.elements() == routing.weight.elements(),
          "combine_backward", "dy_rows has the shape of y_rows, dweight that of weight");
  if (!moe::combine_backward(stream, dy_rows, dweight, dy, y_rows, routing))
    dispatch_real(dy.type, "combine_backward", [&]<class T>() {
      backward<T>(stream, dy_rows, dweight, dy, y_rows, routing);
    });
  if (!dy_rows) return;
  const std::int32_t* const token = routing.token_of_row.as<std::int32_t>();
  // mutation: gradients_between_experts_are_kept
  clear_unused(stream, "clear_padding", dy_rows, routing, KOKKOS_LAMBDA(std::int64_t r) { return token[r] < 0; });
}

void clear_rows_behind(Stream& stream, const Tensor& rows, const Routing& routing) {
  const std::int32_t* const end = routing.offsets.as<std::int32_t>() + routing.offsets.elements() - 1;
  clear_unused(stream, "clear_rows_behind", rows, routing, KOKKOS_LAMBDA(std::int64_t r) { return r >= *end; });
}

void clear_gaps(Stream& stream, const Tensor& rows, const Routing& arrival, const Tensor& end) {
  const std::int32_t* const token = arrival.token_of_row.as<std::int32_t>();
  const std::int32_t* const behind = end ? end.as<std::int32_t>() : nullptr;
  clear_unused(stream, "clear_gaps", rows, arrival, KOKKOS_LAMBDA(std::int64_t r) {
    return token[r] < 0 && (behind == nullptr || r < *behind);  // mutation: rows_behind_those_of_peers_are_kept
  });
}

void send_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Routing& routing, const PeerRows& peers,
               Weighted weighted) {
  require(routing.row_of_slot.rows() == x.rows() && rows.columns() == x.columns() && rows.type == x.type, "send_rows",
          "tokens are [M,C], rows [S,C] of the same type, row_of_slot [M,k]");
  const Tensor weights = weighted == Weighted::yes ? routing.weight : Tensor{};
  if (moe::send_rows(stream, rows, x, weights, routing, peers)) return;
  dispatch_real(x.type, "send_rows", [&]<class T>() { send_rows<T>(stream, rows, x, weights, routing, peers); });
}

void send_numbers(Stream& stream, const Tensor& numbers, const Routing& routing, const PeerRows& peers,
                  std::int64_t first_token) {
  require(numbers.type == DType::i64, "send_numbers", "numbers are i64 [S]");
  const moe::RowsAtPeers<std::int64_t> out(numbers.view({numbers.elements(), 1}), routing, peers);
  const std::int64_t first = first_token * routing.row_of_slot.columns();
  launch(stream, "send_numbers", routing.row_of_slot.elements(), KOKKOS_LAMBDA(std::int64_t slot) {
    std::int64_t* const to = out.at(slot);
    if (to != nullptr) *to = first + slot;
  });
}

void fetch_answers(Stream& stream, const Tensor& y, const Tensor& kept, const Tensor& y_rows, const Routing& routing,
                   const PeerRows& peers, const Tensor& last) {
  check_fetch("fetch_answers", y, y_rows, routing);
  require(routing.row_of_slot.elements() <= kept.rows() && kept.columns() == y_rows.columns(), "fetch_answers",
          "there is a place for each slot's row");
  add_up(stream, "fetch_answers", y, y_rows, {.weights = routing.weight, .last = last, .peers = &peers, .kept = kept},
         routing);
}

void fetch_gradients(Stream& stream, const Tensor& dx, const Tensor& dx_rows, const Routing& routing,
                     const PeerRows& peers, const Tensor& first) {
  check_fetch("fetch_gradients", dx, dx_rows, routing);
  add_up(stream, "fetch_gradients", dx, dx_rows, {.first = first, .peers = &peers}, routing);
}

void number_rows(Stream& stream, const Tensor& numbers, const Routing& routing, std::int64_t first_token) {
  require(numbers.type == DType::i64 && numbers.elements() == routing.token_of_row.elements(), "number_rows",
          "numbers are i64 [S]");
  const std::int64_t k = routing.row_of_slot.columns();
  auto* const out = numbers.as<std::int64_t>();
  const std::int32_t* const token = routing.token_of_row.as<std::int32_t>();
  const std::int32_t* const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  launch(stream, "number_rows", numbers.elements(), KOKKOS_LAMBDA(std::int64_t r) {
    const std::int64_t m = token[r];
    std::int64_t number = 0;
    for (std::int64_t j = 0; m >= 0 && j < k; ++j)
      if (row_of_slot[m * k + j] == r) number = (first_token + m) * k + j;
    out[r] = number;
  });
}

}  // namespace tessera
