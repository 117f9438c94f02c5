// SPDX-License-Identifier: Apache-2.0
// Sealer: which steps are ready, and how a set is stored. The content of a set
// is in seal_block.cc.
#include "collector/sealed/sealer.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "collector/sealed/seal_block.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr char kShardFile[] = "shard";
constexpr size_t kShardBytes = 32;
constexpr int kSweepsInAPass = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<Sealer>> Sealer::Open(SealerOptions options,
                                                     Store* store,
                                                     ObjectStore* objects,
                                                     FileSystem* file_system,
                                                     const Clock* clock) {
  std::unique_ptr<Sealer> sealer(
      new Sealer(std::move(options), store, objects, file_system, clock));
  const std::string& directory = sealer->options_.directory;
  const std::string path = absl::StrCat(directory, "/", kShardFile);
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(directory));
  if (file_system->Exists(path)) {
    RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                        file_system->OpenForRead(path));
    sealer->shard_.resize(kShardBytes);
    const absl::Status read = file->Read(0, absl::MakeSpan(sealer->shard_));
    if (!read.ok() || !sealed::IsHexName(sealer->shard_)) {
      return absl::DataLossError(absl::StrCat(
          path, " does not hold the name of this collector's logs"));
    }
    return sealer;
  }
  sealer->shard_ = absl::BytesToHexString(RandomBytes(kShardBytes / 2));
  const std::string unfinished = path + ".new";
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system->OpenForWrite(unfinished, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(file->Append(sealer->shard_));
  RP_RETURN_IF_ERROR(file->Sync());
  RP_RETURN_IF_ERROR(file->Close());
  RP_RETURN_IF_ERROR(file_system->Rename(unfinished, path));
  RP_RETURN_IF_ERROR(file_system->SyncDirectory(directory));
  return sealer;
}

bool Sealer::IsStored(const std::string& run, const v1::StepInfo& info) const {
  absl::MutexLock lock(&stored_mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return false;
  const auto sealed =
      known->second.sealed.find({info.step(), info.incarnation()});
  // A step that was deleted here after it was stored is unchanged in the store.
  return sealed != known->second.sealed.end() &&
         (info.deleted() || sealed->second.records == info.records());
}

void Sealer::Note(const v1::SealedLogEntry& entry, Run* run) {
  absl::MutexLock lock(&stored_mutex_);
  for (const v1::SealedStep& step : entry.steps()) {
    const StepId id(step.info().step(), step.info().incarnation());
    Sealed& known = run->sealed[id];
    known.records = step.info().records();
    // Sums over all its sets, because an addendum only contains its own
    // records.
    known.missing_payloads += step.missing_payloads();
    for (const v1::OrderRange& range : step.orders())
      known.orders.Add(range.first(), range.last());
    run->waiting.erase(id);
  }
  for (const v1::IncarnationRow& row : entry.incarnations())
    run->accounts[row.identity().incarnation()] = AccountOf(row);
}

absl::StatusOr<Sealer::Run*> Sealer::OpenRun(const std::string& name) {
  const auto known = runs_.find(name);
  if (known != runs_.end()) return &known->second;
  Run run;
  run.log = std::make_unique<ShardLog>(options_.directory, name, shard_,
                                       objects_, file_system_);
  RP_RETURN_IF_ERROR(run.log->Open(
      [&](const v1::SealedLogEntry& entry) { Note(entry, &run); }));
  for (const auto& [id, sealed] : run.sealed) {
    if (sealed.missing_payloads > 0) run.to_survey.insert(id);
  }
  absl::MutexLock lock(&stored_mutex_);
  return &runs_.emplace(name, std::move(run)).first->second;
}

bool Sealer::IsQuiet(const v1::StepInfo& info, Run* run) {
  const auto [it, is_new] =
      run->waiting.try_emplace({info.step(), info.incarnation()});
  Waiting& waiting = it->second;
  const int64_t now = clock_->MonotonicNanos();
  if (is_new || waiting.records != info.records())
    waiting = {info.records(), now};
  return now - waiting.since_ns >=
         absl::ToInt64Nanoseconds(options_.quiet_time);
}

std::vector<v1::StepInfo> Sealer::Ready(const std::vector<v1::StepInfo>& steps,
                                        Run* run) {
  std::vector<v1::StepInfo> ready;
  for (const v1::StepInfo& info : steps) {
    const StepId id(info.step(), info.incarnation());
    const auto sealed = run->sealed.find(id);
    const bool is_sealed = sealed != run->sealed.end();
    if (info.deleted() ||
        (is_sealed && sealed->second.records == info.records())) {
      run->waiting.erase(id);
      continue;
    }
    // Later data may be followed by more, so an addendum waits until the step
    // is quiet.
    if (IsQuiet(info, run) || (info.complete() && !is_sealed))
      ready.push_back(info);
  }
  return ready;
}

absl::Status Sealer::StoreSet(Run* run, Report* report) {
  const absl::StatusOr<v1::SealedLogEntry> entry = run->log->StoreNext();
  if (run->log->fenced()) report->fenced = true;
  RP_RETURN_IF_ERROR(entry.status());
  ++report->sets;
  report->steps += static_cast<uint64_t>(entry->steps_size());
  for (const v1::SealedStep& step : entry->steps()) {
    if (run->sealed.contains({step.info().step(), step.info().incarnation()}))
      ++report->addenda;
  }
  if (entry->has_records()) report->bytes += entry->records().bytes();
  for (const v1::SealedObject& pack : entry->packs())
    report->bytes += pack.bytes();
  Note(*entry, run);
  return absl::OkStatus();
}

absl::Status Sealer::SealRun(const std::string& name,
                             const std::function<bool()>& stop,
                             Report* report) {
  // After this many sweeps in one pass the next pass continues.
  absl::Status status;
  std::map<StepId, Waiting> waiting;
  for (int sweeps = 0; sweeps < kSweepsInAPass; ++sweeps) {
    const bool is_new = runs_.find(name) == runs_.end();
    RP_ASSIGN_OR_RETURN(Run* const run, OpenRun(name));
    if (is_new && !run->log->repaired().empty())
      report->repaired.push_back(run->log->repaired());
    // Keeps since when steps are quiet, although the run was opened again.
    run->waiting.merge(waiting);
    status = SealOpenRun(name, run, stop, report);
    if (!run->log->swept()) break;
    // Payloads in packs have to be put again too, because those packs may be
    // removed.
    waiting = std::move(run->waiting);
    absl::MutexLock lock(&stored_mutex_);
    runs_.erase(name);
  }
  return status;
}

absl::Status Sealer::SealOpenRun(const std::string& name, Run* run,
                                 const std::function<bool()>& stop,
                                 Report* report) {
  // A set that was decided before a crash or an error is stored first.
  if (run->log->HasNext()) RP_RETURN_IF_ERROR(StoreSet(run, report));
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> steps,
                      store_->ListSteps(name));
  const std::vector<v1::StepInfo> ready = Ready(steps, run);
  for (size_t next = 0; !stop();) {
    RP_ASSIGN_OR_RETURN(const bool built, BuildNext(name, ready, &next, run));
    if (built) RP_RETURN_IF_ERROR(StoreSet(run, report));
    if (next >= ready.size()) break;
  }
  if (options_.free_stored && !stop())
    RP_RETURN_IF_ERROR(Free(name, steps, run, report));
  return absl::OkStatus();
}

