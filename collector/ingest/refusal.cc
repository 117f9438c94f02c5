// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/refusal.h"

#include "common/base/limits.h"
#include "common/text/visible_text.h"

namespace rankprobe {
v1::RefusalRow RefusalOf(const v1::UploadFrame& untrusted,
                         absl::string_view reason) {
  v1::RefusalRow row;
  row.set_sequence(untrusted.sequence());
  row.set_reason(VisibleText(reason.substr(0, kMaxRefusalReasonBytes)));
  if (untrusted.has_undeliverable()) {
    const v1::UndeliverableFrame& frame = untrusted.undeliverable();
    if (frame.payload_digest().size() == kPayloadDigestBytes) {
      row.set_payload_digest(frame.payload_digest());
      row.set_payload_bytes(frame.payload_bytes());
    } else if (frame.has_step()) {
      row.set_step(frame.step());
      row.set_records(frame.records());
    }
  } else if (untrusted.has_batch()) {
    row.set_step(untrusted.batch().step());
    row.set_records(static_cast<uint64_t>(untrusted.batch().records_size()));
  } else if (untrusted.has_chunk() &&
             untrusted.chunk().digest().size() == kPayloadDigestBytes) {
    row.set_payload_digest(untrusted.chunk().digest());
    row.set_payload_bytes(untrusted.chunk().length_bytes());
  }
  return row;
}

}  // namespace rankprobe
