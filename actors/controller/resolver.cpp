#include "actors/controller/resolver.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <array>

#include "messages/ids.hpp"

namespace pillar::controller {
namespace {

constexpr auto k_limit = std::chrono::seconds(10);

Result<std::string> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0)
    return fail(Reason::agent_unavailable,
                "host name " + host + " cannot be resolved: " + gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  std::array<char, NI_MAXHOST> text{};
  const int named =
      getnameinfo(list->ai_addr, list->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (named != 0)
    return fail(Reason::agent_unavailable,
                "host name " + host + " cannot be resolved: " + gai_strerror(named));
  const auto address = IpAddress::parse(text.data());
  if (!address) return tl::unexpected(address.error());
  return address->text;
}

}  // namespace

HostResolver system_resolver(std::shared_ptr<runtime::BlockingPool> pool) {
  return [pool = std::move(pool)](std::string host, std::function<void(Result<std::string>)> done) {
    runtime::JobOptions options;
    options.what = "resolving " + host;
    options.key = host;
    pool->submit<std::string>(
        Deadline::after(k_limit), [host] { return resolve(host); }, options, std::move(done));
  };
}

}  // namespace pillar::controller
