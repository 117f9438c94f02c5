// SPDX-License-Identifier: Apache-2.0
// The control stream: directives are received, events are sent, and the
// contents of the flight recorder are queued.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/runtime/session/collector_link.h"

namespace rankprobe {

void CollectorLink::OnDirective(const v1::Directive& directive) {
  v1::AgentEvent event;
  switch (directive.directive_case()) {
    case v1::Directive::kPrepare:
      *event.mutable_prepared() = gate_->Prepare(directive.prepare().plan());
      break;
    case v1::Directive::kCommit:
      if (const auto late = gate_->Commit(directive.commit().epoch());
          late.has_value()) {
        *event.mutable_prepared() = *late;
      }
      break;
    case v1::Directive::kAbort:
      gate_->Abort(directive.abort().epoch());
      break;
    case v1::Directive::kAdopt:
      gate_->Adopt(directive.adopt().plan());
      break;
    case v1::Directive::kTriggers:
      watcher_->Configure(directive.triggers());
      break;
    case v1::Directive::kShipFlight:
      if (const std::string& request = directive.ship_flight().request();
          request.empty()) {
        watcher_->RequestFlight();
      } else {
        *event.mutable_flagged() = watcher_->FlagRequest(request);
      }
      break;
    case v1::Directive::kReportCalls:
      *event.mutable_calls() =
          watcher_->ReportCalls(directive.report_calls().id());
      break;
    case v1::Directive::kOther:
      status_.NoteOther(directive.other());
      break;
    case v1::Directive::kDegrade:
      watcher_->SetRunLevel(directive.degrade().level());
      break;
    default:
      break;
  }
  if (event.event_case() != v1::AgentEvent::EVENT_NOT_SET)
    outbox_->Push(std::move(event));
}

bool CollectorLink::NextEvent(v1::AgentEvent* event,
                              MonotonicTime* next_metrics) {
  if (outbox_->Pop(event)) return true;
  if (MonotonicNow() < *next_metrics) {
    if (!queue_->TakeQuestion()) return false;
    event->mutable_ping();
    return true;
  }
  *next_metrics = MonotonicAfter(kMetricsInterval);
  queue_->memory()->Trim();
  SessionStats stats;
  queue_->FillStats(&stats);
  status_.FillStats(&stats);
  v1::AgentMetrics* metrics = event->mutable_metrics();
  metrics->set_queue_bytes(stats.queue_bytes);
  metrics->set_queue_budget_bytes(options_.queue_budget_bytes);
  metrics->set_records(stats.records);
  metrics->set_payloads(stats.payloads);
  metrics->set_payload_bytes(stats.payload_bytes);
  metrics->set_lost_records(stats.lost_records);
  metrics->set_lost_payloads(stats.lost_payloads);
  metrics->set_reconnects(stats.reconnects);
  metrics->set_lane(stats.lane);
  return true;
}

// Queues the contents of the flight recorder as far as there is room. It does
// not wait for room, because this thread is the one that makes room.
void CollectorLink::ShipFlight() {
  if (!shipping_.has_value()) {
    shipping_ = watcher_->TakeRequestedFlight();
    shipped_buffers_ = 0;
  }
  if (!shipping_.has_value()) return;
  ships_ = true;
  std::vector<std::unique_ptr<RecordBuffer>>& buffers = shipping_->buffers;
  while (shipped_buffers_ < buffers.size() &&
         queue_->HasRoomFor(buffers[shipped_buffers_]->ApproxBytes())) {
    queue_->SubmitRecords(std::move(buffers[shipped_buffers_++]),
                          /*may_wait=*/false);
  }
  if (shipped_buffers_ < buffers.size()) return;
  v1::AgentEvent event;
  event.mutable_flight()->set_steps(shipping_->steps);
  event.mutable_flight()->set_first_step(shipping_->first_step);
  event.mutable_flight()->set_last_step(shipping_->last_step);
  shipping_.reset();
  ships_ = false;
  outbox_->Emit(std::move(event));
}

}  // namespace rankprobe
