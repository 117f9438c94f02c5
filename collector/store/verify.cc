// SPDX-License-Identifier: Apache-2.0
#include "collector/store/verify.h"

#include <map>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/store/keys.h"
#include "collector/store/rows.h"
#include "collector/store/verify_rollups.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"
#include "common/records/call_values.h"
#include "common/records/record_checksum.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {
namespace {

constexpr int kMaxFaultTexts = 100;
constexpr uint64_t kRowsPerProgress = 100000;

class Verifier {
 public:
  Verifier(StoreCore* core, const v1::VerifyRequest& request,
           const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      : core_(core),
        index_(core->index.get()),
        payloads_(core->segments.get()),
        request_(request),
        progress_(progress) {}

  absl::StatusOr<v1::VerifyReport> Run() {
    RP_RETURN_IF_ERROR(Runs());
    RP_RETURN_IF_ERROR(Rows<v1::IncarnationRow>("i", "an incarnation"));
    RP_RETURN_IF_ERROR(LostSyncs());
    RP_RETURN_IF_ERROR(Steps());
    RP_RETURN_IF_ERROR(Counters());
    RP_RETURN_IF_ERROR(Records());
    RP_RETURN_IF_ERROR(References());
    RP_RETURN_IF_ERROR(Payloads());
    RP_RETURN_IF_ERROR(Partials());
    RP_RETURN_IF_ERROR(Rollups());
    report_.set_finished(true);
    return report_;
  }

 private:
  void Fault(const std::string& text) { AddFault(text, &report_); }

  absl::Status Row() {
    report_.set_rows(report_.rows() + 1);
    if (progress_ && report_.rows() % kRowsPerProgress == 0)
      return progress_(report_);
    return absl::OkStatus();
  }

  std::string RunText(uint32_t run) const {
    const auto it = runs_.find(run);
    return it == runs_.end() ? absl::StrCat("run number ", run)
                             : absl::StrCat("run ", it->second);
  }
  std::string PayloadText(const keys::PayloadParts& payload) const {
    return absl::StrCat(RunText(payload.run), ", payload ",
                        absl::BytesToHexString(payload.digest), " of ",
                        payload.length, " bytes");
  }

  absl::Status Runs() {
    return index_->Scan("r",
                        [&](absl::string_view key, absl::string_view value) {
                          v1::RunRow row;
                          if (ParseRow(value, &row)) {
                            runs_[row.id()] = std::string(key.substr(1));
                            listed_[row.id()] = row.records();
                          } else {
                            Fault(absl::StrCat("the row of run ", key.substr(1),
                                               " cannot be read"));
                          }
                          return Row();
                        });
  }

  // Returns whether a run owns the row. Otherwise it is the rest of a deletion
  // in progress, or a fault.
  absl::StatusOr<bool> Owned(absl::string_view key) {
    const std::optional<uint32_t> run = keys::ParseRun(key);
    if (run.has_value() && runs_.count(*run) > 0) return true;
    RP_ASSIGN_OR_RETURN(const auto row, index_->Get(key));
    if (!row.has_value() || !run.has_value()) return false;
    RP_ASSIGN_OR_RETURN(const auto deleted,
                        index_->Get(keys::DeletedRun(*run)));
    if (deleted.has_value()) return false;
    // The run may have begun after the runs were listed.
    return *run > (runs_.empty() ? 0 : runs_.rbegin()->first);
  }

  template <typename M>
  absl::Status Rows(absl::string_view table, absl::string_view what) {
    return index_->Scan(
        table,
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          M row;
          if (!ParseRow(value, &row)) {
            Fault(absl::StrCat("the row of ", what, " of ",
                               RunText(keys::ParseRun(key).value_or(0)),
                               " cannot be read"));
          }
          return Row();
        });
  }

  // Reports the losses that the index has recorded.
  absl::Status LostSyncs() {
    return index_->Scan("z", [&](absl::string_view, absl::string_view value) {
      Fault(std::string(value));
      return Row();
    });
  }

