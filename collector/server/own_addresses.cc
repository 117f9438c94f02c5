// SPDX-License-Identifier: Apache-2.0
#include "collector/server/own_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"

namespace rankprobe {
namespace {

void AddInterfaces(std::set<std::string>* hosts) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (const ifaddrs* it = list; it != nullptr; it = it->ifa_next) {
    if (it->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (it->ifa_addr->sa_family == AF_INET) {
      const auto* const v4 = reinterpret_cast<const sockaddr_in*>(it->ifa_addr);
      if (inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text)) != nullptr)
        hosts->insert(text);
    } else if (it->ifa_addr->sa_family == AF_INET6) {
      const auto* const v6 =
          reinterpret_cast<const sockaddr_in6*>(it->ifa_addr);
      if (inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)) != nullptr)
        hosts->insert(absl::StrCat("[", text, "]"));
    }
  }
  freeifaddrs(list);
}

}  // namespace

std::set<std::string> OwnAddresses(const std::string& listen, int port) {
  std::set<std::string> hosts;
  const absl::StatusOr<HostPort> own = ParseHostPort(listen, 0);
  if (own.ok()) hosts.insert(own->host);
  const bool every =
      own.ok() && (own->host == "0.0.0.0" || own->host == "[::]");
  if (every) {
    AddInterfaces(&hosts);
    char name[256] = {};
    if (gethostname(name, sizeof(name) - 1) == 0) hosts.insert(name);
  }
  if (every || (own.ok() && IsLoopbackHost(own->host)))
    hosts.insert({"localhost", "127.0.0.1", "[::1]"});
  std::set<std::string> addresses;
  for (const std::string& host : hosts)
    addresses.insert(absl::StrCat(host, ":", port));
  return addresses;
}

}  // namespace rankprobe
