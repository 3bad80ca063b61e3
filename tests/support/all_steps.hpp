#pragma once
#include <functional>

#include "app/training/loop/training.hpp"

namespace tessera::test {

/// Makes all steps that are not done yet, with the evaluations that are due, or until `at_boundary` says stop. It is
/// called before the first step and after each, with the number of steps done.
inline void all_steps(Training& training, const RowSink& sink,
                      const std::function<Proceed(std::int64_t step)>& at_boundary = {}) {
  training.begin(sink);
  while ((!at_boundary || at_boundary(training.step()) == Proceed::go_on) && !training.done()) {
    training.make_step();
    training.evaluate_if_due();
    training.end_step();
  }
  training.finish();
}

}  // namespace tessera::test
