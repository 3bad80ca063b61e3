#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace tessera {

/// Facts of a model besides its tensors' values.
struct ModelFacts {
  ModelConfig model;
  Origin origin;
  StateCounters counters;
  std::vector<StateTensor> tensors;  ///< canonical, with the types that they are held in; no ranges
};

/// A model on the disk, read in pieces: canonical tensors, whatever their files look like.
class ModelReader {
 public:
  virtual ~ModelReader() = default;
  virtual const ModelFacts& facts() const = 0;
  /// Elements [first, first + count) of a tensor, in its type. Throws Error{file}.
  virtual void read(std::size_t tensor, std::int64_t first, std::int64_t count, void* to) = 0;
  /// To be called when every element of a tensor was read once: throws Error{file} unless they are what was saved.
  virtual void finish(std::size_t tensor) = 0;
};

/// A model on its way to the disk. Destroyed before commit() has returned, it leaves nothing.
class ModelWriter {
 public:
  virtual ~ModelWriter() = default;
  /// Elements [first, first + count) of a tensor, in its type; every element once. Throws Error{environment}.
  virtual void write(std::size_t tensor, std::int64_t first, std::int64_t count, const void* from) = 0;
  /// Gives the whole its name. Returns the content digest where the format has one.
  virtual std::optional<std::string> commit() = 0;
};

}  // namespace tessera
