// The command: reads the verb and runs it. Exit codes: failure.h.
#include "run_command.h"

int main(int argc, char** argv) {
  longspan::leave(longspan::run_command(argc, argv));
}
