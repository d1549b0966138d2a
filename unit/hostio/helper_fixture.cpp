// A program with helper verbs, started by helper_process_test.cpp in the place of one of our own.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "hostio/helper_process.hpp"

using pillar::Reason;
using pillar::Result;
using pillar::hostio::register_helper;

int main(int argc, char** argv) {
  using Args = std::vector<std::string>;
  register_helper("echo", [](const Args& args) -> Result<nlohmann::json> { return nlohmann::json(args); });
  register_helper("refuse", [](const Args&) -> Result<nlohmann::json> {
    return pillar::fail(Reason::device_busy, pillar::Code::aborted, "held by dm-7", {{"holder", "dm-7"}});
  });
  register_helper("throw", [](const Args&) -> Result<nlohmann::json> { throw std::runtime_error("boom"); });
  register_helper("bytes", [](const Args&) -> Result<nlohmann::json> { return nlohmann::json("\xff\xfe"); });
  register_helper("hang", [](const Args&) -> Result<nlohmann::json> {
    std::this_thread::sleep_for(std::chrono::minutes(1));
    return nlohmann::json();
  });
  register_helper("announce", [](const Args& args) -> Result<nlohmann::json> {
    std::ofstream(args.at(0)) << ::getpid() << std::endl;
    std::this_thread::sleep_for(std::chrono::minutes(1));
    return nlohmann::json();
  });
  return pillar::hostio::run_helper_main(argc, argv).value_or(99);
}
