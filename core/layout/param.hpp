#pragma once
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/recipe/treatment.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera {

/// Role of a parameter. Weight decay, quantization and the optimizer follow from the role, never from the name.
enum class Role : std::uint8_t {
  matrix,
  expert,
  embedding,
  position,
  head,
  norm,
  bias,
  router,
  router_bias,
  router_load
};

/// Whether a role is that of a block's matrix, or a stack of them: Muon steps these, and recipes quantize them.
constexpr bool is_matrix(Role role) { return role == Role::matrix || role == Role::expert; }
/// Whether a parameter's gradient is a count of what a step did, rather than a slope of the loss. Such a count has no
/// part in the gradient's norm, and a rule of its own.
constexpr bool is_counted(Role role) { return role == Role::router_bias || role == Role::router_load; }
constexpr bool decays(Role role) {
  return role != Role::norm && role != Role::bias && role != Role::router && !is_counted(role);
}

/// Initial value of a parameter: drawn from a normal distribution of mean 0, zero or one.
struct Start {
  enum class Kind : std::uint8_t { normal, zero, one } kind = Kind::zero;
  double deviation = 0;
};

/// The dataset by which files, logs and random keys know a parameter. A discrete expert weight is a part of a dataset.
struct Canonical {
  std::string name;        ///< "layers.0.moe.experts.up.weight"
  Shape shape;             ///< [E, F, C]; without vocabulary padding
  std::int64_t first = 0;  ///< row-major index of this parameter's first element in it
};

/// One registered parameter. A grouped (single) expert weight has `members` matrices of one shape; others have 1.
struct ParamSpec {
  std::string name;  ///< as held: "layers.0.moe.experts.3.up.weight" when discrete
  Shape member;      ///< shape of one member in memory, vocabulary padding included
  int members = 1;
  Role role = Role::matrix;
  Start start;
  Canonical canonical;
  std::string tied_to = {};  ///< second canonical name under which the model uses it (tied head), or empty
  Shape parts = {};  ///< rows of each of the matrices that are fused into a member (query, key and value; gate and
                     ///< up), in order; empty: the member is one
  MatrixName part = MatrixName::other;   ///< its place in the model, by which rules of treatments name it
  int block = -1;            ///< the transformer block that it belongs to, set by the registry; -1: none
  int module = 0;  ///< number of its module (half of a block, embedding, head), set by the registry
  Treatment treatment = {};  ///< what treatment_of says, set by the registry
  WeightFormat format = {};  ///< treatment.held()

  std::int64_t member_elements() const { return member.elements(); }
  /// Rows of each part of a member; at least one part.
  Shape part_rows() const { return parts.rank() > 0 ? parts : Shape{member[0]}; }
  /// Elements of one member without the vocabulary's padding, which is at the end and exists in memory only.
  std::int64_t real_elements() const;
  /// Row-major index of a member's first element in the canonical dataset.
  std::int64_t canonical_index(int m) const { return canonical.first + m * member_elements(); }
};

struct ParamId {
  int value = -1;
  bool operator==(const ParamId&) const = default;
};

/// A canonical dataset: one parameter, or the parameters of all experts of a discrete projection.
struct Dataset {
  std::vector<ParamId> params;  ///< registered one after another, ascending in the dataset; at least one
};

/// The treatment of one parameter, from its role, block and part: the only place that decides what is quantized. Rules
/// are for matrices, experts and an untied head. A tied head is an embedding: plain. What is counted is fp32: steps of
/// a selection bias are smaller than those of bf16.
Treatment treatment_of(const ParamSpec& spec, const TreatmentRules& rules);

/// The parameters of a model in registration (forward) order: the only list of them, each with its treatment.
class ParamRegistry {
 public:
  ParamRegistry() = default;
  explicit ParamRegistry(TreatmentRules rules) : rules_(std::move(rules)) {}

  /// Parameters registered while it lives belong to transformer block `block`, in modules of their own.
  class InBlock {
   public:
    InBlock(ParamRegistry& registry, int block) : registry_(registry) {
      registry.block_ = block;
      registry.begin_module();
    }
    ~InBlock() {
      registry_.block_ = -1;
      registry_.begin_module();
    }
    InBlock(const InBlock&) = delete;
    InBlock& operator=(const InBlock&) = delete;

   private:
    ParamRegistry& registry_;
  };

  ParamId add(ParamSpec spec);
  /// Begins a module: parameters registered from now on get buckets of their own under full sharding.
  void begin_module() { ++module_; }
  /// Ties a parameter to a second canonical name: the model uses it there too, in place of a parameter of that name.
  void tie(ParamId id, std::string name) { specs_[static_cast<std::size_t>(id.value)].tied_to = std::move(name); }
  const ParamSpec& operator[](ParamId id) const { return specs_[static_cast<std::size_t>(id.value)]; }
  const std::vector<ParamSpec>& specs() const { return specs_; }
  /// The canonical datasets in registration order.
  const std::vector<Dataset>& datasets() const { return datasets_; }
  const Canonical& canonical(const Dataset& dataset) const { return (*this)[dataset.params.front()].canonical; }
  int size() const { return static_cast<int>(specs_.size()); }
  /// Whether any factor of any parameter's products is quantized.
  bool quantizes() const;

 private:
  TreatmentRules rules_;
  int block_ = -1, module_ = 0;
  std::vector<ParamSpec> specs_;
  std::vector<Dataset> datasets_;
  std::unordered_set<std::string> names_;
};

}  // namespace tessera
