// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/read_only_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/store_verify.h"

namespace rankprobe {
namespace {

class ReadOnlyStore : public Store {
 public:
  ReadOnlyStore(ArchiveReader* reader, ObjectStore* objects,
                StoreDeleter deleter)
      : reader_(reader), objects_(objects), deleter_(std::move(deleter)) {}

  // What readers ask.
  absl::StatusOr<std::vector<v1::RunInfo>> ListRuns() override {
    return reader_->ListRuns();
  }
  absl::StatusOr<std::vector<v1::StepInfo>> ListSteps(
      const std::string& run, const IntSet& steps) override {
    return reader_->ListSteps(run, steps);
  }
  absl::StatusOr<SomeSteps> ListStepsAfter(const std::string& run,
                                           std::optional<int64_t> after,
                                           size_t most) override {
    return reader_->ListStepsAfter(run, after, most);
  }
  absl::Status ForEachRecord(
      const StepKey& key,
      const std::function<absl::Status(const v1::Record&)>& callback) override {
    return reader_->ForEachRecord(key, callback);
  }
  bool HasPayload(const std::string& run, absl::string_view digest,
                  uint64_t length_bytes) override {
    return reader_->HasPayload(run, digest, length_bytes);
  }
  std::string PayloadDamage(const std::string& run, absl::string_view digest,
                            uint64_t length_bytes) override {
    return reader_->PayloadDamage(run, digest, length_bytes);
  }
  absl::Status ReadPayload(
      const std::string& run, absl::string_view digest, uint64_t length_bytes,
      const std::function<absl::Status(absl::string_view)>& callback) override {
    return reader_->ReadPayload(run, digest, length_bytes, callback);
  }
  std::optional<std::string> ContentDigest(const std::string& run,
                                           absl::string_view digest,
                                           uint64_t length_bytes) override {
    return reader_->ContentDigest(run, digest, length_bytes);
  }
  absl::Status ForEachIncarnation(
      const std::string& run,
      const std::function<void(const v1::IncarnationRow&)>& callback) override {
    return reader_->ForEachIncarnation(run, callback);
  }
  std::vector<std::string> Faults(const std::string& run) override {
    return reader_->Faults(run);
  }
  std::vector<std::string> Away(const std::string& run,
                                MonotonicTime since) override {
    return reader_->Away(run, since);
  }

