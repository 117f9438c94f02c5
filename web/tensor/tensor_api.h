// SPDX-License-Identifier: Apache-2.0
// Recorded tensors over HTTP, for the page:
//
//   POST /api/v1/TensorLook    messages of proto/rankprobe/v1/tensor_look.proto
//
// The bytes come from the collector as the user who asks; the last ones are kept,
// as whoever looks at slices asks for one after another. Thread-safe.
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

class TensorApi {
 public:
  // Of one tensor, and of all that are kept.
  static constexpr uint64_t kMaxTensorBytes = uint64_t{512} << 20;
  static constexpr uint64_t kMaxKeptBytes = uint64_t{1} << 30;

  // `gateway` outlives it.
  explicit TensorApi(const Gateway* gateway) : gateway_(gateway) {}

  // False: `method` is none of its own, and nothing is answered.
  bool Answer(absl::string_view method, const std::string& body,
              HttpReply* reply);

 private:
  using Bytes = std::shared_ptr<const std::string>;

  absl::StatusOr<v1::TensorLook> Look(const std::string& body,
                                      HttpReply* reply);
  absl::StatusOr<Bytes> Fetch(const v1::TensorPlace& place, HttpReply* reply);

  const Gateway* const gateway_;
  absl::Mutex mutex_;
  // By run, digest and length; the one that was looked at last in front.
  std::list<std::pair<std::string, Bytes>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_TENSOR_TENSOR_API_H_
