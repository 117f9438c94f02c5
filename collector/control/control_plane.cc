// SPDX-License-Identifier: Apache-2.0
#include "collector/control/control_plane.h"

#include <algorithm>
#include <utility>

namespace rankprobe {
namespace {

constexpr absl::Duration kForgetGoneInterval = absl::Seconds(1);
constexpr size_t kEventsListed = 1000;
constexpr size_t kMaxEventsListed = 10000;

}  // namespace

v1::ListEventsResponse ControlPlane::ListEvents(
    const v1::ListEventsRequest& request) const {
  v1::ListEventsResponse response;
  if (core_.options.events == nullptr) return response;
  const size_t limit = request.limit() == 0 ? kEventsListed : request.limit();
  for (v1::Event& event :
       core_.options.events->List(request.run(), request.after_id(),
                                  std::min(limit, kMaxEventsListed)))
    *response.add_events() = std::move(event);
  return response;
}

void ControlPlane::Tick() {
  const ControlLock lock(&core_);
  const absl::Time now = core_.Now();
  triggers_.CheckSilence(now);
  explanations_.Finish();
  for (auto& [name, run] : core_.runs) {
    // Most runs are idle, so expensive checks are skipped for them.
    const bool is_busy = !run.switches.empty() || !run.reference.empty();
    if (is_busy) switches_.Tick(&run, now);
    edits_.TryEdit(&run);
    if (is_busy) triggers_.EndSpentPlans(&run);
  }
  // Scans all sessions, so it does not run in each tick.
  if (now >= next_forgetting_) {
    next_forgetting_ = now + kForgetGoneInterval;
    core_.sessions.ForgetGone(now);
  }
  saved_.ForgetIdle(now);
}

size_t ControlPlane::CountRuns() {
  const ControlLock lock(&core_);
  return core_.runs.size();
}

}  // namespace rankprobe
