#pragma once

namespace tessera {

/// Parses the command line, runs its verb and returns the program's exit code. Prints what a verb throws to stderr.
int run_command_line(int argc, char* const* argv);

}  // namespace tessera
