// SPDX-License-Identifier: Apache-2.0
#include "cli/client/fetch_events.h"

namespace rankprobe {

absl::StatusOr<v1::ListEventsResponse> FetchEvents(const Client& client,
                                                   const std::string& run,
                                                   uint64_t after,
                                                   uint32_t limit) {
  v1::ListEventsRequest request;
  request.set_run(run);
  request.set_after_id(after);
  request.set_limit(limit);
  return client.Ask(&ControlStub::ListEvents, request);
}

}  // namespace rankprobe
