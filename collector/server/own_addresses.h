// SPDX-License-Identifier: Apache-2.0
// The addresses of this process, as far as they are known without a name
// server: those of its interfaces, its name, loopback. Reads the system's
// tables; thread-safe.
#ifndef RANKPROBE_COLLECTOR_SERVER_OWN_ADDRESSES_H_
#define RANKPROBE_COLLECTOR_SERVER_OWN_ADDRESSES_H_

#include <set>
#include <string>

namespace rankprobe {

// `listen` is HOST:PORT, whose port may be 0. Returns HOST:PORT for each
// address, with `port`.
std::set<std::string> OwnAddresses(const std::string& listen, int port);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_OWN_ADDRESSES_H_
