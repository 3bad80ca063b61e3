#include "app/cli/command_line.hpp"

int main(int argc, char** argv) { return tessera::run_command_line(argc, argv); }