  absl::Status Steps() {
    return index_->Scan(
        "s",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          v1::StepRow row;
          const std::optional<keys::StepParts> place = keys::ParseStep(key);
          const uint32_t run = keys::ParseRun(key).value_or(0);
          if (!place.has_value() || !ParseRow(value, &row)) {
            Fault(absl::StrCat("the row of a step of ", RunText(run),
                               " cannot be read"));
            return Row();
          }
          counted_[run] += row.records();
          if (row.deleted_unix_ns() == 0)
            RP_RETURN_IF_ERROR(CountRecords(key, run, *place));
          return Row();
        });
  }

  // Compares the records of a step with its counter. Frames may arrive
  // meanwhile, so a difference counts only if the row is the same before and
  // after.
  absl::Status CountRecords(absl::string_view key, uint32_t run,
                            const keys::StepParts& place) {
    for (;;) {
      RP_ASSIGN_OR_RETURN(const auto before, index_->Get(key));
      v1::StepRow row;
      if (!before.has_value() || !ParseRow(*before, &row) ||
          row.deleted_unix_ns() != 0)
        return absl::OkStatus();
      uint64_t found = 0;
      RP_RETURN_IF_ERROR(
          index_->Scan(keys::RecordPrefix(run, place.step, place.incarnation),
                       [&](absl::string_view, absl::string_view) {
                         ++found;
                         return absl::OkStatus();
                       }));
      if (found == row.records()) return absl::OkStatus();
      RP_ASSIGN_OR_RETURN(const auto after, index_->Get(key));
      if (after != before) continue;
      Fault(absl::StrCat(RunText(run), ", step ", place.step, ": ",
                         row.records(), " records were stored, ", found,
                         " are here"));
      return absl::OkStatus();
    }
  }

  // Compares the records of all steps of a run with the run's counter, unless
  // some arrived since the runs were listed.
  absl::Status Counters() {
    for (const auto& [run, name] : runs_) {
      RP_ASSIGN_OR_RETURN(const auto value, index_->Get(keys::Run(name)));
      v1::RunRow row;
      if (!value.has_value() || !ParseRow(*value, &row) ||
          row.records() != listed_[run] || row.records() == counted_[run])
        continue;
      Fault(absl::StrCat(RunText(run), ": ", row.records(),
                         " records were stored, its steps account for ",
                         counted_[run]));
    }
    return absl::OkStatus();
  }

