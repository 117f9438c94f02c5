// SPDX-License-Identifier: Apache-2.0
// Scope in which payloads are shared: where tokens tell principals apart, a
// payload is stored under SHA-256 of the principal and its digest, cut to 16
// bytes. XXH3 does not resist somebody who looks for a second text of one
// digest; this way he finds one among his own payloads only. Without a
// principal the digest stays as it is. Pure functions.
#ifndef RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_
#define RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// The name in the store of what `principal` sends under `digest`.
std::string StoredDigest(absl::string_view principal, absl::string_view digest);

// Puts names in the store in place of the digests of a chunk or of records.
// Returns the chunk's own digest when it has another name now.
std::string RenamePayloads(absl::string_view principal, v1::UploadFrame* frame);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_INGEST_PAYLOAD_SCOPE_H_
