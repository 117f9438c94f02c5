// SPDX-License-Identifier: Apache-2.0
#include "web/tensor/tensor_api.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "web/gateway/json_reply.h"
#include "web/tensor/tensor_look.h"

namespace rankprobe {

bool TensorApi::Answer(absl::string_view method, const HttpRequest& request,
                       HttpReply* reply) {
  if (method != "TensorLook") return false;
  const absl::StatusOr<v1::TensorLook> look = [&] {
    if (!options_.one_at_a_time) return Look(request, reply);
    const absl::MutexLock lock(&looking_);
    return Look(request, reply);
  }();
  if (look.ok()) {
    SendMessage(*look, reply);
  } else {
    SendError(look.status(), reply);
  }
  return true;
}

absl::StatusOr<v1::TensorLook> TensorApi::Look(const HttpRequest& asked,
                                               HttpReply* reply) {
  // Cached tensors require the right, too.
  RP_RETURN_IF_ERROR(gateway_->MayReadTensors(asked.token));
  v1::TensorLookRequest request;
  RP_RETURN_IF_ERROR(FromJson(asked.body, &request));
  RP_ASSIGN_OR_RETURN(const Bytes tensor,
                      Fetch(request.tensor(), asked, reply));
  Bytes minus = std::make_shared<const std::string>();
  if (request.has_minus()) {
    RP_ASSIGN_OR_RETURN(minus, Fetch(request.minus(), asked, reply));
  }
  return LookAtTensor(request, *tensor, *minus);
}

absl::StatusOr<TensorApi::Bytes> TensorApi::Fetch(const v1::TensorPlace& place,
                                                  const HttpRequest& asked,
                                                  HttpReply* reply) {
  if (place.length_bytes() > options_.max_tensor_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the tensor is larger than the ", options_.max_tensor_bytes >> 20,
        " MiB that the page can show: rankprobe export writes it as a file"));
  }
  const std::string key =
      absl::StrCat(place.run(), std::string(1, '\0'), place.digest(),
                   std::string(1, '\0'), place.length_bytes());
  {
    const absl::MutexLock lock(&mutex_);
    const auto at =
        std::find_if(kept_.begin(), kept_.end(),
                     [&key](const auto& one) { return one.first == key; });
    if (at != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, at);
      return kept_.front().second;
    }
  }
  v1::GetTensorRequest request;
  request.set_run(place.run());
  request.set_digest(place.digest());
  request.set_length_bytes(place.length_bytes());
  std::string bytes;
  RP_RETURN_IF_ERROR(gateway_->ReadTensor(request, asked, reply, &bytes));
  auto fetched = std::make_shared<const std::string>(std::move(bytes));
  const absl::MutexLock lock(&mutex_);
  kept_.emplace_front(key, fetched);
  uint64_t all = 0;
  for (auto it = kept_.begin(); it != kept_.end();) {
    all += it->second->size();
    it = all > options_.max_kept_bytes ? kept_.erase(it) : std::next(it);
  }
  return fetched;
}

}  // namespace rankprobe
