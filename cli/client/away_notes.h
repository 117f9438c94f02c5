// SPDX-License-Identifier: Apache-2.0
// Says on stderr which leaves a root could not ask, once each: their archive is a
// part of what was answered, and the answer does not have it.
// Threads: those of gRPC calls; thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
#define RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_

#include "common/rpc/grpc_channel.h"

namespace rankprobe {

// For the channel of a CLI call.
Interceptors AwayNotes();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
