#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace tessera {

/// A model's description: everything but the values of its tensors.
struct ModelFacts {
  ModelConfig model;
  Origin origin;
  StateCounters counters;
  std::vector<StateTensor> tensors;  ///< canonical tensors with the types of their elements; without ranges
  DataKind data = DataKind::tokens;  ///< what it was trained on: text is bytes
  std::string told;         ///< what a user should know of the reading, as one line, or empty
  std::int64_t window = 0;  ///< longest sequences within which its attention sees all of them; 0: any
};

/// Reads a model from the disk in pieces of canonical tensors, whatever the file format.
class ModelReader {
 public:
  virtual ~ModelReader() = default;
  virtual const ModelFacts& facts() const = 0;
  /// Reads elements [first, first + count) of a tensor, in its type. Throws Error{file}.
  virtual void read(std::size_t tensor, std::int64_t first, std::int64_t count, void* to) = 0;
  /// To be called when every element of a tensor has been read once. Verifies the tensor's digest, if the format has
  /// one, and throws Error{file} if it differs.
  virtual void finish(std::size_t tensor) = 0;
};

/// Writes a model to the disk. Without a commit() that has returned, its destructor removes everything.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;
  /// Writes elements [first, first + count) of a tensor, in its type; every element once. Throws Error{environment}.
  virtual void write(std::size_t tensor, std::int64_t first, std::int64_t count, const void* from) = 0;
  /// Completes the model under its name, by a rename. Returns the content digest if the format has one.
  virtual std::optional<std::string> commit() = 0;
};

}  // namespace tessera
