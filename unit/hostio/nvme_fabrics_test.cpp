#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "fake_nvme.hpp"
#include "hostio/nvme/fabrics.hpp"

using namespace pillar;
using namespace pillar::hostio;
using namespace std::chrono_literals;
using nlohmann::json;
using pillar::hostio::testing::FakeNvme;
using pillar::hostio::testing::k_fake_host;

namespace {

const std::string k_a = "nqn.2026-01.com.bhyoo.pillar-csi:volume-a";
const std::string k_b = "nqn.2026-01.com.bhyoo.pillar-csi:volume-b";
const std::string k_uuid = "11111111-2222-5333-8444-555555555555";

FabricsTarget target(const std::string& nqn = k_a) {
  return {nqn, IpAddress::parse("10.0.0.5").value(), 4420, k_fake_host, {}};
}

/// A kernel behind the helper verbs: answers connects with `code`, deletes controllers.
struct Kernel {
  FakeNvme fake;
  int code = 0;
  bool appears = true;  ///< a connect shows in sysfs
  bool deletes = true;  ///< a delete works
  std::vector<std::string> calls;

  Fabrics fabrics() {
    return Fabrics(fake.roots(), [this](std::string_view verb, const json& input, Deadline) -> Result<json> {
      return verb == "nvme-connect" ? connect(input) : remove(input);
    });
  }
  Result<json> connect(const json& input) {
    calls.push_back(input.at("options").get<std::string>());
    if (code == 0 && appears) fake.controller("nvme-subsys0", "nvme0", k_a);
    return json{{"errno", code}};
  }
  Result<json> remove(const json& input) {
    const auto dir = input.at("dir").get<std::string>();
    calls.push_back("delete " + dir.substr(dir.rfind('/') + 1));
    const auto subsystem = dir.rfind("nvme-subsys");
    const auto slash = dir.find('/', subsystem);
    if (!deletes) return fail(Reason::command_timeout, "stuck");
    fake.remove_controller(dir.substr(subsystem, slash - subsystem), dir.substr(slash + 1));
    return json::object();
  }
};

}  // namespace

TEST_CASE("R05: the option line carries identity and tunables explicitly") {
  auto wanted = target();
  CHECK(fabrics_option_string(wanted).value() == "transport=tcp,traddr=10.0.0.5,trsvcid=4420,nqn=" + k_a +
                                                     ",hostnqn=" + k_fake_host.nqn +
                                                     ",hostid=" + k_fake_host.id);
  wanted.address = IpAddress::parse("[FD00:0:0::1]").value();
  wanted.tunables = {-1, 2, 15, -1, 4, 64};
  CHECK(fabrics_option_string(wanted).value() == "transport=tcp,traddr=fd00::1,trsvcid=4420,nqn=" + k_a +
                                                     ",hostnqn=" + k_fake_host.nqn +
                                                     ",hostid=" + k_fake_host.id +
                                                     ",ctrl_loss_tmo=-1,reconnect_delay=2,keep_alive_tmo=15,"
                                                     "fast_io_fail_tmo=-1,nr_io_queues=4,queue_size=64");
}

TEST_CASE("nothing can smuggle an option into the line") {
  auto bad = target("nqn.2026-01.com.bhyoo.pillar-csi:x,duplicate_connect");
  CHECK(fabrics_option_string(bad).error().reason == Reason::invalid_argument);
  bad = target();
  bad.host.nqn = "nqn.2014-08.org.x:y,hostid=z";
  CHECK(!fabrics_option_string(bad));
  bad = target();
  bad.host.id = "3f2c8f0e";
  CHECK(!fabrics_option_string(bad));
  bad = target();
  bad.address.text = "10.0.0.5,queue_size=1";
  CHECK(!fabrics_option_string(bad));
  bad.address.text = "storage.example";
  CHECK(!fabrics_option_string(bad));
  bad = target();
  bad.port = 0;
  CHECK(!fabrics_option_string(bad));
}

TEST_CASE("E01: tunables outside their range are refused by name") {
  struct Row {
    FabricsTunables tunables;
    const char* names;
  };
  const Row rows[] = {
      {{-2, {}, {}, {}, {}, {}}, "ctrl_loss_tmo"},    {{{}, 0, {}, {}, {}, {}}, "reconnect_delay"},
      {{{}, {}, 0, {}, {}, {}}, "keep_alive_tmo"},    {{{}, {}, {}, -2, {}, {}}, "fast_io_fail_tmo"},
      {{{}, {}, {}, {}, 0, {}}, "nr_io_queues"},      {{{}, {}, {}, {}, 129, {}}, "nr_io_queues"},
      {{{}, {}, {}, {}, {}, 15}, "queue_size"},       {{{}, {}, {}, {}, {}, 1025}, "queue_size"},
      {{60, {}, {}, 61, {}, {}}, "fast_io_fail_tmo"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.names);
    const auto checked = validate(row.tunables);
    REQUIRE(!checked);
    CHECK(checked.error().code == Code::invalid_argument);
    CHECK(checked.error().message.find(row.names) != std::string::npos);
  }
  CHECK(validate({60, 1, 5, 60, 128, 1024}));
  CHECK(validate({-1, {}, {}, 600, {}, {}}));
  CHECK(validate({}));
}

