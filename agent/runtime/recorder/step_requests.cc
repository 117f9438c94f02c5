// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/step_requests.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"
#include "common/records/cut_value.h"
#include "common/records/request_names.h"

namespace rankprobe {
namespace {

v1::RequestRows CutId(v1::RequestRows request) {
  if (request.id().size() > kMaxRequestIdBytes)
    request.set_id(std::string(Utf8Prefix(request.id(), kMaxRequestIdBytes)));
  return request;
}

}  // namespace

void AddRequest(std::string id, int64_t tokens, std::optional<int64_t> position,
                v1::StepRequests* step) {
  v1::RequestRows* const request = step->add_requests();
  request->set_id(std::move(id));
  request->set_begin(step->rows());
  request->set_end(step->rows() + tokens);
  if (position.has_value()) request->set_position(*position);
  step->set_rows(request->end());
}

const v1::RequestRows* FindRequest(const v1::StepRequests& step,
                                   absl::string_view id) {
  const auto& all = step.requests();
  auto it = std::find_if(all.begin(), all.end(),
                         [&](const auto& r) { return r.id() == id; });
  if (it == all.end()) {
    it = std::find_if(all.begin(), all.end(), [&](const auto& r) {
      return IsRequestMadeOf(r.id(), id);
    });
  }
  return it == all.end() ? nullptr : &*it;
}

v1::StepRequests RequestsOfRecord(const v1::StepRequests& step,
                                  const v1::RequestRows* recorded) {
  v1::StepRequests out;
  out.set_rows(step.rows());
  if (recorded != nullptr) {
    // Also if there are more requests than are named.
    const v1::RequestRows named = CutId(*recorded);
    out.set_recorded(named.id());
    *out.add_requests() = named;
  }
  for (const v1::RequestRows& request : step.requests()) {
    if (out.requests_size() >= kMaxStepRequests) break;
    if (&request != recorded) *out.add_requests() = CutId(request);
  }
  std::sort(out.mutable_requests()->begin(), out.mutable_requests()->end(),
            [](const auto& a, const auto& b) { return a.begin() < b.begin(); });
  return out;
}

}  // namespace rankprobe
