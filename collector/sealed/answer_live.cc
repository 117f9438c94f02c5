// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/answer_live.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

// A part holds no more, except for a single larger item.
constexpr size_t kPartBytes = 64 << 10;
constexpr size_t kDataBytes = 256 << 10;

// Collects the answer in parts.
class Parts {
 public:
  explicit Parts(const std::function<absl::Status(v1::LiveAnswer)>& write)
      : write_(write) {}

  // Returns the part to which something of `bytes` bytes can be added.
  absl::StatusOr<v1::LiveAnswer*> RoomFor(size_t bytes) {
    if (bytes_ + bytes > kPartBytes) RP_RETURN_IF_ERROR(Flush());
    bytes_ += bytes + 8;
    return &part_;
  }
  absl::Status Flush() {
    if (bytes_ == 0) return absl::OkStatus();
    bytes_ = 0;
    return write_(std::exchange(part_, v1::LiveAnswer()));
  }

 private:
  const std::function<absl::Status(v1::LiveAnswer)>& write_;
  v1::LiveAnswer part_;
  size_t bytes_ = 0;
};

absl::StatusOr<std::vector<v1::StepInfo>> NotStored(ArchiveReader* store,
                                                    const IsStoredFn& is_stored,
                                                    const std::string& run) {
  absl::StatusOr<std::vector<v1::StepInfo>> steps = store->ListSteps(run);
  if (absl::IsNotFound(steps.status())) return std::vector<v1::StepInfo>();
  RP_RETURN_IF_ERROR(steps.status());
  steps->erase(std::remove_if(steps->begin(), steps->end(),
                              [&](const v1::StepInfo& info) {
                                return is_stored(run, info);
                              }),
               steps->end());
  return steps;
}

absl::Status AnswerRuns(ArchiveReader* store, const IsStoredFn& is_stored,
                        Parts* parts) {
  RP_ASSIGN_OR_RETURN(std::vector<v1::RunInfo> runs, store->ListRuns());
  for (v1::RunInfo& run : runs) {
    const std::string name = run.run();
    RP_ASSIGN_OR_RETURN(std::vector<v1::StepInfo> steps,
                        NotStored(store, is_stored, name));
    if (steps.empty()) continue;
    RP_ASSIGN_OR_RETURN(v1::LiveAnswer * part,
                        parts->RoomFor(run.ByteSizeLong()));
    part->add_runs()->mutable_run()->Swap(&run);
    for (v1::StepInfo& step : steps) {
      RP_ASSIGN_OR_RETURN(part, parts->RoomFor(step.ByteSizeLong()));
      // The part begins with this step, so it needs the run's name.
      if (part->runs().empty()) part->add_runs()->mutable_run()->set_run(name);
      part->mutable_runs()->rbegin()->add_steps()->Swap(&step);
    }
  }
  return parts->Flush();
}

absl::Status AnswerSteps(ArchiveReader* store, const IsStoredFn& is_stored,
                         const std::string& run, Parts* parts) {
  RP_ASSIGN_OR_RETURN(std::vector<v1::StepInfo> steps,
                      NotStored(store, is_stored, run));
  for (v1::StepInfo& step : steps) {
    RP_ASSIGN_OR_RETURN(v1::LiveAnswer* const part,
                        parts->RoomFor(step.ByteSizeLong()));
    part->add_steps()->Swap(&step);
  }
  return parts->Flush();
}

absl::Status AnswerIncarnations(ArchiveReader* store, const std::string& run,
                                Parts* parts) {
  absl::Status written;
  const absl::Status read =
      store->ForEachIncarnation(run, [&](const v1::IncarnationRow& row) {
        if (!written.ok()) return;
        const auto part = parts->RoomFor(row.ByteSizeLong());
        written = part.status();
        if (!written.ok()) return;
        v1::IncarnationRow* const copy = (*part)->add_incarnations();
        *copy = row;
        copy->clear_secret_sha256();
        copy->clear_principal();
      });
  RP_RETURN_IF_ERROR(written);
  if (!absl::IsNotFound(read)) RP_RETURN_IF_ERROR(read);
  return parts->Flush();
}

