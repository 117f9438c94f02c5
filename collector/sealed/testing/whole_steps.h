// SPDX-License-Identifier: Apache-2.0
// Steps with payloads, complete or in parts, for tests of sealed archives.
#ifndef RANKPROBE_COLLECTOR_SEALED_TESTING_WHOLE_STEPS_H_
#define RANKPROBE_COLLECTOR_SEALED_TESTING_WHOLE_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "collector/sealed/testing/sealer_fixture.h"

namespace rankprobe::testing {

// Adds records of these orders: 0 begins the step, `end` (0: none) ends it,
// others are calls.
inline void AddStep(Frames* frames, int64_t step,
                    const std::vector<uint64_t>& orders, uint64_t end) {
  v1::RecordBatch* const batch = frames->AddBatch(step);
  for (const uint64_t order : orders) {
    v1::Record* const record = batch->add_records();
    record->set_order(order);
    if (order == 0) {
      record->mutable_step_begin()->set_task("statistics");
    } else {
      record->mutable_call()->set_entry(absl::StrCat("call", order));
    }
  }
  if (end == 0) return;
  v1::Record* const last = batch->add_records();
  last->set_order(end);
  last->mutable_step_end()->set_call_phases(end - 1);
}

// Returns a call whose output is the payload.
inline void AddCall(uint64_t order, const std::string& entry,
                    const std::string& data, v1::RecordBatch* batch) {
  v1::Record* const call = batch->add_records();
  call->set_order(order);
  call->mutable_call()->set_entry(entry);
  AddOutput(data, call);
}

// Adds a finished step of four frames: a payload in two pieces, half of the
// records, the rest.
inline void AddStepInFrames(int64_t step, Frames* frames) {
  const std::string data = RandomBytes(static_cast<uint64_t>(step), 2000);
  frames->AddPayload(data, 1000);
  v1::RecordBatch* batch = frames->AddBatch(step);
  batch->add_records()->mutable_step_begin()->set_task("tensor");
  AddCall(1, "call1", data, batch);
  batch = frames->AddBatch(step);
  AddCall(2, "call2", data, batch);
  v1::Record* const end = batch->add_records();
  end->set_order(3);
  end->mutable_step_end()->set_call_phases(2);
  end->mutable_step_end()->set_payloads(2);
}

// Adds a finished step of three records whose call refers to the payload.
inline void AddWholeStep(Frames* frames, int64_t step, const std::string& data,
                         bool with_payload = true) {
  if (with_payload) frames->AddPayload(data);
  v1::RecordBatch* const batch = frames->AddBatch(step);
  batch->add_records()->mutable_step_begin()->set_task("tensor");
  AddCall(1, "call", data, batch);
  v1::Record* const end = batch->add_records();
  end->set_order(2);
  end->mutable_step_end()->set_call_phases(1);
  end->mutable_step_end()->set_payloads(1);
}

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_SEALED_TESTING_WHOLE_STEPS_H_
