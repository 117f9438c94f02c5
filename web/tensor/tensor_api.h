// SPDX-License-Identifier: Apache-2.0
// Recorded tensors over HTTP, for the page:
//
//   POST /api/v1/TensorLook    messages of proto/rankprobe/v1/tensor_look.proto
//
// The bytes come from the collector with the rights of the caller; the latest
// are cached, because users request slices one after another. Thread-safe.
#ifndef RANKPROBE_WEB_TENSOR_TENSOR_API_H_
#define RANKPROBE_WEB_TENSOR_TENSOR_API_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "rankprobe/v1/tensor_look.pb.h"
#include "web/gateway/gateway.h"
#include "web/http/http_message.h"

namespace rankprobe {

struct TensorOptions {
  // Limits for one tensor, and for all cached ones.
  uint64_t max_tensor_bytes = uint64_t{512} << 20;
  uint64_t max_kept_bytes = uint64_t{1} << 30;
  // Answers one request at a time, for a process with other work; further
  // requests wait.
  bool one_at_a_time = false;
};

class TensorApi {
 public:
  // `gateway` outlives this object.
  TensorApi(TensorOptions options, const Gateway* gateway)
      : options_(options), gateway_(gateway) {}

  // Returns false, without an answer, if `method` is not one of these.
  bool Answer(absl::string_view method, const HttpRequest& request,
              HttpReply* reply);

 private:
  using Bytes = std::shared_ptr<const std::string>;

  absl::StatusOr<v1::TensorLook> Look(const HttpRequest& asked,
                                      HttpReply* reply);
  absl::StatusOr<Bytes> Fetch(const v1::TensorPlace& place,
                              const HttpRequest& asked, HttpReply* reply);

  const TensorOptions options_;
  const Gateway* const gateway_;
  absl::Mutex looking_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  // By run, digest and length; the most recently used first.
  std::list<std::pair<std::string, Bytes>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_TENSOR_TENSOR_API_H_