TEST_CASE("the reply of the fabrics device") {
  CHECK(parse_fabrics_reply("instance=3,cntlid=1\n")->instance == 3);
  CHECK(parse_fabrics_reply("instance=3,cntlid=17")->cntlid == 17);
  CHECK(!parse_fabrics_reply("transport=%s,traddr=%s"));
  CHECK(!parse_fabrics_reply(""));
}

TEST_CASE("a refused connect says why and what to do") {
  struct Row {
    int code;
    Reason reason;
    const char* says;
  };
  const Row rows[] = {
      {EIO, Reason::connect_failed, "published to this node"},
      {ECONNREFUSED, Reason::connect_failed, "nothing listens"},
      {ETIMEDOUT, Reason::connect_failed, "does not answer"},
      {EINVAL, Reason::connect_failed, "kernel log"},
      {ENOENT, Reason::module_missing, "nvme_fabrics"},
      {EPROTONOSUPPORT, Reason::module_missing, "nvme_tcp"},
      {EACCES, Reason::permission_denied, "privileged"},
      {ENOMEM, Reason::connect_failed, "kernel log"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.code);
    const auto error = fabrics_connect_error(row.code, target(), {});
    CHECK(error.reason == row.reason);
    CHECK(error.code == info(row.reason).code);
    CHECK(error.message.find(row.says) != std::string::npos);
    CHECK(error.message.find(k_a) != std::string::npos);
    CHECK(error.message.find("10.0.0.5:4420") != std::string::npos);
  }
}

TEST_CASE("C09: EINVAL without the transport's module names the module to load") {
  Kernel kernel;
  kernel.code = EINVAL;
  const auto missing = kernel.fabrics().connect(target(), Deadline::after(5s));
  REQUIRE_FALSE(missing);
  CHECK(missing.error().reason == Reason::module_missing);
  CHECK(missing.error().message.find("nvme_tcp") != std::string::npos);
  std::filesystem::create_directories(kernel.fake.roots().sys + "/module/nvme_tcp");
  const auto rejected = kernel.fabrics().connect(target(), Deadline::after(5s));
  REQUIRE_FALSE(rejected);
  CHECK(rejected.error().reason == Reason::connect_failed);
}

TEST_CASE("connect makes a session once and finds it afterwards") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  const auto first = kernel.fabrics().connect(target(), Deadline::after(5s));
  REQUIRE(first);
  CHECK(!first->already);
  CHECK(first->controller.name == "nvme0");
  const auto again = kernel.fabrics().connect(target(), Deadline::after(5s));
  REQUIRE(again);
  CHECK(again->already);
  CHECK(kernel.calls.size() == 1);
}

TEST_CASE("E01: an existing session gets the wanted timeouts") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme0", k_a, "connecting");
  auto wanted = target();
  wanted.tunables.ctrl_loss_tmo = 30;
  wanted.tunables.reconnect_delay = 10;
  wanted.tunables.fast_io_fail_tmo = -1;
  const auto session = kernel.fabrics().connect(wanted, Deadline::after(5s));
  REQUIRE(session);
  CHECK(session->already);
  CHECK(kernel.calls.empty());
  CHECK(kernel.fake.read("nvme0", "ctrl_loss_tmo").starts_with("30"));
  CHECK(kernel.fake.read("nvme0", "reconnect_delay") == "10");
  CHECK(kernel.fake.read("nvme0", "fast_io_fail_tmo") == "off");
}

TEST_CASE("EALREADY without a session of ours names the stale controller") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  const HostIdentity old{"nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-7b1d-4a52-9b7e-1c2d3e4f5a6b",
                         "aaaaaaaa-7b1d-4a52-9b7e-1c2d3e4f5a6b"};
  kernel.fake.controller("nvme-subsys0", "nvme7", k_a, "connecting", old);
  for (const int code : {EALREADY, EINVAL}) {
    kernel.code = code;
    const auto session = kernel.fabrics().connect(target(), Deadline::after(5s));
    REQUIRE(!session);
    CHECK(session.error().message.find("nvme7 (connecting, host " + old.nqn) != std::string::npos);
  }
  CHECK(kernel.fabrics().stale_controllers(k_a, k_fake_host)->size() == 1);
  CHECK(kernel.fabrics().stale_controllers(k_a, old)->empty());
  REQUIRE(kernel.fabrics().disconnect_stale(k_a, k_fake_host, Deadline::after(5s)));
  kernel.code = 0;
  CHECK(kernel.fabrics().connect(target(), Deadline::after(5s)));
}

