#include "kernels/attention/library.hpp"

#if __has_include(<cudnn_frontend.h>)

#include <array>
#include <cmath>
#include <cstring>  // cuDNN's header needs it and does not include it
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"

namespace tessera::attention {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Node = std::shared_ptr<Tensor_attributes>;
using Dims = std::vector<std::int64_t>;

enum Name : std::int64_t { query = 1, key, value, out, lse, dout, dquery, dkey, dvalue };
using TensorAddresses = std::unordered_map<std::int64_t, void*>;

enum class Direction : std::uint8_t { forward, backward };

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) refuse(call, cudnnGetErrorString(status));
}

/// Tensors of one shape as cuDNN sees them: [sequences, heads, tokens, columns of a head], with strides.
class Layout {
 public:
  explicit Layout(const AttentionShape& s) : s_(s) {}

  Node packed(Graph& graph, Name name, std::int64_t heads) const {
    return graph.tensor(named(name, heads, s_.head_dim).set_stride(packed_strides()));
  }
  Node wide(Graph& graph, Name name) const {
    return graph.tensor(named(name, s_.heads, s_.head_dim).set_stride(wide_strides()));
  }
  Node sums(Graph& graph) const {
    return graph.tensor(named(lse, s_.heads, 1)
                            .set_stride({s_.heads * s_.length, s_.length, 1, 1})
                            .set_data_type(fe::DataType_t::FLOAT));
  }
  void give(const Node& node, Name name, std::int64_t heads) const { give(node, name, heads, packed_strides()); }
  void give_wide(const Node& node) const { give(node, out, s_.heads, wide_strides()); }
  void give_sums(const Node& node) const {
    give(node, lse, s_.heads, {s_.heads * s_.length, s_.length, 1, 1}, 1);
    node->set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  Tensor_attributes named(Name name, std::int64_t heads, std::int64_t columns) const {
    return Tensor_attributes().set_uid(name).set_dim({s_.sequences, heads, s_.length, columns});
  }
  void give(const Node& node, Name name, std::int64_t heads, const Dims& strides, std::int64_t columns = 0) const {
    node->set_output(true).set_uid(name).set_dim({s_.sequences, heads, s_.length, columns ? columns : s_.head_dim});
    node->set_stride(strides);
  }
  Dims packed_strides() const { return {s_.length * s_.columns(), s_.head_dim, s_.columns(), 1}; }
  Dims wide_strides() const {
    const std::int64_t width = s_.heads * s_.head_dim;
    return {s_.length * width, s_.head_dim, width, 1};
  }

  AttentionShape s_;
};

void describe_forward(Graph& graph, const AttentionShape& s, float scale) {
  const Layout at(s);
  const auto options = fe::graph::SDPA_attributes()
                           .set_name("attention_forward")
                           .set_generate_stats(true)
                           .set_causal_mask(true)
                           .set_attn_scale(scale);
  const auto [o, stats] = graph.sdpa(at.packed(graph, query, s.heads), at.packed(graph, key, s.kv_heads),
                                     at.packed(graph, value, s.kv_heads), options);
  at.give_wide(o);
  at.give_sums(stats);
}

void describe_backward(Graph& graph, const AttentionShape& s, float scale) {
  const Layout at(s);
  const auto options = fe::graph::SDPA_backward_attributes()
                           .set_name("attention_backward")
                           .set_causal_mask(true)
                           .set_attn_scale(scale)
                           .set_deterministic_algorithm(true);
  const auto [dq, dk, dv] = graph.sdpa_backward(at.packed(graph, query, s.heads), at.packed(graph, key, s.kv_heads),
                                                at.packed(graph, value, s.kv_heads), at.wide(graph, out),
                                                at.wide(graph, dout), at.sums(graph), options);
  at.give(dq, dquery, s.heads);
  at.give(dk, dkey, s.kv_heads);
  at.give(dv, dvalue, s.kv_heads);
}

/// All the workspace that cuDNN gets, computed here so that it can be planned without a GPU: what cuDNN 9.19 asks for
/// on sm_90 whatever the shape. Each row's sum. In backward also the gradients of keys and values of every query head
/// if heads share keys. There is dP in bf16, which a fixed order of sums takes.
std::int64_t workspace_bytes(const AttentionShape& s, Direction direction) {
  constexpr std::int64_t own = 256;
  if (direction == Direction::forward) return own;
  const std::int64_t heads = s.sequences * s.heads, rows = heads * s.length;
  const std::int64_t shared = s.kv_heads < s.heads ? 2 * s.head_dim * size_of(DType::bf16) : 0;
  const std::int64_t sums = rows * (size_of(DType::f32) + shared);
  return own + sums + heads * round_up(s.length, 128) * round_up(s.length, 64) * size_of(DType::bf16);
}

/// A stream's cuDNN: its handle, and one graph per shape and direction. All graphs share a workspace.
class Library {
 public:
  Library() { check(cudnnCreate(&handle_), "cudnnCreate"); }
  ~Library() { cudnnDestroy(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Null if cuDNN has no kernel for the shape that fits into its workspace.
  Graph* graph(const AttentionShape& s, Direction direction) {
    const auto key = std::make_tuple(direction, s.sequences, s.length, s.heads, s.kv_heads, s.head_dim);
    const auto known = graphs_.find(key);
    if (known != graphs_.end()) return known->second.get();
    auto made = std::make_unique<Graph>();
    made->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
    direction == Direction::forward ? describe_forward(*made, s, scale) : describe_backward(*made, s, scale);
    std::int64_t bytes = 0;
    if (made->build(handle_, {fe::HeurMode_t::A}).is_bad() || made->get_workspace_size(bytes).is_bad() ||
        bytes > workspace_bytes(s, direction))
      made.reset();
    return graphs_.emplace(key, std::move(made)).first->second.get();
  }

  void run(Stream& stream, Graph& graph, void* workspace, TensorAddresses&& places) {
    check(cudnnSetStream(handle_, space_of(stream).cuda_stream()), "cudnnSetStream");
    auto status = graph.execute(handle_, places, workspace);
    if (status.is_bad()) refuse("cuDNN attention", status.get_message().c_str());
  }

 private:
  using Key = std::tuple<Direction, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

  cudnnHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Graph>> graphs_;
};

bool takes(const AttentionShape& s, const Tensor& qkv) {
  return qkv.type == DType::bf16 && s.sequences > 0 && s.head_dim % 8 == 0 && s.head_dim >= 32 && s.head_dim <= 128 &&
         reinterpret_cast<std::uintptr_t>(qkv.data) % 16 == 0;
}

void add_packed(TensorAddresses& places, const AttentionShape& s, const Tensor& t, std::array<Name, 3> names) {
  bf16* const first = t.as<bf16>();
  places[names[0]] = first;
  places[names[1]] = first + s.heads * s.head_dim;
  places[names[2]] = first + (s.heads + s.kv_heads) * s.head_dim;
}

}  // namespace

bool library_forward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass) {
  if (!takes(shape, pass.qkv)) return false;
  void* const workspace = stream.workspace("cuDNN", workspace_bytes(shape, Direction::forward));
  if (stream.dry()) return true;
  Library& library = stream.library<Library>();
  Graph* const graph = library.graph(shape, Direction::forward);
  if (!graph) return false;
  TensorAddresses places{{out, pass.out.data}, {lse, pass.lse.data}};
  add_packed(places, shape, pass.qkv, {query, key, value});
  library.run(stream, *graph, workspace, std::move(places));
  return true;
}

bool library_backward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass, const Tensor& dqkv,
                      const Tensor& dy) {
  if (!takes(shape, pass.qkv)) return false;
  void* const workspace = stream.workspace("cuDNN", workspace_bytes(shape, Direction::backward));
  if (stream.dry()) return true;
  Library& library = stream.library<Library>();
  Graph* const graph = library.graph(shape, Direction::backward);
  if (!graph) return false;
  TensorAddresses places{{out, pass.out.data}, {lse, pass.lse.data}, {dout, dy.data}};
  add_packed(places, shape, pass.qkv, {query, key, value});
  add_packed(places, shape, dqkv, {dquery, dkey, dvalue});
  library.run(stream, *graph, workspace, std::move(places));
  return true;
}

}  // namespace tessera::attention

#else

namespace tessera::attention {

bool library_forward(Stream&, const AttentionShape&, const AttentionOperands&) { return false; }
bool library_backward(Stream&, const AttentionShape&, const AttentionOperands&, const Tensor&, const Tensor&) {
  return false;
}

}  // namespace tessera::attention

#endif
