// SPDX-License-Identifier: Apache-2.0
// The events of a run, as the collector lists them. Safe to call from any
// thread. Fails as Client::Ask does.
#ifndef RANKPROBE_CLI_CLIENT_FETCH_EVENTS_H_
#define RANKPROBE_CLI_CLIENT_FETCH_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace rankprobe {

// Returns up to `limit` events with an id above `after`; 0 is the collector's
// default for each.
absl::StatusOr<v1::ListEventsResponse> FetchEvents(const Client& client,
                                                   const std::string& run,
                                                   uint64_t after,
                                                   uint32_t limit);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_FETCH_EVENTS_H_