absl::Status AnswerRecords(ArchiveReader* store,
                           const v1::LiveQuestion& question, Parts* parts) {
  const std::string& run = question.run();
  StepKey key{.run = run,
              .step = question.records().step(),
              .incarnation = question.records().incarnation()};
  absl::flat_hash_set<std::pair<std::string, uint64_t>> told;
  absl::Status written;
  const auto tell = [&](const v1::TensorSummary& tensor) {
    const v1::PayloadRef& ref = tensor.payload();
    if (!written.ok() || !tensor.has_payload() || ref.length_bytes() == 0 ||
        ref.lost() != v1::LOSS_REASON_UNSPECIFIED ||
        !told.emplace(ref.digest(), ref.length_bytes()).second ||
        !store->HasPayload(run, ref.digest(), ref.length_bytes()))
      return;
    const auto part = parts->RoomFor(ref.digest().size() + 16);
    written = part.status();
    if (!written.ok()) return;
    v1::LivePayload* const complete = (*part)->add_complete();
    complete->set_digest(ref.digest());
    complete->set_length_bytes(ref.length_bytes());
  };
  const absl::Status read =
      store->ForEachRecord(key, [&](const v1::Record& record) -> absl::Status {
        // Complete payloads of the record are listed before it.
        if (record.has_call()) ForEachTensor(record.call(), tell);
        RP_RETURN_IF_ERROR(written);
        RP_ASSIGN_OR_RETURN(v1::LiveAnswer* const part,
                            parts->RoomFor(record.ByteSizeLong()));
        *part->add_records() = record;
        return absl::OkStatus();
      });
  if (!absl::IsNotFound(read)) RP_RETURN_IF_ERROR(read);
  return parts->Flush();
}

absl::Status AnswerHasPayload(ArchiveReader* store, const std::string& run,
                              const v1::LivePayload& payload, Parts* parts) {
  RP_ASSIGN_OR_RETURN(v1::LiveAnswer* const part, parts->RoomFor(1));
  if (store->HasPayload(run, payload.digest(), payload.length_bytes())) {
    *part->add_complete() = payload;
  } else {
    part->set_damage(
        store->PayloadDamage(run, payload.digest(), payload.length_bytes()));
  }
  return parts->Flush();
}

absl::Status AnswerPayload(ArchiveReader* store, const std::string& run,
                           const v1::LivePayload& payload, Parts* parts) {
  return store->ReadPayload(
      run, payload.digest(), payload.length_bytes(),
      [&](absl::string_view data) -> absl::Status {
        for (size_t at = 0; at < data.size(); at += kDataBytes) {
          const absl::string_view piece = data.substr(at, kDataBytes);
          RP_ASSIGN_OR_RETURN(v1::LiveAnswer* const part,
                              parts->RoomFor(piece.size()));
          part->set_data(piece.data(), piece.size());
          RP_RETURN_IF_ERROR(parts->Flush());
        }
        return absl::OkStatus();
      });
}

}  // namespace

absl::Status AnswerLive(
    ArchiveReader* store, const IsStoredFn& is_stored,
    const v1::LiveQuestion& question,
    const std::function<absl::Status(v1::LiveAnswer)>& write) {
  Parts parts(write);
  switch (question.what_case()) {
    case v1::LiveQuestion::kRuns:
      return AnswerRuns(store, is_stored, &parts);
    case v1::LiveQuestion::kSteps:
      return AnswerSteps(store, is_stored, question.run(), &parts);
    case v1::LiveQuestion::kIncarnations:
      return AnswerIncarnations(store, question.run(), &parts);
    case v1::LiveQuestion::kRecords:
      return AnswerRecords(store, question, &parts);
    case v1::LiveQuestion::kWhether:
      return AnswerHasPayload(store, question.run(), question.whether(),
                              &parts);
    case v1::LiveQuestion::kPayload:
      return AnswerPayload(store, question.run(), question.payload(), &parts);
    case v1::LiveQuestion::WHAT_NOT_SET:
      break;
  }
  return absl::UnimplementedError("this leaf does not know that question");
}

}  // namespace rankprobe
