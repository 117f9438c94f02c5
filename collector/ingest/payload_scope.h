// SPDX-License-Identifier: Apache-2.0
// Scope in which payloads are shared: if tokens distinguish principals, a
// payload is stored under SHA-256 of the principal and its digest, cut to 16
// bytes. XXH3 does not resist a deliberate search for collisions; this way a
// client finds one only among its own payloads. Without a principal the digest
// is used unchanged. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_
#define RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Returns the digest in the store for what `principal` sends under `digest`.
std::string StoredDigest(absl::string_view principal, absl::string_view digest);

// Replaces the digests of a chunk or of records by those in the store. Returns
// the chunk's own digest if it was replaced.
std::string RenamePayloads(absl::string_view principal, v1::UploadFrame* frame);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_