  // What there is none of here.
  RecoveryReport recovery() const override { return {}; }
  absl::Status Sync() override { return absl::OkStatus(); }
  bool KeepPayload(const std::string&, absl::string_view, uint64_t) override {
    return false;
  }
  absl::Status SyncPlans() override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string&) override {
    return std::nullopt;
  }
  std::vector<PendingRollup> PendingRollups(size_t) override { return {}; }
  void SetRollupAside(const PendingRollup&) override {}
  absl::StatusOr<uint32_t> RunNumber(const std::string& run) override {
    const absl::Status known =
        reader_->ListStepsAfter(run, std::nullopt, 1).status();
    if (!known.ok()) return known;
    return 1;
  }
  absl::Status ForEachRollupName(
      uint32_t,
      const std::function<absl::Status(uint32_t, const v1::RollupName&)>&)
      override {
    return absl::OkStatus();
  }
  absl::Status ForEachRollupLayout(
      uint32_t,
      const std::function<absl::Status(uint32_t, const v1::RollupLayout&)>&)
      override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<v1::RollupLayout>> FindRollupLayout(
      uint32_t, uint32_t) override {
    return std::nullopt;
  }
  absl::Status ForEachRollupColumn(
      uint32_t, uint64_t, uint32_t, uint8_t, int64_t, int64_t,
      const std::function<absl::Status(int64_t, absl::string_view)>&) override {
    return absl::OkStatus();
  }
  absl::Status ForEachRollupBlock(
      uint32_t, uint64_t, uint32_t, int64_t, int64_t,
      const std::function<absl::Status(int64_t, absl::string_view)>&) override {
    return absl::OkStatus();
  }
  std::vector<std::string> RunNames() override { return {}; }
  absl::StatusOr<bool> IsSummarised(const std::string&) override {
    return false;
  }
  absl::Status ForEachUnrolled(
      uint32_t,
      const std::function<absl::Status(int64_t, uint64_t)>&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<v1::StepInfo>> FindSteps(
      uint32_t, absl::Span<const std::pair<int64_t, uint64_t>>) override {
    return std::vector<v1::StepInfo>();
  }
  absl::Status ForEachHeadIn(
      uint32_t, absl::Span<const ProcessRange>,
      const std::function<absl::Status(size_t, int64_t,
                                       const v1::RollupHead&)>&) override {
    return absl::OkStatus();
  }
  absl::Status ForEachTileIn(
      uint32_t, int, absl::Span<const ProcessRange>,
      const std::function<absl::Status(size_t, uint64_t, absl::string_view)>&)
      override {
    return absl::OkStatus();
  }
  std::vector<SummaryTile> TilesToMake(size_t) override { return {}; }
  void AddTileToMake(const SummaryTile&) override {}
  uint64_t RollupBytes() override { return 0; }
  void CompactRollups() override {}
  StoreTotals Totals() override { return {}; }
  uint64_t SegmentBytes() override { return 0; }
  absl::StatusOr<GarbageReport> CollectGarbage(
      const absl::flat_hash_set<uint64_t>&, uint64_t) override {
    return GarbageReport();
  }
  absl::StatusOr<int64_t> KeepFromStep(const std::string&,
                                       const absl::flat_hash_set<uint64_t>&,
                                       int64_t) override {
    return INT64_MAX;
  }

  // What would write.
  absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity&, const IncarnationClaim&) override {
    return Refused();
  }
  absl::Status Commit(absl::Span<const FrameToStore>) override {
    return Refused();
  }
  absl::Status SavePlan(const std::string&, const v1::PlanSpec&) override {
    return Refused();
  }
  absl::Status NoteLostFrames(const v1::Identity&, uint64_t) override {
    return Refused();
  }
  absl::Status NoteUndelivered(const v1::Identity&,
                               const v1::Undelivered&) override {
    return Refused();
  }
  absl::Status NoteDumping(const v1::Identity&, Dumping) override {
    return Refused();
  }
  absl::StatusOr<v1::ReindexReport> QueueRollups(const std::string&) override {
    return Refused();
  }
  absl::Status WriteRollup(const PendingRollup&, const RollupRows&) override {
    return Refused();
  }
  absl::Status WriteTile(
      const SummaryTile&,
      const std::function<absl::StatusOr<std::string>(bool)>&) override {
    return Refused();
  }
  absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      override {
    return VerifyObjectStore(objects_, request, progress);
  }
  absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) override {
    if (!deleter_) return Refused();
    return deleter_(options);
  }
  absl::StatusOr<v1::BackupReport> Backup(FileSystem*, const std::string&,
                                          bool) override {
    return Refused();
  }

 private:
  absl::Status Refused() const {
    return absl::FailedPreconditionError(absl::StrCat(
        "this is a reader of ", objects_->name(), ": it is read-only"));
  }

  ArchiveReader* const reader_;
  ObjectStore* const objects_;
  const StoreDeleter deleter_;
};

class RootStore final : public ReadOnlyStore {
 public:
  RootStore(ArchiveReader* reader, ObjectStore* objects, PlanLog* plans,
            StoreDeleter deleter)
      : ReadOnlyStore(reader, objects, std::move(deleter)), plans_(plans) {}

  absl::StatusOr<std::optional<v1::PlanSpec>> LoadPlan(
      const std::string& key) override {
    return plans_->Load(key);
  }
  absl::Status SavePlan(const std::string& key,
                        const v1::PlanSpec& plan) override {
    return plans_->Save(key, plan);
  }
  // Its leaf has settled who it is, and keeps it.
  absl::StatusOr<OpenedIncarnation> OpenIncarnation(
      const v1::Identity&, const IncarnationClaim& claim) override {
    OpenedIncarnation opened;
    opened.proved = true;
    opened.principal = claim.principal;
    return opened;
  }
  absl::Status NoteDumping(const v1::Identity&, Dumping) override {
    return absl::OkStatus();
  }
  absl::Status NoteUndelivered(const v1::Identity&,
                               const v1::Undelivered&) override {
    return absl::OkStatus();
  }

 private:
  PlanLog* const plans_;
};

}  // namespace

StoreDeleter NewStoreDeleter(ObjectStore* objects, const Clock* clock) {
  return [objects, clock](const DeleteOptions& options) {
    return DeleteFromStore(objects, options.run, options.steps, clock->Now(),
                           "delete");
  };
}

std::unique_ptr<Store> NewReadOnlyStore(ArchiveReader* reader,
                                        ObjectStore* objects,
                                        StoreDeleter deleter) {
  return std::make_unique<ReadOnlyStore>(reader, objects, std::move(deleter));
}

std::unique_ptr<Store> NewRootStore(ArchiveReader* reader, ObjectStore* objects,
                                    PlanLog* plans, StoreDeleter deleter) {
  return std::make_unique<RootStore>(reader, objects, plans,
                                     std::move(deleter));
}

}  // namespace rankprobe
