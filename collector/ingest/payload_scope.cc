// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/payload_scope.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/auth/secret.h"
#include "common/base/limits.h"
#include "common/records/call_values.h"

namespace rankprobe {

std::string StoredDigest(absl::string_view principal,
                         absl::string_view digest) {
  if (principal.empty() || digest.size() != kPayloadDigestBytes)
    return std::string(digest);
  // The digest's length is fixed, so two different pairs never give one text.
  return Sha256(absl::StrCat("rankprobe payload ", digest, principal))
      .substr(0, kPayloadDigestBytes);
}

std::string RenamePayloads(absl::string_view principal,
                           v1::UploadFrame* frame) {
  if (principal.empty()) return "";
  if (frame->has_chunk()) {
    std::string* const digest = frame->mutable_chunk()->mutable_digest();
    return std::exchange(*digest, StoredDigest(principal, *digest));
  }
  if (!frame->has_batch()) return "";
  for (v1::Record& record : *frame->mutable_batch()->mutable_records()) {
    if (!record.has_call()) continue;
    ForEachTensor(record.mutable_call(), [&](v1::TensorSummary* tensor) {
      if (!tensor->has_payload()) return;
      std::string* const digest = tensor->mutable_payload()->mutable_digest();
      *digest = StoredDigest(principal, *digest);
      // The store computes a new checksum.
      record.clear_crc32c();
    });
  }
  return "";
}

}  // namespace rankprobe
