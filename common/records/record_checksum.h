// SPDX-License-Identifier: Apache-2.0
// Record.crc32c: made when a record is encoded, checked when it is read. Thread-safe:
// pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_
#define RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Gives it the checksum of what it holds now.
void SealRecord(v1::Record* record);

// Its bytes, which end with its checksum: the one that it has, or a new one where
// it has none. DATA_LOSS: it has one that does not match what it holds.
absl::Status EncodeRecord(const v1::Record& record, std::string* encoded);

// DATA_LOSS: the bytes do not match their checksum, or are no record.
absl::Status DecodeRecord(absl::string_view encoded, v1::Record* record);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_
