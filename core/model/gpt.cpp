#include "core/model/gpt.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

const GptShape& checked(const GptShape& shape) {
  require(shape.layers >= 1 && shape.hidden >= 1 && shape.ffn >= 1 && shape.seq_len >= 1 && shape.vocabulary >= 1,
          "Gpt", "every size must be at least 1");
  require(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0 && shape.head_dim >= 1, "Gpt",
          "kv_heads must divide heads");
  require(shape.position != Position::rotary || shape.head_dim % 2 == 0, "Gpt",
          "rotary positions need an even head_dim");
  require(!shape.moe || (shape.moe->top_k >= 1 && shape.moe->top_k <= shape.moe->experts), "Gpt",
          "top_k must lie between 1 and the number of experts");
  require(!shape.moe || shape.moe->ffn >= 1, "Gpt", "experts have a width");
  require(!shape.moe || shape.moe->experts % shape.moe->group.size == 0, "Gpt",
          "ranks of an expert group hold equal shares of the experts");
  return shape;
}

std::vector<Recompute<Block>> blocks_of(ParamRegistry& registry, const GptShape& shape) {
  std::vector<Recompute<Block>> blocks;
  for (int i = 0; i < shape.layers; ++i) {
    const ParamRegistry::InBlock block(registry, i);
    blocks.emplace_back(shape.keep.block, Block(registry, i, shape));
  }
  return blocks;
}

}  // namespace

Gpt::Gpt(ParamRegistry& registry, const GptShape& shape)
    : shape_(checked(shape)),
      embedding_(registry, shape),
      blocks_(blocks_of(registry, shape)),
      head_(registry, shape, embedding_.tokens()) {}

Call Gpt::start(const Pass& pass, const MicroBatch& batch) const {
  Call call{pass, batch.loss_scale, {}, batch.first_sequence * shape_.seq_len};
  call.positions = batch.positions;
  call.choices = batch.choices;
  if (shape_.position == Position::rotary) {
    call.rotation = pass.arena.keep(shape_.sum_type(), {shape_.seq_len, shape_.turned()});
    rotary_table(pass.stream, call.rotation, shape_.rope_base, shape_.rope_scaling);
  }
  return call;
}

Tensor Gpt::stream_temp(Arena& arena, std::int64_t tokens) const {
  return arena.temp(shape_.compute, {tokens, shape_.hidden});
}

Gpt::Saved Gpt::place(Arena& arena, std::int64_t tokens) const {
  Saved saved;
  saved.streams.reserve(blocks_.size() + 1);
  saved.blocks.reserve(blocks_.size());
  for (const Recompute<Block>& block : blocks_) {
    saved.streams.push_back(arena.keep(shape_.compute, {tokens, shape_.hidden}));
    saved.blocks.push_back(block.place(arena, tokens));
  }
  saved.streams.push_back(arena.keep(shape_.compute, {tokens, shape_.hidden}));
  return saved;
}

Residual Gpt::forward(const Call& call, const Tensor& ids, const Saved& saved, const Tensor& branch) const {
  embedding_.forward(call, saved.streams.front(), ids);
  Residual x = Residual::whole(saved.streams.front());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Arena::Frame frame(call.arena);
    const Block::Saved block = blocks_[i].forward(call, x, saved.blocks[i], branch);
    x = {block.middle, branch, saved.streams[i + 1]};
    // The branch lies in memory that the frame is about to release: add it now rather than in the next norm.
    if (!saved.blocks[i]) x = sum(call, x);
  }
  return x;
}

void Gpt::gradient(const Pass& pass, const MicroBatch& batch) const {
  require(batch.padding == 0, "Gpt::gradient", "takes no padding");
  const Arena::Frame frame(pass.arena);
  const std::int64_t tokens = batch.sequences * shape_.seq_len;
  const Call call = start(pass, batch);
  const Saved saved = place(pass.arena, tokens);
  const Tensor dx = stream_temp(pass.arena, tokens);
  {
    const Arena::Frame forward_only(pass.arena);
    const Residual x = forward(call, batch.ids, saved, stream_temp(pass.arena, tokens));
    head_.gradient(call, batch, dx, x);
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Frame again(pass.arena);
    const Tensor& x = saved.streams[i];
    Call of_block = call;
    if (i > 0) of_block.fault.reset();
    blocks_[i].layer().backward(of_block, dx, x, blocks_[i].again(call, Residual::whole(x), saved.blocks[i]));
  }
  embedding_.backward(call, dx, batch.ids);
}

void Gpt::evaluate(const Pass& pass, const MicroBatch& batch) const {
  const Arena::Frame frame(pass.arena);
  const std::int64_t tokens = batch.sequences * shape_.seq_len;
  const Call call = start(pass, batch);
  const Saved saved = place(pass.arena, tokens);
  head_.loss(call, batch, forward(call, batch.ids, saved, stream_temp(pass.arena, tokens)));
}

Sequence Gpt::sequence(Stream& stream, Arena& arena, std::int64_t capacity) const {
  Sequence sequence;
  sequence.cache =
      arena.keep(shape_.compute, {shape_.layers, capacity, 2 * shape_.kv_heads * shape_.head_dim});
  if (shape_.position == Position::rotary) {
    sequence.rotation = arena.keep(shape_.sum_type(), {capacity, shape_.turned()});
    rotary_table(stream, sequence.rotation, shape_.rope_base, shape_.rope_scaling);
  }
  if (const auto& moe = shape_.moe; moe && moe->slots_of_sequence(shape_.seq_len) > 0)
    sequence.taken = arena.keep(DType::i32, {moe->blocks.among(shape_.layers), moe->experts});
  return sequence;
}

void Gpt::extend(const Pass& pass, Sequence& sequence, const Tensor& ids, const Tensor& logits) const {
  const std::int64_t tokens = ids.elements(), block = sequence.cache.elements() / shape_.layers;
  require(tokens > 0 && sequence.length + tokens <= sequence.capacity(), "Gpt::extend", "the sequence is full");
  const Arena::Frame frame(pass.arena);
  Call call{pass, 0, {}, sequence.length, {}, sequence.length};
  if (sequence.rotation) call.rotation = sequence.rotation.row_range(sequence.length, tokens);
  call.cache = sequence.cache;
  call.taken = sequence.taken;
  if (call.taken && sequence.length == 0) clear(pass.stream, call.taken);
  const Tensor x = pass.arena.keep(shape_.compute, {tokens, shape_.hidden});
  embedding_.forward(call, x, ids);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Arena::Frame of_block(pass.arena);
    call.cache = sequence.cache.flat(static_cast<std::int64_t>(i) * block, block)
                     .view({sequence.capacity(), sequence.cache.columns()});
    const Tensor branch = stream_temp(pass.arena, tokens);
    const Block::Saved saved = blocks_[i].layer().place(pass.arena, tokens);
    blocks_[i].layer().forward(call, Residual::whole(x), saved, branch);
    add(pass.stream, x, saved.middle, branch);
  }
  if (logits) head_.logits(call, logits, Residual::whole(x).row_range(tokens - 1, 1));
  sequence.length += tokens;
}

void Gpt::next_logits(const Pass& pass, const Tensor& ids, std::int64_t position, const Tensor& logits) const {
  const Arena::Frame frame(pass.arena);
  const Call call = start(pass, {});
  const Saved saved = place(pass.arena, shape_.seq_len);
  const Residual x = forward(call, ids, saved, stream_temp(pass.arena, shape_.seq_len));
  head_.logits(call, logits, x.row_range(position, 1));
}

}  // namespace tessera
