#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `checkpoint` of a deck.
struct CheckpointConfig {
  Derived<std::string> dir;
  std::int64_t every_steps = 0;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  ExpertLayout expert_layout = ExpertLayout::automatic;
  Derived<CheckpointIo> io;
  std::map<std::string, std::string> mpio_hints;
  bool async = false;
  bool quantized = false;
  std::string init_from;
  std::vector<std::string> init_missing;
  std::vector<std::string> init_rows;
  bool init_ignore_extra = false;
  bool init_other_tokenizer = false;
  bool keep_best = false;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("dir", self.dir, Text::line, may_change, "runs/<run.name>",
              "The run directory, relative to the working directory");
    v.key("every_steps", self.every_steps, from_to(0, 1e12), may_change,
          "Steps between checkpoints; 0: none but the last step's, which is always saved");
    v.key("keep_last", self.keep_last, from_to(2, 1e6), may_change, "Newest valid checkpoints that are kept");
    v.key("keep_every", self.keep_every, from_to(0, 1e12), may_change,
          "Checkpoints of steps that are multiples of it are kept for good; 0: none");
    v.key("expert_layout", self.expert_layout, OneOf(), may_change,
          "Expert weights in files: single, one dataset a projection; discrete, one an expert; auto: as in memory");
    v.derived("io", self.io, OneOf(), may_change, "mpio; direct with async",
              "How ranks move payload: mpio, through HDF5's MPI-IO driver; direct, by the system's own calls");
    v.key("mpio_hints", self.mpio_hints, Text::line, may_change,
          "Hints for MPI-IO, by name, as its library knows them, with io mpio: {striping_factor: 8}");
    v.key("async", self.async, OneOf(), may_change,
          "Save a copy of the state in host memory while training goes on; by io direct");
    v.key("quantized", self.quantized, OneOf(), may_change,
          "Write quantized.h5 too: the weights that training holds as codes, each in its own format, both copies");
    v.key("init_from", self.init_from, Text::line_or_empty, may_change,
          "First weights of a fresh run, from step 0: a checkpoint, run directory or Hugging Face folder; empty: "
          "drawn");
    v.key("init_missing", self.init_missing, Text::line_or_empty, may_change,
          "Weights, by name, that init_from may lack: they start as drawn");
    v.key("init_rows", self.init_rows, Text::line_or_empty, may_change,
          "Weights with a row a token or position, by name, that may have fewer rows in init_from: further ones start "
          "as drawn");
    v.key("init_ignore_extra", self.init_ignore_extra, OneOf(), may_change,
          "Pass over weights of init_from that the model does not have");
    v.key("init_other_tokenizer", self.init_other_tokenizer, OneOf(), may_change,
          "Take weights that were trained with another tokenizer than this run's: a row then stands for another token");
    v.key("keep_best", self.keep_best, OneOf(), may_change,
          "Save each step whose evaluation has the lowest loss so far, and keep the best one beside the newest");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const CheckpointConfig&) const = default;
};

}  // namespace tessera
