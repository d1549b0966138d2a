// pillarctl: the operator's shell of pillar-csi.

#include <cstdlib>
#include <iostream>

#include "tools/pillarctl/commands.hpp"

int main(int argc, char** argv) {
  const char* store = std::getenv("PILLARCTL_STORE");
  return pillar::pillarctl::run({argv + 1, argv + argc},
                                store && *store ? store : "sqlite:///var/lib/pillar-csi/controller.db",
                                std::cin, std::cout, std::cerr);
}
