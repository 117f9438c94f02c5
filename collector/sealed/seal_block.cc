// SPDX-License-Identifier: Apache-2.0
// Sealer: content of a set. The same archive makes the same bytes.
#include "collector/sealed/seal_block.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/pack_object.h"
#include "collector/sealed/records_object.h"
#include "collector/sealed/sealer.h"
#include "common/base/status_macros.h"
#include "common/records/call_values.h"

namespace rankprobe {
namespace {

constexpr char kRecordsFile[] = "records";
constexpr char kPackFile[] = "pack";

}  // namespace

struct Sealer::Block {
  // Empty until something is written.
  std::string directory;
  v1::SealedLogEntry entry;
  std::unique_ptr<RecordsObjectWriter> records;
  std::unique_ptr<PackObjectWriter> pack;
  absl::flat_hash_set<PayloadId> packed;
  // Payloads that were checked again: still incomplete, and found.
  std::set<PayloadId> missing, found;

  uint64_t bytes() const {
    return (records == nullptr ? 0 : records->bytes()) +
           (pack == nullptr ? 0 : pack->bytes());
  }
};

std::string AccountOf(const v1::IncarnationRow& row) {
  v1::IncarnationRow account = row;
  account.clear_committed_sequence();
  account.clear_last_step();
  account.clear_lowest_step();
  account.clear_highest_step();
  account.clear_updated_unix_ns();
  account.clear_secret_sha256();
  account.clear_principal();
  return account.SerializeAsString();
}

absl::StatusOr<Sealer::Survey> Sealer::SurveyStep(const std::string& name,
                                                  const v1::StepInfo& info,
                                                  const OrderRanges& sealed) {
  Survey survey;
  absl::flat_hash_set<PayloadId> seen;
  StepKey key{
      .run = name, .step = info.step(), .incarnation = info.incarnation()};
  RP_RETURN_IF_ERROR(store_->ForEachRecord(key, [&](const v1::Record& record) {
    if (sealed.Contains(record.order())) return absl::OkStatus();
    survey.orders.Add(record.order(), record.order());
    if (!record.has_call()) return absl::OkStatus();
    ForEachTensor(record.call(), [&](const v1::TensorSummary& tensor) {
      if (!tensor.has_payload() ||
          tensor.payload().lost() != v1::LOSS_REASON_UNSPECIFIED ||
          tensor.payload().length_bytes() == 0)
        return;
      PayloadId payload(tensor.payload().digest(),
                        tensor.payload().length_bytes());
      if (!seen.insert(payload).second) return;
      if (!store_->HasPayload(name, payload.first, payload.second))
        survey.missing.push_back(payload);
      survey.payloads.push_back(std::move(payload));
    });
    return absl::OkStatus();
  }));
  return survey;
}

absl::Status Sealer::BeginBlock(const Run& run, Block* block) {
  if (!block->directory.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(block->directory, run.log->BeginNext());
  return absl::OkStatus();
}

absl::Status Sealer::AddPayload(const std::string& name,
                                const PayloadId& payload, const Run& run,
                                Block* block) {
  if (run.payloads.contains(payload) || block->packed.contains(payload))
    return absl::OkStatus();
  if (block->pack == nullptr) {
    RP_RETURN_IF_ERROR(BeginBlock(run, block));
    RP_ASSIGN_OR_RETURN(
        block->pack,
        PackObjectWriter::Create(
            file_system_, absl::StrCat(block->directory, "/", kPackFile)));
    block->pack->SetOrigin(run.log->origin());
  }
  block->pack->BeginPayload(
      payload.first, payload.second,
      store_->ContentDigest(name, payload.first, payload.second)
          .value_or(payload.first));
  absl::Status disk;
  const absl::Status read = store_->ReadPayload(
      name, payload.first, payload.second, [&](absl::string_view data) {
        return disk = block->pack->AddData(data);
      });
  RP_RETURN_IF_ERROR(disk);
  bool whole = false;
  if (read.ok()) {
    RP_ASSIGN_OR_RETURN(whole, block->pack->EndPayload());
  } else {
    block->pack->AbandonPayload();
  }
  if (whole) {
    block->packed.insert(payload);
    return absl::OkStatus();
  }
  // The payload was deleted meanwhile; readers see that it does not exist.
  if (absl::IsNotFound(read)) return absl::OkStatus();
  v1::SealedDamage* const damage = block->entry.add_damaged();
  damage->set_digest(payload.first);
  damage->set_length_bytes(payload.second);
  const std::string place =
      store_->PayloadDamage(name, payload.first, payload.second);
  damage->set_place(place.empty() ? std::string(read.message()) : place);
  return absl::OkStatus();
}

absl::Status Sealer::AddStep(const std::string& name, const v1::StepInfo& info,
                             const Survey& survey, const Run& run,
                             Block* block) {
  if (block->records == nullptr) {
    RP_RETURN_IF_ERROR(BeginBlock(run, block));
    RP_ASSIGN_OR_RETURN(
        block->records,
        RecordsObjectWriter::Create(
            file_system_, absl::StrCat(block->directory, "/", kRecordsFile)));
    block->records->SetOrigin(run.log->origin());
  }
  v1::SealedStep* const step = block->entry.add_steps();
  *step->mutable_info() = info;
  step->set_missing_payloads(survey.missing.size());
  for (const auto& [first, last] : survey.orders.ranges()) {
    v1::OrderRange* const range = step->add_orders();
    range->set_first(first);
    range->set_last(last);
  }
  RP_RETURN_IF_ERROR(
      block->records->BeginMember(info.step(), info.incarnation()));
  StepKey key{
      .run = name, .step = info.step(), .incarnation = info.incarnation()};
  // Records that arrived after the survey are left for an addendum.
  return store_->ForEachRecord(key, [&](const v1::Record& record) {
    return survey.orders.Contains(record.order()) ? block->records->Add(record)
                                                  : absl::OkStatus();
  });
}

absl::Status Sealer::AddAccounts(const std::string& name, const Run& run,
                                 Block* block) {
  std::set<uint64_t> members;
  for (const v1::SealedStep& step : block->entry.steps())
    members.insert(step.info().incarnation());
  return store_->ForEachIncarnation(name, [&](const v1::IncarnationRow& row) {
    const uint64_t incarnation = row.identity().incarnation();
    const auto known = run.accounts.find(incarnation);
    const bool changed =
        known == run.accounts.end() || known->second != AccountOf(row);
    // The account of a process without a stored account is only added if it
    // contains losses.
    const bool empty = known == run.accounts.end() && row.lost_frames() == 0 &&
                       row.refused_frames() == 0 && !row.has_undelivered() &&
                       row.dumping_in() == 0;
    if (!members.contains(incarnation) && (!changed || empty)) return;
    v1::IncarnationRow* const copy = block->entry.add_incarnations();
    *copy = row;
    copy->clear_secret_sha256();
    copy->clear_principal();
  });
}

absl::Status Sealer::FinishBlock(Block* block, Run* run) {
  RP_RETURN_IF_ERROR(BeginBlock(*run, block));
  const auto name_it = [&](const char* file, const v1::SealedObject& object) {
    return file_system_->Rename(
        absl::StrCat(block->directory, "/", file),
        absl::StrCat(block->directory, "/", object.name()));
  };
  if (block->records != nullptr) {
    RP_ASSIGN_OR_RETURN(*block->entry.mutable_records(),
                        block->records->Finish());
    RP_RETURN_IF_ERROR(name_it(kRecordsFile, block->entry.records()));
  }
  if (block->pack != nullptr && block->pack->payloads() > 0) {
    RP_ASSIGN_OR_RETURN(*block->entry.add_packs(), block->pack->Finish());
    RP_RETURN_IF_ERROR(name_it(kPackFile, block->entry.packs(0)));
  }
  RP_RETURN_IF_ERROR(run->log->DecideNext(std::move(block->entry)));
  if (run->payloads.size() + block->packed.size() > options_.known_payloads)
    run->payloads.clear();
  run->payloads.insert(block->packed.begin(), block->packed.end());
  for (const PayloadId& payload : block->found) run->missing.erase(payload);
  run->missing.insert(block->missing.begin(), block->missing.end());
  return absl::OkStatus();
}

absl::StatusOr<bool> Sealer::BuildNext(const std::string& name,
                                       const std::vector<v1::StepInfo>& steps,
                                       size_t* next, Run* run) {
  Block block;
  while (!run->to_survey.empty()) {
    const StepId id = *run->to_survey.begin();
    v1::StepInfo info;
    info.set_step(id.first);
    info.set_incarnation(id.second);
    RP_ASSIGN_OR_RETURN(const Survey survey,
                        SurveyStep(name, info, OrderRanges()));
    run->missing.insert(survey.payloads.begin(), survey.payloads.end());
    run->to_survey.erase(id);
  }
  for (const PayloadId& payload : run->missing) {
    if (!store_->HasPayload(name, payload.first, payload.second)) continue;
    RP_RETURN_IF_ERROR(AddPayload(name, payload, *run, &block));
    block.found.insert(payload);
    if (block.bytes() >= options_.block_bytes) break;
  }
  for (; *next < steps.size() && block.bytes() < options_.block_bytes &&
         static_cast<size_t>(block.entry.steps_size()) < options_.block_steps;
       ++*next) {
    const v1::StepInfo& info = steps[*next];
    const auto sealed = run->sealed.find({info.step(), info.incarnation()});
    RP_ASSIGN_OR_RETURN(
        const Survey survey,
        SurveyStep(name, info,
                   sealed == run->sealed.end() ? OrderRanges()
                                               : sealed->second.orders));
    // The payloads may still arrive.
    if (!survey.missing.empty() && !IsQuiet(info, run)) continue;
    RP_RETURN_IF_ERROR(AddStep(name, info, survey, *run, &block));
    block.missing.insert(survey.missing.begin(), survey.missing.end());
    for (const PayloadId& payload : survey.payloads)
      RP_RETURN_IF_ERROR(AddPayload(name, payload, *run, &block));
  }
  RP_RETURN_IF_ERROR(AddAccounts(name, *run, &block));
  if (block.entry.steps_size() == 0 && block.entry.incarnations_size() == 0 &&
      block.packed.empty())
    return false;
  RP_RETURN_IF_ERROR(FinishBlock(&block, run));
  return true;
}

}  // namespace rankprobe
