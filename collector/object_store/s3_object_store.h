// SPDX-License-Identifier: Apache-2.0
// A bucket of an S3-compatible store.
//
// Every request is signed with the SHA-256 of its body, so a body that changed
// in transit is refused by the store. Requests that failed for a transient
// reason (no connection, 5xx, 429, a truncated answer) are retried until
// call_timeout. A request that succeeded although its answer was lost is
// repeated: putting the same object twice does no harm, and for kIfAbsent the
// second one gets ALREADY_EXISTS.
// Required of the store: If-None-Match: * on a PUT of one piece. Not required:
// a condition on a multipart upload, or one by ETag.
// Ownership: transport, clock and files outlive it. Thread-safe.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_S3_OBJECT_STORE_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_S3_OBJECT_STORE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/object_store/http_transport.h"
#include "collector/object_store/object_store.h"
#include "collector/object_store/request_pacer.h"
#include "collector/object_store/s3_location.h"
#include "collector/object_store/sigv4.h"
#include "common/base/clock.h"

namespace rankprobe {

struct S3Options {
  S3Location location;
  // Limits for one attempt, and for a call with all of its attempts. A call
  // that transfers much data gets a second more for each MiB.
  absl::Duration request_timeout = absl::Seconds(20);
  absl::Duration call_timeout = absl::Seconds(60);
  // A larger file is sent in parts of this size; S3 accepts no smaller parts
  // than 5 MiB, and 10,000 parts: those of a larger file are larger.
  uint64_t part_bytes = 8 << 20;
  RequestPacer::Options pacing;
  // Called at the start, and when the store says that the credentials have
  // expired.
  std::function<absl::StatusOr<SigV4Credentials>()> credentials;
  // Waits before another attempt; returns false to stop.
  std::function<bool(absl::Duration)> sleep;
};

class S3ObjectStore : public ObjectStore {
 public:
  S3ObjectStore(S3Options options, HttpTransport* transport,
                const Clock* clock);

  std::string name() const override { return options_.location.Name(); }
  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override;
  absl::Status PutFile(const std::string& key, FileSystem* file_system,
                       const std::string& path) override;
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t offset,
                                  uint64_t bytes) override;
  absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                     uint64_t bytes) override;
  absl::StatusOr<ObjectList> List(const std::string& prefix,
                                  const std::string& start_after,
                                  size_t most) override;
  absl::Status Delete(const std::string& key) override;

  // Returns how many requests may be in flight.
  int at_once() const { return pacer_.at_once(); }

 private:
  struct Call {
    std::string method;
    // Empty: the bucket.
    std::string key;
    std::vector<std::pair<std::string, std::string>> query;
    std::vector<std::pair<std::string, std::string>> headers;
    absl::string_view body;
    uint64_t max_body_bytes = 0;
    // A status besides 2xx that is not a failure.
    int also_fine = 0;
  };
  struct Verdict {
    absl::Status status;
    bool again = false;
    bool overload = false;
    bool expired = false;
  };

  absl::StatusOr<HttpResponse> Do(const Call& call);
  absl::StatusOr<HttpResponse> Attempt(const Call& call,
                                       const SigV4Credentials& credentials,
                                       absl::Duration timeout);
  Verdict Judge(const Call& call,
                const absl::StatusOr<HttpResponse>& response) const;
  absl::StatusOr<SigV4Credentials> Credentials(bool anew);
  absl::StatusOr<HttpResponse> GetRange(const std::string& key,
                                        const std::string& range,
                                        uint64_t most_bytes);
  absl::Status PutParts(const std::string& key, const RandomAccessFile& file,
                        uint64_t size, const std::string& upload_id);
  std::string Describe(const Call& call) const;

  const S3Options options_;
  HttpTransport* const transport_;
  const Clock* const clock_;
  RequestPacer pacer_;
  absl::Mutex mutex_;
  bool has_credentials_ ABSL_GUARDED_BY(mutex_) = false;
  SigV4Credentials credentials_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_S3_OBJECT_STORE_H_
