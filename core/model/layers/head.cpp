#include "core/model/layers/head.hpp"

#include <algorithm>

#include "core/model/layers/embedding.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/loss/loss.hpp"

namespace tessera {

Head::Head(ParamRegistry& registry, const GptShape& shape, ParamId tokens)
    : norm_(registry, "final_norm", shape),
      projection_(registry, shape.tied_head ? tokens : add_vocabulary(registry, "head.weight", shape, Role::head),
                  shape.accumulation, RegionName::head),
      vocabulary_(shape.vocabulary),
      padded_(shape.padded_vocabulary()),
      length_(shape.seq_len),
      rows_at_once_(std::max<std::int64_t>(1, shape.logits_at_once / padded_)) {
  if (shape.tied_head) registry.tie(tokens, "head.weight");
}

template <class F>
void Head::each_piece(const Call& call, const Tensor& y, const F& f) const {
  const std::int64_t rows = y.rows();
  // Pieces of about equal size: whole tiles of a product, and where amax counts, whole blocks of codes in any case.
  constexpr std::int64_t tile = 128;
  const std::int64_t even = ceil_div(rows, ceil_div(rows, rows_at_once_));
  const std::int64_t step = projection_.quantizes() || even >= tile ? round_up(even, tile) : even;
  for (std::int64_t begin = 0; begin < rows; begin += step) {
    const Arena::Frame frame(call.arena);
    const Tensor logits = call.arena.temp(y.type, {std::min(step, rows - begin), padded_});
    projection_.forward(call, logits, y.row_range(begin, logits.rows()));
    if (call.logits_digest)
      digest_rows(call.stream, call.logits_digest, logits, vocabulary_,
                  static_cast<std::uint64_t>(call.first_token + begin));
    f(begin, logits);
  }
}

void Head::loss(const Call& call, const MicroBatch& batch, const Residual& x) const {
  const Region region(call.stream, RegionName::head);
  const Arena::Frame frame(call.arena);
  const NormLayer::Saved normed = norm_.place(call.arena, x.rows());
  norm_.forward(call, x, normed);
  const std::int64_t counted = batch.sequences * length_ - batch.padding;
  each_piece(call, normed.y, [&](std::int64_t begin, const Tensor& logits) {
    const std::int64_t rows = std::min(logits.rows(), counted - begin);
    if (rows <= 0) return;
    cross_entropy(call.stream, call.arena, &call.sums->loss, {}, logits.row_range(0, rows),
                  batch.targets.flat(begin, rows), vocabulary_);
  });
}

void Head::gradient(const Call& call, const MicroBatch& batch, const Tensor& dx, const Residual& x) const {
  const Region region(call.stream, RegionName::head);
  const Arena::Frame frame(call.arena);
  const NormLayer::Saved normed = norm_.place(call.arena, x.rows());
  norm_.forward(call, x, normed);
  const Tensor dnormed = call.arena.temp(dx.type, dx.shape);
  each_piece(call, normed.y, [&](std::int64_t begin, const Tensor& logits) {
    const std::int64_t rows = logits.rows();
    cross_entropy(call.stream, call.arena, &call.sums->loss, logits, logits, batch.targets.flat(begin, rows),
                  vocabulary_, batch.target_scale);
    Call piece = call;
    piece.first_token += begin;
    projection_.backward(piece, dnormed.row_range(begin, rows), logits, normed.y.row_range(begin, rows));
  });
  clear(call.stream, dx);
  norm_.backward(call, dx, dnormed, x.sum, normed);
}

void Head::logits(const Call& call, const Tensor& logits, const Residual& x) const {
  const Region region(call.stream, RegionName::head);
  const Arena::Frame frame(call.arena);
  const NormLayer::Saved normed = norm_.place(call.arena, 1);
  norm_.forward(call, x, normed);
  const Tensor padded = call.arena.temp(normed.y.type, {1, padded_});
  projection_.forward(call, padded, normed.y);
  convert(call.stream, logits, padded.flat(0, vocabulary_));
}

}  // namespace tessera
