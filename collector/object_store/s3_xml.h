// SPDX-License-Identifier: Apache-2.0
// The XML that S3 answers with: errors, lists, uploads in parts. Bounded: 4 MiB,
// 16 levels, no document type, so no entities but the five. Pure functions.
// Failure: INTERNAL, in one line.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_S3_XML_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_S3_XML_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collector/object_store/object_store.h"

namespace rankprobe {

inline constexpr size_t kMaxS3XmlBytes = 4 << 20;

// Of an <Error>; empty where there is none.
struct S3Error {
  std::string code;
  std::string message;
};
S3Error ParseS3Error(absl::string_view untrusted);

// A ListBucketResult; keys as they are in the bucket.
absl::StatusOr<ObjectList> ParseS3List(absl::string_view untrusted);

// UploadId of an InitiateMultipartUploadResult.
absl::StatusOr<std::string> ParseS3UploadId(absl::string_view untrusted);

// The body of CompleteMultipartUpload; etags of the parts from the first on.
std::string S3CompleteUpload(const std::vector<std::string>& etags);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_S3_XML_H_
