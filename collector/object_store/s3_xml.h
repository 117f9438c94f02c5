// SPDX-License-Identifier: Apache-2.0
// The XML of S3's answers: errors, lists, multipart uploads. Bounded: 4 MiB, 16
// levels, no document type, so only the five predefined entities. Pure
// functions.
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

// Content of an <Error>; empty if there is none.
struct S3Error {
  std::string code;
  std::string message;
};
S3Error ParseS3Error(absl::string_view untrusted);

// Parses a ListBucketResult; keys are as they are in the bucket.
absl::StatusOr<ObjectList> ParseS3List(absl::string_view untrusted);

// Returns the UploadId of an InitiateMultipartUploadResult.
absl::StatusOr<std::string> ParseS3UploadId(absl::string_view untrusted);

// Returns the body of CompleteMultipartUpload; `etags` of the parts from the
// first on.
std::string S3CompleteUpload(const std::vector<std::string>& etags);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_S3_XML_H_
