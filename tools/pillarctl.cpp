// pillarctl: the operator's shell of pillar-csi.

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tools/pillarctl/commands.hpp"

int main(int argc, char** argv) {
  const char* store = std::getenv("PILLARCTL_STORE");
  // As kubectl's plug-in ("kubectl pillar get pst") it speaks of the cluster.
  const bool plugin = argc > 0 && std::filesystem::path(argv[0]).filename().string().starts_with("kubectl");
  const char* usual = plugin ? "kubernetes" : "sqlite:///var/lib/pillar-csi/controller.db";
  return pillar::pillarctl::run({argv + 1, argv + argc}, store && *store ? store : usual, std::cin, std::cout,
                                std::cerr);
}
