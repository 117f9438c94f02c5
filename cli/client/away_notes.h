// SPDX-License-Identifier: Apache-2.0
// Notes on stderr about leaves that a root could not reach and runs of a store
// that could not be read, one for each: the answer lacks their part.
// Threads: those of gRPC calls; thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
#define RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_

#include "common/rpc/grpc_channel.h"

namespace rankprobe {

// For the channel of a CLI call.
Interceptors AwayNotes();

// The same of a call that has ended, on whatever channel. False: all answered.
bool SayAway(const grpc::ClientContext& context);

// Whether a note was printed, so that an answer is incomplete.
bool SaidAway();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
