#pragma once
#include <string>

#include "core/comm/control.hpp"
#include "io/files/fault.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

/// The phases of a save, as the watchdog's reports quote them (Control::about) and tests put faults into them.

inline void note_phase(Control& control, fault::Phase phase) {
  control.about("a checkpoint's " + std::string(fault::name_of(phase)));
}

/// Clears the phase that the reports quote, however a save ends.
class PhaseNote {
 public:
  explicit PhaseNote(Control& control) : control_(control) {}
  PhaseNote(Control& control, fault::Phase phase) : control_(control) { note_phase(control, phase); }
  PhaseNote(const PhaseNote&) = delete;
  PhaseNote& operator=(const PhaseNote&) = delete;
  ~PhaseNote() { control_.about(""); }

 private:
  Control& control_;
};

inline void enter_phase(Control& control, fault::Phase phase) {
  note_phase(control, phase);
  fault::enter(phase);
}

/// Runs `work` of one phase. An exception of one rank becomes an error of all. Collective over the world.
template <class Work>
void in_phase(Control& control, fault::Phase phase, const Work& work) {
  enter_phase(control, phase);
  Problems problems;
  attempt(problems, work);
  control.agree(problems);
}

}  // namespace tessera
