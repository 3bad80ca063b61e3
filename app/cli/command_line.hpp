#pragma once

namespace tessera {

/// Reads the command line, runs its verb and returns the program's exit code. Whatever a verb throws ends here, on
/// stderr.
int run_command_line(int argc, char* const* argv);

}  // namespace tessera
