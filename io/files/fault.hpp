#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

/// Fault injection for tests. TESSERA_FAULT=phase:rank:kind makes a fault on one rank (or `all`) once, and reports it
/// on stderr. It does so the first time that the rank enters the phase, or with phase:rank:kind:n the n-th time.
/// Without the variable there are no faults. Kinds:
///   kill, stop            the signals SIGKILL and SIGSTOP, at the phase's beginning
///   enospc, eio, eintr    the phase's next system call on a file fails with that error
///   short                 the phase's next write takes half of what it was given
///   slow                  each system call on a file in the phase is delayed
/// TESSERA_FAULT=step<N>:rank:nan (or inf) puts that value into the gradient that enters the first block's last branch
/// in step N, as data would. It does so also when the step is computed again. step<N>:rank:activation (or gradient,
/// shard) is a machine's, in the first computation alone. It is of the value that enters there, of the first gradient
/// written, or of the first reduced gradient. Those that look sound: `number`, of the value that enters there, and
/// `bit`, of the first gradient written. bit_for_another: in a spot check's computation for another rank, bit_always:
/// in all computations. step<N>:all:redo drops the reduced gradients of step N and makes them again.
namespace tessera::fault {

/// Phases, by the names that TESSERA_FAULT uses. First taking the run's lock and the beginning of a branch (entered
/// before each of its writes), then the phases of a save in their order. In `aside` a branch sets aside what it leaves
/// behind; it is entered again after each rename. In `retire` older checkpoints are removed.
enum class Phase {
  lock, branch, mkdir, create, guard, structure, payload, sync, vote, digest, close, manifest, rename, latest, aside,
  retire
};

std::string_view name_of(Phase phase);

/// Reads TESSERA_FAULT for this rank. Throws Error{usage} if it is malformed.
void arm(int rank);

/// The fault of this rank in step `step` (from 1), if there is one; returned once.
enum class StepFault { nan, inf, redo, activation, gradient, shard, number, bit, bit_for_another, bit_always };
std::optional<StepFault> in_step(std::int64_t step);

/// To be called when this rank enters a phase. A pending fault of the phase before is dropped.
void enter(Phase phase);

/// Whether the next system call must fail, once; then errno is set.
bool fails();

/// How many of `bytes` the next write may write.
std::int64_t portion(std::int64_t bytes);

/// For system calls inside a library: throws Error{environment} if one of them must fail.
void strike(const std::filesystem::path& path);

}  // namespace tessera::fault
