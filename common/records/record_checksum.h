// SPDX-License-Identifier: Apache-2.0
// Record.crc32c: made when a record is encoded, checked when it is read.
// Thread-safe: pure functions.
#ifndef RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_
#define RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Sets the checksum of the record's current contents.
void SealRecord(v1::Record* record);

// Encodes the record, ending with its checksum: the existing one, or a new one
// if there is none. DATA_LOSS if the existing one does not match the contents.
absl::Status EncodeRecord(const v1::Record& record, std::string* encoded);

// DATA_LOSS if the bytes do not match their checksum, or are not a record.
absl::Status DecodeRecord(absl::string_view encoded, v1::Record* record);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_RECORD_CHECKSUM_H_