  absl::Status Records() {
    return index_->Scan(
        "c",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          report_.set_records(report_.records() + 1);
          RP_RETURN_IF_ERROR(Row());
          const std::optional<uint32_t> run = keys::ParseRun(key);
          const std::optional<keys::StepParts> place = keys::ParseStep(key);
          v1::Record record;
          const absl::Status decoded = DecodeRecord(value, &record);
          if (!run.has_value() || !place.has_value() || !decoded.ok()) {
            Fault(absl::StrCat(
                "run ", RunText(run.value_or(0)), ": ",
                decoded.ok() ? "a record has no place" : decoded.message()));
            return absl::OkStatus();
          }
          absl::Status status;
          ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
            if (status.ok() &&
                tensor.payload().digest().size() == kPayloadDigestBytes)
              status = Reference(key, *run, *place, record, tensor.payload());
          });
          return status;
        });
  }

  absl::Status Reference(absl::string_view record_key, uint32_t run,
                         const keys::StepParts& place, const v1::Record& record,
                         const v1::PayloadRef& payload) {
    RP_ASSIGN_OR_RETURN(const auto row,
                        index_->Get(keys::Payload(run, payload.digest(),
                                                  payload.length_bytes())));
    RP_ASSIGN_OR_RETURN(const auto reference,
                        index_->Get(keys::Reference(
                            run, payload.digest(), payload.length_bytes(),
                            place.step, place.incarnation)));
    if (row.has_value() && reference.has_value()) return absl::OkStatus();
    // The record may have been deleted meanwhile.
    RP_ASSIGN_OR_RETURN(const auto still, index_->Get(record_key));
    if (!still.has_value()) return absl::OkStatus();
    if (!row.has_value())
      report_.set_missing_payloads(report_.missing_payloads() + 1);
    if (!reference.has_value()) {
      Fault(absl::StrCat(RunText(run), ", step ", place.step, ", ",
                         record.call().entry(),
                         ": its reference to a payload is not counted"));
    }
    return absl::OkStatus();
  }

  absl::Status References() {
    return index_->Scan(
        "f", [&](absl::string_view key, absl::string_view) -> absl::Status {
          RP_RETURN_IF_ERROR(Row());
          const std::optional<keys::PayloadParts> payload =
              keys::ParsePayload(key);
          if (!payload.has_value()) {
            Fault("a reference has a damaged key");
            return absl::OkStatus();
          }
          RP_ASSIGN_OR_RETURN(const bool owned, Owned(key));
          if (owned) return absl::OkStatus();
          RP_ASSIGN_OR_RETURN(const auto still, index_->Get(key));
          RP_ASSIGN_OR_RETURN(const auto deleted,
                              index_->Get(keys::DeletedRun(payload->run)));
          if (still.has_value() && !deleted.has_value())
            Fault(absl::StrCat(PayloadText(*payload),
                               ": a reference of a run that is not there"));
          return absl::OkStatus();
        });
  }

  bool Chosen(const keys::PayloadParts& payload) const {
    if (!request_.read_data()) return false;
    if (request_.subset_percent() == 0 || request_.subset_percent() >= 100)
      return true;
    return static_cast<unsigned char>(payload.digest[0]) * 100u / 256u <
           request_.subset_percent();
  }

  absl::Status Payloads() {
    return index_->Scan(
        "p",
        [&](absl::string_view key, absl::string_view value) -> absl::Status {
          report_.set_payloads(report_.payloads() + 1);
          RP_RETURN_IF_ERROR(Row());
          const std::optional<keys::PayloadParts> payload =
              keys::ParsePayload(key);
          v1::PayloadRow row;
          if (!payload.has_value() || !ParseRow(value, &row)) {
            Fault("the row of a payload cannot be read");
            return absl::OkStatus();
          }
          if (row.corrupt()) {
            Fault(absl::StrCat(PayloadText(*payload),
                               ": came with bytes of another digest"));
            return absl::OkStatus();
          }
          if (row.damaged() && !Chosen(*payload)) {
            Corrupt(*payload, absl::StrCat("damaged in ",
                                           PayloadStore::PlaceText(
                                               row.damaged_segment(),
                                               row.damaged_offset_bytes())));
            return absl::OkStatus();
          }
          return Payload(key, *payload, row);
        });
  }

  absl::Status Payload(absl::string_view key, const keys::PayloadParts& payload,
                       const v1::PayloadRow& row) {
    Finding fault;
    RP_ASSIGN_OR_RETURN(fault, CheckPayload(payload, row));
    // The payload may have been moved or deleted meanwhile, so check again.
    if (!fault.text.empty()) {
      RP_ASSIGN_OR_RETURN(fault, CheckPayload(payload, row));
    }
    RP_ASSIGN_OR_RETURN(const auto still, index_->Get(key));
    if (!still.has_value()) return absl::OkStatus();
    if (fault.damaged.has_value()) {
      Corrupt(payload, fault.text);
      core_->MarkDamaged(std::string(key), *fault.damaged);
      return absl::OkStatus();
    }
    if (row.damaged()) core_->MarkSound(std::string(key));
    if (!fault.text.empty())
      Fault(absl::StrCat(PayloadText(payload), ": ", fault.text));
    return absl::OkStatus();
  }

  void Corrupt(const keys::PayloadParts& payload, const std::string& text) {
    report_.set_corrupt_payloads(report_.corrupt_payloads() + 1);
    Fault(absl::StrCat(PayloadText(payload), ": CORRUPT: ", text));
  }

  // A fault of a payload; the text is empty if there is none.
  struct Finding {
    std::string text;
    // The chunk whose bytes are damaged.
    std::optional<v1::ChunkRow> damaged;
  };

  absl::StatusOr<Finding> CheckPayload(const keys::PayloadParts& payload,
                                       const v1::PayloadRow& payload_row) {
    Finding finding;
    std::string& fault = finding.text;
    // A wrong header does not affect reading, so it is reported last.
    std::string header_fault;
    uint64_t at = 0;
    const bool read = Chosen(payload);
    std::optional<PayloadHash> hash;
    if (read) hash.emplace();
    std::string data;
    RP_RETURN_IF_ERROR(index_->Scan(
        keys::ChunkPrefix(payload.run, payload.digest, payload.length),
        [&](absl::string_view key, absl::string_view value) {
          v1::ChunkRow row;
          if (!fault.empty()) return absl::OkStatus();
          if (!ParseRow(value, &row)) {
            fault = "the row of a chunk cannot be read";
          } else if (keys::ParseChunkOffset(key) != at) {
            fault = absl::StrCat("its chunks have a gap at ", at);
          } else if (!payloads_->Contains(row)) {
            fault = absl::StrCat("its chunk at ", at, " points beyond segment ",
                                 row.segment());
            finding.damaged = row;
          } else if (read) {
            if (const absl::Status status = payloads_->Read(row, &data);
                !status.ok()) {
              fault = std::string(status.message());
              if (absl::IsDataLoss(status)) finding.damaged = row;
            } else {
              if (header_fault.empty())
                header_fault = HeaderFault(payload, at, row);
              hash->Add(data);
              report_.set_payload_bytes_read(report_.payload_bytes_read() +
                                             data.size());
            }
          }
          at += row.length_bytes();
          return absl::OkStatus();
        }));
    if (fault.empty() && at != payload.length)
      fault = absl::StrCat("its chunks hold ", at, " bytes");
    const std::string& digest = payload_row.content_digest().empty()
                                    ? payload.digest
                                    : payload_row.content_digest();
    if (fault.empty() && read && digest != hash->Digest())
      fault = "its bytes do not have its digest";
    if (fault.empty()) fault = header_fault;
    return finding;
  }

  std::string HeaderFault(const keys::PayloadParts& payload, uint64_t at,
                          const v1::ChunkRow& row) {
    ChunkToAppend chunk{.run = payload.run,
                        .digest = payload.digest,
                        .payload_length = payload.length,
                        .offset = at};
    const absl::Status status = payloads_->CheckHeader(row, chunk);
    return status.ok()
               ? ""
               : absl::StrCat(status.message(), "; its bytes are right");
  }

  absl::Status Partials() {
    std::string last;
    const auto look = [&](absl::string_view key,
                          absl::string_view) -> absl::Status {
      RP_RETURN_IF_ERROR(Row());
      const std::optional<keys::PayloadParts> parts = keys::ParsePayload(key);
      if (!parts.has_value()) return absl::OkStatus();
      const std::string payload =
          keys::Payload(parts->run, parts->digest, parts->length);
      if (payload == last) return absl::OkStatus();
      last = payload;
      RP_ASSIGN_OR_RETURN(const auto row, index_->Get(payload));
      if (!row.has_value())
        report_.set_partial_payloads(report_.partial_payloads() + 1);
      return absl::OkStatus();
    };
    RP_RETURN_IF_ERROR(index_->Scan("k", look));
    last.clear();
    return index_->Scan("q", look);
  }

  absl::Status Rollups() {
    return VerifyRollups(index_, {[this] { return Row(); },
                                  [this](uint32_t run, absl::string_view text) {
                                    Fault(absl::StrCat(RunText(run), text));
                                  }});
  }

  StoreCore* const core_;
  Index* const index_;
  PayloadStore* const payloads_;
  const v1::VerifyRequest& request_;
  const std::function<absl::Status(const v1::VerifyReport&)>& progress_;
  v1::VerifyReport report_;
  std::map<uint32_t, std::string> runs_;
  // Records by the counters of the runs, and by those of their steps.
  std::map<uint32_t, uint64_t> listed_;
  std::map<uint32_t, uint64_t> counted_;
};

}  // namespace

void AddFault(const std::string& text, v1::VerifyReport* report) {
  report->set_fault_count(report->fault_count() + 1);
  if (report->faults_size() < kMaxFaultTexts) report->add_faults(text);
}

absl::StatusOr<v1::VerifyReport> VerifyArchive(
    StoreCore* core, const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  return Verifier(core, request, progress).Run();
}

}  // namespace rankprobe
