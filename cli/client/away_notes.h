// SPDX-License-Identifier: Apache-2.0
// Notes on stderr about leaves that a root could not reach and runs of a store
// that could not be read, one for each: the answer lacks their part. Called on
// gRPC's threads; thread-safe.
#ifndef RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
#define RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_

#include "common/rpc/grpc_channel.h"

namespace rankprobe {

// Returns interceptors for the channel of a CLI call.
Interceptors AwayNotes();

// Prints the notes of a call that has ended, on any channel. Returns false if
// there were none.
bool SayAway(const grpc::ClientContext& context);

// Whether a note was printed, so that an answer is incomplete.
bool SaidAway();

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_AWAY_NOTES_H_
