#include "kernels/attention/attention.hpp"

#include "kernels/attention/back.hpp"

namespace tessera {
namespace {

void check(const AttentionShape& shape, const AttentionOperands& pass, const char* kernel) {
  const auto& [out, lse, qkv, positions] = pass;
  require(shape.sequences >= 0 && shape.length > 0 && shape.head_dim > 0, kernel, "needs a length and a head_dim");
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, kernel, "kv_heads must divide heads");
  const DType type = qkv.type;
  require(type == DType::f64 || type == DType::f32 || type == DType::bf16, kernel, "takes f64, f32 or bf16");
  require(out.type == type, kernel, "operands must be of one type");
  const std::int64_t tokens = shape.sequences * shape.length;
  require(qkv.elements() == tokens * shape.columns(), kernel, "qkv is [tokens, (H + 2 G) D]");
  require(out.elements() == tokens * shape.heads * shape.head_dim, kernel, "out is [tokens, H D]");
  require(lse.type == (type == DType::f64 ? DType::f64 : DType::f32), kernel, "lse is fp32 (fp64 for fp64)");
  require(lse.elements() == tokens * shape.heads, kernel, "lse is [sequences, H, T]");
  require(!positions || (positions.type == DType::i32 && positions.elements() == tokens), kernel,
          "positions are i32 [tokens]");
}

// FLOPs: two operations for each pair of a query and a visible key, in each of `products` products of length D.
double flops(const AttentionShape& shape, int products) {
  const auto pairs = 0.5 * static_cast<double>(shape.length) * static_cast<double>(shape.length + 1);
  return 2.0 * products * pairs * static_cast<double>(shape.sequences * shape.heads * shape.head_dim);
}

}  // namespace

void attention_forward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass) {
  check(shape, pass, "attention_forward");
  stream.count_launch();
  stream.count_flops(flops(shape, 2));
  if (shape.sequences == 0) return;
  attention::forward(stream, arena, shape, pass);
}

void attention_backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
                        const Tensor& dqkv, const Tensor& dout) {
  constexpr const char* kernel = "attention_backward";
  check(shape, pass, kernel);
  check(shape, {dout, pass.lse, dqkv, pass.positions}, kernel);
  require(dqkv.type == pass.qkv.type, kernel, "operands must be of one type");
  stream.count_launch();
  stream.count_flops(flops(shape, 5));
  if (shape.sequences == 0) return;
  attention::backward(stream, arena, shape, pass, dqkv, dout);
}

}  // namespace tessera
