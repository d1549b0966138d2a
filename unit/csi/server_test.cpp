#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include "csi/server.hpp"

using namespace pillar;
using namespace pillar::csi_front;
namespace fs = std::filesystem;

namespace {

struct TempDir {
  fs::path path;
  TempDir() {
    std::string name = (fs::temp_directory_path() / "pillar-csi-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path); }
};

// A bound (and, when `listening`, answering) unix socket; closing it leaves the file behind, as a killed
// process does.
int bound_socket(const fs::path& path, bool listening) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  if (listening) REQUIRE(::listen(fd, 1) == 0);
  return fd;
}

}  // namespace

TEST_SUITE_BEGIN("csi/server");

TEST_CASE("endpoints: unix paths and IP literals only") {
  CHECK(Endpoint::parse("unix:///run/a.sock").value().target == "unix:/run/a.sock");
  CHECK(Endpoint::parse("/run/a.sock").value().is_unix);
  CHECK(Endpoint::parse("tcp://0.0.0.0:9500").value().target == "0.0.0.0:9500");
  CHECK(Endpoint::parse("tcp://[FD00::1]:9500").value().target == "[fd00::1]:9500");
  for (const char* bad : {"", "a.sock", "unix://a.sock", "tcp://host:1", "tcp://1.2.3.4",
                          "tcp://1.2.3.4:", "tcp://1.2.3.4:99999", "tcp://1.2.3.4:x"})
    CHECK_FALSE_MESSAGE(Endpoint::parse(bad), bad);
  CHECK_FALSE(Endpoint::parse("/" + std::string(200, 'a')));
}

TEST_CASE("N01: a socket left by a dead process is replaced") {
  TempDir dir;
  const auto path = dir.path / "csi.sock";
  ::close(bound_socket(path, true));
  REQUIRE(fs::exists(path));
  CHECK(prepare_unix_socket(path.string()));
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("a socket of a live process is left alone and named") {
  TempDir dir;
  const auto path = dir.path / "csi.sock";
  const int fd = bound_socket(path, true);
  const auto refused = prepare_unix_socket(path.string());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find(path.string()) != std::string::npos);
  CHECK(fs::exists(path));
  ::close(fd);
}

TEST_CASE("what is not a socket is never removed") {
  TempDir dir;
  const auto path = dir.path / "csi.sock";
  std::ofstream(path) << "data";
  CHECK_FALSE(prepare_unix_socket(path.string()));
  CHECK(fs::exists(path));
}

TEST_CASE("a missing socket directory is created") {
  TempDir dir;
  CHECK(prepare_unix_socket((dir.path / "a" / "b" / "csi.sock").string()));
  CHECK(fs::is_directory(dir.path / "a" / "b"));
}

TEST_SUITE_END();
