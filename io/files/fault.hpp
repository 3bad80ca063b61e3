#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

/// Failures on purpose, for tests: TESSERA_FAULT=phase:rank:kind strikes one rank (or `all`) once, at the first save or
/// lock that comes to the phase, and says so on stderr. Without the variable nothing here does anything.
///   kill, stop            the signals SIGKILL and SIGSTOP, at the phase's beginning
///   enospc, eio, eintr    the phase's next system call on a file fails with that error
///   short                 the phase's next write takes half of what it was given
namespace tessera::fault {

/// The phases of a save in their order, after the run's lock; TESSERA_FAULT has their names.
enum class Phase { lock, mkdir, create, guard, payload, sync, vote, digest, close, manifest, rename, latest };

std::string_view name_of(Phase phase);

/// Reads TESSERA_FAULT for this rank. Throws Error{usage} where it cannot be understood.
void arm(int rank);

/// This rank comes to a phase; what the one before was to suffer and did not is forgotten.
void enter(Phase phase);

/// Whether the system call about to be made is to fail: errno is set. Once.
bool fails();

/// How many of `bytes` the write about to be made takes.
std::int64_t portion(std::int64_t bytes);

/// For calls that a library makes: throws Error{environment} where one of them was to fail.
void strike(const std::filesystem::path& path);

}  // namespace tessera::fault
