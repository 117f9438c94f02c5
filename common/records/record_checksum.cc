// SPDX-License-Identifier: Apache-2.0
#include "common/records/record_checksum.h"

#include "absl/strings/str_cat.h"
#include "common/io/checksum_field.h"
#include "common/io/crc32c.h"

namespace rankprobe {

void SealRecord(v1::Record* record) {
  record->clear_crc32c();
  record->set_crc32c(Crc32c(record->SerializeAsString()));
}

absl::Status EncodeRecord(const v1::Record& record, std::string* encoded) {
  record.SerializeToString(encoded);
  if (!record.has_crc32c()) {
    AppendChecksum(encoded);
    return absl::OkStatus();
  }
  if (MatchesChecksum(*encoded)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("record ", record.order(), " does not match its checksum"));
}

absl::Status DecodeRecord(absl::string_view encoded, v1::Record* record) {
  if (!MatchesChecksum(encoded))
    return absl::DataLossError("a record does not match its checksum");
  if (!record->ParseFromArray(encoded.data(), static_cast<int>(encoded.size())))
    return absl::DataLossError("a record cannot be read");
  return absl::OkStatus();
}

}  // namespace rankprobe
