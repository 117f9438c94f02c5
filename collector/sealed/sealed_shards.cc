// SPDX-License-Identifier: Apache-2.0
// SealedReader: what each collector has stored, separately.
#include "collector/sealed/sealed_reader.h"
#include "common/base/status_macros.h"

namespace rankprobe {

std::map<int, std::string> SealedReader::ShardsOf(const Run& run) {
  std::map<int, std::string> shards;
  for (const auto& [shard, number] : run.log_numbers) shards[number] = shard;
  return shards;
}

std::map<std::string, v1::StepInfo> SealedReader::InfosByShard(
    const StepKey& key) {
  std::map<std::string, v1::StepInfo> infos;
  absl::MutexLock lock(&mutex_);
  const auto run = runs_.find(key.run);
  if (run == runs_.end()) return infos;
  const auto step = run->second.steps.find({key.step, key.incarnation});
  if (step == run->second.steps.end()) return infos;
  std::map<int, std::string> shards = ShardsOf(run->second);
  if (step->second.several == nullptr) {
    infos[shards[step->second.log]] = step->second.info;
    return infos;
  }
  for (const auto& [log, info] : step->second.several->of_logs)
    infos[shards[log]] = info;
  return infos;
}

absl::Status SealedReader::ForEachRecordByShard(
    const StepKey& key,
    const std::function<absl::Status(const std::string& shard,
                                     const v1::Record&)>& callback) {
  std::vector<Source> sources;
  std::map<int, std::string> shards;
  std::string run_key;
  {
    absl::MutexLock lock(&mutex_);
    const auto run = runs_.find(key.run);
    if (run == runs_.end()) return absl::OkStatus();
    const auto step = run->second.steps.find({key.step, key.incarnation});
    if (step == run->second.steps.end()) return absl::OkStatus();
    sources = step->second.sources;
    shards = ShardsOf(run->second);
    run_key = run->second.key;
  }
  for (const Source& source : sources) {
    RP_RETURN_IF_ERROR(
        ReadSource(key, run_key, source, [&](const v1::Record& record) {
          return callback(shards[source.log], record);
        }));
  }
  return absl::OkStatus();
}

std::map<uint64_t, std::map<std::string, v1::IncarnationRow>>
SealedReader::AccountsByShard(const std::string& run) {
  std::map<uint64_t, std::map<std::string, v1::IncarnationRow>> accounts;
  absl::MutexLock lock(&mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end()) return accounts;
  std::map<int, std::string> shards = ShardsOf(known->second);
  for (const auto& [incarnation, of_logs] : known->second.incarnations) {
    for (const auto& [log, row] : of_logs)
      accounts[incarnation][shards[log]] = row;
  }
  return accounts;
}

sealed::Maintenance::Fate SealedReader::FateOf(const StepKey& key) {
  absl::MutexLock lock(&mutex_);
  const auto run = runs_.find(key.run);
  return run == runs_.end()
             ? sealed::Maintenance::Fate::kThere
             : run->second.maintenance.FateOf(key.step, key.incarnation);
}

bool SealedReader::KnewWhenGone(const std::string& run, uint64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  const auto known = runs_.find(run);
  return known != runs_.end() &&
         known->second.maintenance.KnewWhenGone(incarnation);
}

}  // namespace rankprobe
