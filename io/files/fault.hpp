#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

/// Fault injection for tests: TESSERA_FAULT=phase:rank:kind strikes one rank (or `all`) once, the first time that it
/// enters the phase, or with phase:rank:kind:n the n-th time, and says so on stderr. Without the variable nothing here
/// does anything.
///   kill, stop            the signals SIGKILL and SIGSTOP, at the phase's beginning
///   enospc, eio, eintr    the phase's next system call on a file fails with that error
///   short                 the phase's next write takes half of what it was given
/// TESSERA_FAULT=step<N>:rank:nan (or inf) puts that value into the gradient which enters the first block's last branch
/// in step N, once; step<N>:all:redo drops the reduced gradients of step N and makes them again.
namespace tessera::fault {

/// The run's lock, a branch's beginning (before each of its writes), and the phases of a save in their order;
/// TESSERA_FAULT has their names. In the last one a branch sets aside what it leaves behind; it comes again after each
/// rename.
enum class Phase {
  lock, branch, mkdir, create, guard, structure, payload, sync, vote, digest, close, manifest, rename, latest, aside
};

std::string_view name_of(Phase phase);

/// Reads TESSERA_FAULT for this rank. Throws Error{usage} where it cannot be understood.
void arm(int rank);

/// The fault of this rank in step N, counted from 1; reported once.
enum class StepFault { nan, inf, redo };
std::optional<StepFault> in_step(std::int64_t step);

/// This rank enters a phase; a fault of the phase before that has not struck is dropped.
void enter(Phase phase);

/// Whether the system call about to be made is to fail: errno is set. Once.
bool fails();

/// How many of `bytes` the write about to be made takes.
std::int64_t portion(std::int64_t bytes);

/// For calls that a library makes: throws Error{environment} where one of them was to fail.
void strike(const std::filesystem::path& path);

}  // namespace tessera::fault
