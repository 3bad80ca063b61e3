#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/convert/tensor_file.hpp"

namespace tessera {

/// A tensor and the file that holds it.
struct LocatedTensor {
  const PosixFile* file;
  SourceTensor tensor;
};
/// Finds a tensor of a folder by its name.
using FindTensor = std::function<std::optional<LocatedTensor>(const std::string&)>;

/// A weight that a folder of Hugging Face holds as codes, in a layout of DeepSeek, compressed-tensors or Model
/// Optimizer. Its tensors say which.
class CodedWeight {
 public:
  /// The weight `name` of shape [N, K]; empty if the folder holds it as values, or not at all. Adds the problems of a
  /// weight whose tensors fit no layout to `why`. Local.
  static std::optional<CodedWeight> find(const std::string& name, const Shape& shape, const FindTensor& find,
                                         std::vector<std::string>& why);

  /// Names of its tensors.
  const std::vector<std::string>& names() const { return names_; }
  /// Decodes consecutive elements, row-major, from element `first` on: value = code x step, each rounded to fp32 once.
  void read(std::int64_t first, std::int64_t count, float* to) const;

 private:
  /// What a step is computed from: fp32 of a block of 128 x 128, an E8M0 byte, an E4M3 byte and the tensor's scale.
  /// Or that scale alone.
  enum class Step { block, e8m0, divided, multiplied, tensor };

  float step_of(const std::byte* scales, std::int64_t group) const;
  std::int64_t width() const;  ///< elements of a row that share a step

  Step step_ = Step::tensor;
  bool packed_ = false;  ///< two codes of E2M1 a byte, the first in the low bits
  std::int64_t columns_ = 0;
  LocatedTensor codes_, scales_;
  float number_ = 1;  ///< the tensor's scale
  std::vector<std::string> names_;
};

}  // namespace tessera
