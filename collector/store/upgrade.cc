// SPDX-License-Identifier: Apache-2.0
#include "collector/store/upgrade.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/row_writer.h"
#include "collector/store/rows.h"
#include "collector/store/step_counts.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/io/checksum_field.h"

namespace rankprobe {
namespace {

// Counts every step again and writes its references to payloads.
class ReferenceBuilder {
 public:
  explicit ReferenceBuilder(Index* index) : index_(index), rows_(index) {}

  absl::Status Run() {
    RP_RETURN_IF_ERROR(index_->Scan(
        "c",
        [this](absl::string_view key, absl::string_view value) -> absl::Status {
          const std::optional<uint32_t> run = keys::ParseRun(key);
          const std::optional<keys::StepParts> place = keys::ParseStep(key);
          v1::Record record;
          if (!run.has_value() || !place.has_value() ||
              !ParseRow(value, &record)) {
            return absl::DataLossError("a record cannot be read");
          }
          return Add(*run, *place, record);
        }));
    RP_RETURN_IF_ERROR(FinishStep());
    return rows_.Finish(/*sync=*/true);
  }

 private:
  absl::Status Add(uint32_t run, const keys::StepParts& place,
                   const v1::Record& record) {
    const std::string key = keys::Step(run, place.step, place.incarnation);
    if (key != step_key_) {
      RP_RETURN_IF_ERROR(FinishStep());
      step_key_ = key;
      RP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes,
                          index_->Get(key));
      v1::StepRow old;
      if (bytes.has_value() && !ParseRow(*bytes, &old))
        return absl::DataLossError("the row of a step cannot be read");
      row_.Clear();
      row_.set_updated_unix_ns(old.updated_unix_ns());
    }
    absl::Status status;
    CountRecord(
        record,
        [&](const v1::PayloadRef& payload) {
          if (!status.ok() || payload.digest().size() != kPayloadDigestBytes)
            return;
          status = rows_.Put(
              keys::Reference(run, payload.digest(), payload.length_bytes(),
                              place.step, place.incarnation),
              "");
        },
        &row_);
    return status;
  }

  absl::Status FinishStep() {
    if (step_key_.empty()) return absl::OkStatus();
    return rows_.Put(step_key_, row_.SerializeAsString());
  }

  Index* const index_;
  RowWriter rows_;
  std::string step_key_;
  v1::StepRow row_;
};

absl::Status AddChecksums(Index* index) {
  RowWriter rows(index);
  RP_RETURN_IF_ERROR(index->Scan(
      "c", [&](absl::string_view key, absl::string_view value) -> absl::Status {
        if (MatchesChecksum(value)) return absl::OkStatus();
        std::string encoded(value);
        AppendChecksum(&encoded);
        return rows.Put(key, encoded);
      }));
  return rows.Finish(/*sync=*/true);
}

}  // namespace

absl::Status BringUpToDate(Index* index, absl::string_view version) {
  if (version == kSchemaVersion) return absl::OkStatus();
  if (version == "1") {
    RP_RETURN_IF_ERROR(ReferenceBuilder(index).Run());
  } else if (!version.empty() && version != "2" && version != "3" &&
             version != "4" && version != "5" && version != "6" &&
             version != "7" && version != "8") {
    return absl::FailedPreconditionError(absl::StrCat(
        "format version ", version,
        " is not known; this rankprobed reads versions 1 to ", kSchemaVersion));
  }
  if (!version.empty()) RP_RETURN_IF_ERROR(AddChecksums(index));
  return PutRow(index, keys::kSchema, kSchemaVersion, /*sync=*/true);
}

}  // namespace rankprobe