TEST_CASE("a session that is being torn down is not taken for ours") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme3", k_a, "deleting (no IO)");
  CHECK(!kernel.fabrics().connect(target(), Deadline::after(5s))->already);
  CHECK(kernel.calls.size() == 1);
}

TEST_CASE("a connect that shows nothing in sysfs is an error") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.appears = false;
  CHECK(kernel.fabrics().connect(target(), Deadline::after(5s)).error().reason == Reason::connect_failed);
}

TEST_CASE("D16: disconnect ends every session of one NQN and no other") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme2", k_a, "connecting");
  kernel.fake.subsystem("nvme-subsys1", k_b);
  kernel.fake.controller("nvme-subsys1", "nvme1", k_b);
  REQUIRE(kernel.fabrics().disconnect(k_a, Deadline::after(5s)));
  CHECK(kernel.calls == std::vector<std::string>{"delete nvme0", "delete nvme2"});
  CHECK(kernel.fabrics().topology().controllers(k_b)->size() == 1);
  CHECK(kernel.fabrics().disconnect(k_a, Deadline::after(5s)));
  CHECK(!kernel.fabrics().disconnect("", Deadline::after(5s)));
}

TEST_CASE("D16: the delete verb looks at the NQN again right before it writes") {
  const FakeNvme fake;
  fake.subsystem("nvme-subsys0", k_b);
  fake.controller("nvme-subsys0", "nvme0", k_b);
  const auto dir = fake.roots().sys + "/class/nvme-subsystem/nvme-subsys0/nvme0";
  CHECK(run_host_verb_here("nvme-delete", {{"dir", dir}, {"nqn", k_a}}, Deadline::never()));
  CHECK(fake.read("nvme0", "delete_controller").empty());
  CHECK(run_host_verb_here("nvme-delete", {{"dir", dir}, {"nqn", k_b}}, Deadline::never()));
  CHECK(fake.read("nvme0", "delete_controller") == "1");
  CHECK(run_host_verb_here("nvme-delete", {{"dir", dir + "gone"}, {"nqn", k_b}}, Deadline::never()));
}

TEST_CASE("D01, E07: a disconnect that does not end is an error at its deadline") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme0", k_a);
  kernel.deletes = false;
  const auto done = kernel.fabrics().disconnect(k_a, Deadline::after(50ms));
  REQUIRE(!done);
  CHECK(done.error().reason == Reason::device_busy);
  CHECK(done.error().code == Code::unavailable);
  CHECK(done.error().message.find("nvme0") != std::string::npos);
}

TEST_CASE("C05: a namespace that does not come by itself is rescanned for") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme0", k_a);
  const auto missing = kernel.fabrics().wait_for_namespace(k_a, k_uuid, Deadline::after(1300ms));
  CHECK(missing.error().reason == Reason::device_missing);
  CHECK(kernel.fake.read("nvme0", "rescan_controller") == "1");
  kernel.fake.block("class/nvme-subsystem/nvme-subsys0", "nvme0n1", "259:1", "1", k_uuid);
  CHECK(kernel.fabrics().wait_for_namespace(k_a, k_uuid, Deadline::after(5s))->name == "nvme0n1");
}

TEST_CASE("L01: growing rescans and waits for the size") {
  Kernel kernel;
  kernel.fake.subsystem("nvme-subsys0", k_a);
  kernel.fake.controller("nvme-subsys0", "nvme0", k_a);
  kernel.fake.block("class/nvme-subsystem/nvme-subsys0", "nvme0n1", "259:1", "1", k_uuid, "2048");
  CHECK(kernel.fabrics().wait_for_size(k_a, k_uuid, 1 << 20, Deadline::after(5s)));
  CHECK(kernel.fake.read("nvme0", "rescan_controller").empty());
  const auto small = kernel.fabrics().wait_for_size(k_a, k_uuid, 2 << 20, Deadline::after(20ms));
  CHECK(small.error().reason == Reason::resize_pending);
  CHECK(kernel.fake.read("nvme0", "rescan_controller") == "1");
}

TEST_CASE("the connect verb reports the errno of a missing fabrics device") {
  const auto answer = run_host_verb_here(
      "nvme-connect", {{"device", "/nonexistent/nvme-fabrics"}, {"options", "x"}}, Deadline::never());
  CHECK(answer->at("errno") == ENOENT);
  CHECK(run_host_verb_here("nvme-connect", json::object(), Deadline::never()).error().reason ==
        Reason::internal);
  CHECK(run_host_verb_here("unknown", json::object(), Deadline::never()).error().reason == Reason::internal);
}
