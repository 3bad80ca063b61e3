// tessera on a machine whose units multiply codes, in software. UNITS_MISTAKE in the environment: the number of a
// test::Mistake (0: none).
#include <cstdlib>

#include "app/cli/command_line.hpp"
#include "tests/support/software_units.hpp"

int main(int argc, char** argv) {
  const char* mistake = std::getenv("UNITS_MISTAKE");
  const tessera::test::SoftwareUnits units(static_cast<tessera::test::Mistake>(mistake ? std::atoi(mistake) : 0));
  return tessera::run_command_line(argc, argv);
}