// `steps` were listed before anything was sealed: what arrived since is not
// stored, and is kept.
absl::Status Sealer::Free(const std::string& name,
                          const std::vector<v1::StepInfo>& steps, Run* run,
                          Report* report) {
  if (steps.empty()) return absl::OkStatus();
  const int64_t newest = steps.back().step();
  // All payloads have arrived and are stored.
  const bool none_missing = run->missing.empty() && run->to_survey.empty();
  std::set<int64_t> chosen, kept;
  std::map<StepId, uint64_t> unchanged;
  for (const v1::StepInfo& info : steps) {
    if (info.deleted() || info.step() > newest - options_.keep_steps) continue;
    const auto sealed = run->sealed.find({info.step(), info.incarnation()});
    const bool stored = info.complete() && sealed != run->sealed.end() &&
                        sealed->second.records == info.records() &&
                        (sealed->second.missing_payloads == 0 || none_missing);
    (stored ? chosen : kept).insert(info.step());
    unchanged[{info.step(), info.incarnation()}] = info.records();
  }
  // A step is freed only if all of its processes are stored.
  for (const int64_t step : kept) chosen.erase(step);
  if (chosen.empty()) return absl::OkStatus();
  DeleteOptions options{.run = name, .steps = chosen};
  options.unchanged = std::move(unchanged);
  if (options_.live) options.live_incarnations = options_.live();
  // CollectGarbage returns the space later.
  options.reclaim = false;
  RP_RETURN_IF_ERROR(store_->Delete(options).status());
  report->freed_steps += chosen.size();
  return absl::OkStatus();
}

absl::Status Sealer::SealReady(const std::function<bool()>& stop,
                               Report* report) {
  absl::Status first;
  for (const std::string& run : store_->RunNames()) {
    if (stop()) break;
    // A run that cannot be stored does not block the others.
    const bool fenced = std::exchange(report->fenced, false);
    const absl::Status status = SealRun(run, stop, report);
    // Reports the first error, but that of a fenced log before all others.
    if (first.ok() || (report->fenced && !fenced)) first = status;
    report->fenced = report->fenced || fenced;
  }
  return first;
}

}  // namespace rankprobe
