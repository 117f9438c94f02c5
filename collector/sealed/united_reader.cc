// SPDX-License-Identifier: Apache-2.0
// UnitedReader: runs, steps, accounts. Records and payloads are in
// united_records.cc.
#include "collector/sealed/united_reader.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "collector/sealed/maintenance_log.h"
#include "collector/sealed/unite.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Beyond this number, missed leaves are recorded without the run.
constexpr size_t kMaxMissed = 10'000;
constexpr absl::Duration kLongestCall = absl::Hours(6);

using Fate = sealed::Maintenance::Fate;

StepKey KeyOf(const std::string& run, int64_t step, uint64_t incarnation) {
  StepKey key{.run = run, .step = step, .incarnation = incarnation};
  return key;
}

absl::Status TooMuch() {
  return absl::ResourceExhaustedError(
      "more waits on the leaves to be stored than is taken into one answer; "
      "the store alone can be asked: rankprobe --object-store URL");
}

}  // namespace

bool UnitedReader::MayHave(const LiveLeaves::Leaf& leaf,
                           const std::string& run) {
  return run.empty() || leaf.runs == nullptr ||
         std::binary_search(leaf.runs->begin(), leaf.runs->end(), run);
}

void UnitedReader::Miss(const LiveLeaves::Leaf& leaf, const std::string& run,
                        const std::string& why) {
  absl::MutexLock lock(&mutex_);
  const MonotonicTime now = MonotonicNow();
  if (missed_.size() >= kMaxMissed) {
    for (auto it = missed_.begin(); it != missed_.end();) {
      it = absl::FromChrono(now - it->second.last) > kLongestCall
               ? missed_.erase(it)
               : std::next(it);
    }
  }
  // Beyond the limit the entry applies to all runs.
  Missed& missed = missed_[{leaf.address,
                            missed_.size() < kMaxMissed ? run : std::string()}];
  missed.why = why;
  missed.last = now;
}

std::vector<std::string> UnitedReader::Unavailable(const std::string& run,
                                                   MonotonicTime since) {
  std::map<std::string, std::string> away;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [of, missed] : missed_) {
      if (missed.last >= since &&
          (run.empty() || of.second.empty() || of.second == run))
        away[of.first] = missed.why;
    }
  }
  std::vector<std::string> said = stored_->Unavailable(run, since);
  for (const auto& [address, why] : away)
    said.push_back(absl::StrCat(why, ": what it has not stored is not here"));
  return said;
}

absl::Status UnitedReader::TakeAll(
    LiveLeaves::Answer* answer,
    const std::function<absl::Status(v1::LiveAnswer*)>& take) {
  while (true) {
    v1::LiveAnswer part;
    RP_ASSIGN_OR_RETURN(const bool more, answer->Next(&part));
    if (!more) return absl::OkStatus();
    RP_RETURN_IF_ERROR(take(&part));
  }
}

absl::Status UnitedReader::TakeList(
    LiveLeaves::Answer* answer, size_t* bytes,
    const std::function<void(v1::LiveAnswer*)>& take, absl::Status* of_leaf) {
  bool too_much = false;
  *of_leaf = TakeAll(answer, [&](v1::LiveAnswer* part) -> absl::Status {
    *bytes += part->ByteSizeLong();
    too_much = *bytes > kMaxBytes;
    if (too_much) return TooMuch();
    take(part);
    return absl::OkStatus();
  });
  return too_much ? *of_leaf : absl::OkStatus();
}

std::vector<UnitedReader::Asked> UnitedReader::AskAll(
    const v1::LiveQuestion& question, std::set<std::string>* away) {
  std::vector<Asked> asked;
  for (LiveLeaves::Leaf& leaf : leaves_->Leaves()) {
    if (leaf.away.empty()) {
      // All leaves are asked before the first answer is read, so that they work
      // at the same time.
      auto answer = leaves_->Ask(leaf.name, question);
      asked.push_back({std::move(leaf), std::move(answer)});
      continue;
    }
    if (away != nullptr) away->insert(leaf.name);
    if (MayHave(leaf, question.run())) Miss(leaf, question.run(), leaf.away);
  }
  return asked;
}

absl::StatusOr<UnitedReader::Live> UnitedReader::AskSteps(
    const std::string& run) {
  Live live;
  {
    absl::MutexLock lock(&mutex_);
    live.asked = ++asked_;
  }
  v1::LiveQuestion question;
  question.set_run(run);
  question.set_steps(true);
  size_t bytes = 0;
  for (Asked& asked : AskAll(question, &live.silent)) {
    std::vector<v1::StepInfo> steps;
    absl::Status status;
    RP_RETURN_IF_ERROR(TakeList(
        asked.answer.get(), &bytes,
        [&](v1::LiveAnswer* part) {
          std::move(part->mutable_steps()->begin(),
                    part->mutable_steps()->end(), std::back_inserter(steps));
        },
        &status));
    if (!status.ok()) {
      // A partial answer must not be used as the complete one.
      live.silent.insert(asked.leaf.name);
      Miss(asked.leaf, run, std::string(status.message()));
      continue;
    }
    for (v1::StepInfo& info : steps) {
      live.steps[{info.step(), info.incarnation()}][asked.leaf.name].Swap(
          &info);
    }
  }
  return live;
}

void UnitedReader::LeaveOutGone(const std::string& run, Live* live) {
  for (auto it = live->steps.begin(); it != live->steps.end();) {
    it = stored_->FateOf(KeyOf(run, it->first.first, it->first.second)) ==
                 Fate::kGone
             ? live->steps.erase(it)
             : std::next(it);
  }
}

void UnitedReader::LeaveOutGone(
    const std::string& run,
    const std::map<uint64_t, std::map<std::string, v1::IncarnationRow>>& stored,
    std::map<uint64_t, std::map<std::string, v1::IncarnationRow>>* live) {
  std::set<uint64_t> with_steps;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto known = runs_.find(run); known != runs_.end())
      for (const auto& [id, held] : known->second.held)
        with_steps.insert(id.second);
  }
  for (auto it = live->begin(); it != live->end();) {
    const bool gone = stored_->KnewWhenGone(run, it->first) &&
                      stored.count(it->first) == 0 &&
                      with_steps.count(it->first) == 0;
    it = gone ? live->erase(it) : std::next(it);
  }
}

absl::StatusOr<v1::StepInfo> UnitedReader::InfoOf(const StepKey& key,
                                                  const Infos& live,
                                                  Held* held) {
  Infos infos = stored_->InfosByShard(key);
  if (stored_->FateOf(key) == Fate::kDeleted) {
    // No collector has its records any more.
    v1::StepInfo info =
        infos.empty() ? live.begin()->second : infos.begin()->second;
    info.set_deleted(true);
    info.set_complete(false);
    return info;
  }
  held->stored = !infos.empty();
  for (const auto& [leaf, info] : live) {
    held->records[leaf] = info.deleted() ? 0 : info.records();
    const auto [known, is_new] = infos.try_emplace(leaf, info);
    // If the leaf has freed the step, the store has more; if it still receives
    // data, the leaf has more.
    if (!is_new && !info.deleted() && info.records() >= known->second.records())
      known->second = info;
  }
  if (infos.size() == 1) return infos.begin()->second;
  // Several collectors have the step: each record counts once, as in unite.h.
  std::map<std::string, int> numbers;
  std::map<int, v1::StepInfo> numbered;
  for (const auto& [shard, info] : infos) {
    const int number = static_cast<int>(numbers.size()) + 1;
    numbers[shard] = number;
    numbered[number] = info;
  }
  std::map<std::string, std::set<uint64_t>> seen;
  sealed::StepUnion all;
  const auto add = [&](const std::string& shard, const v1::Record& record) {
    if (seen[shard].insert(record.order()).second)
      all.Add(numbers[shard], record);
    return absl::OkStatus();
  };
  for (const auto& [leaf, info] : live) {
    RP_RETURN_IF_ERROR(ReadLive(
        leaf, key,
        [&, &leaf = leaf](const v1::Record& r) { return add(leaf, r); }));
  }
  RP_RETURN_IF_ERROR(stored_->ForEachRecordByShard(key, add));
  return all.Describe(numbered);
}

absl::Status UnitedReader::Merge(const std::string& run, const Live& live,
                                 const std::function<bool(int64_t)>& wanted,
                                 std::vector<v1::StepInfo>* infos) {
  std::map<StepId, v1::StepInfo> united;
  std::map<StepId, Held> held;
  for (const auto& [id, of_leaves] : live.steps) {
    const StepKey key = KeyOf(run, id.first, id.second);
    if (wanted(id.first)) {
      RP_ASSIGN_OR_RETURN(united[id], InfoOf(key, of_leaves, &held[id]));
      continue;
    }
    if (stored_->FateOf(key) != Fate::kThere) continue;
    // The step is not in this answer, and may be in a concurrent one.
    Held& other = held[id];
    other.stored = true;
    for (const auto& [leaf, info] : of_leaves)
      other.records[leaf] = info.deleted() ? 0 : info.records();
  }
  for (v1::StepInfo& info : *infos) {
    const auto it = united.find({info.step(), info.incarnation()});
    if (it == united.end()) continue;
    info.Swap(&it->second);
    united.erase(it);
  }
  for (auto& [id, info] : united) infos->emplace_back().Swap(&info);
  std::sort(infos->begin(), infos->end(), &sealed::IsStepBefore);
  absl::MutexLock lock(&mutex_);
  Run& known = runs_[run];
  // A later request has newer information about what was stored.
  if (known.asked > live.asked) return absl::OkStatus();
  known.asked = live.asked;
  // If this list lacks a step that an earlier list has shown, reading it has to
  // be an error, not an empty step.
  std::map<StepId, Held> gone;
  for (const auto& [id, before] : known.held) {
    if (held.find(id) != held.end()) continue;
    const StepKey key = KeyOf(run, id.first, id.second);
    if (stored_->FateOf(key) != Fate::kThere) continue;
    for (const auto& [leaf, records] : before.records) {
      if (live.silent.find(leaf) != live.silent.end() &&
          stored_->InfosByShard(key).empty())
        gone[id].records[leaf] = records;
    }
  }
  held.merge(gone);
  known.held = std::move(held);
  known.silent = live.silent;
  known.holders.clear();
  for (const auto& [id, one] : known.held)
    for (const auto& [leaf, records] : one.records) known.holders.insert(leaf);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::StepInfo>> UnitedReader::ListSteps(
    const std::string& run, const IntSet& steps) {
  RP_ASSIGN_OR_RETURN(Live live, AskSteps(run));
  return UniteSteps(run, steps, std::move(live));
}

absl::StatusOr<std::vector<v1::StepInfo>> UnitedReader::UniteSteps(
    const std::string& run, const IntSet& steps, Live live) {
  // Read after the leaves were asked: what they have stored since is in their
  // answers.
  absl::StatusOr<std::vector<v1::StepInfo>> infos =
      stored_->ListSteps(run, steps);
  LeaveOutGone(run, &live);
  if (absl::IsNotFound(infos.status()) && !live.steps.empty())
    infos = std::vector<v1::StepInfo>();
  RP_RETURN_IF_ERROR(infos.status());
  RP_RETURN_IF_ERROR(Merge(
      run, live,
      [&](int64_t step) { return steps.all() || steps.Contains(step); },
      &*infos));
  return infos;
}

absl::StatusOr<ArchiveReader::SomeSteps> UnitedReader::ListStepsAfter(
    const std::string& run, std::optional<int64_t> after, size_t most) {
  RP_ASSIGN_OR_RETURN(Live live, AskSteps(run));
  absl::StatusOr<SomeSteps> some = stored_->ListStepsAfter(run, after, most);
  LeaveOutGone(run, &live);
  if (absl::IsNotFound(some.status()) && !live.steps.empty())
    some = SomeSteps();
  RP_RETURN_IF_ERROR(some.status());
  std::optional<int64_t> last;
  if (some->more) last = some->steps.back().step();
  // Limits the live steps to those that fit in the answer.
  std::optional<int64_t> cut;
  size_t counted = 0;
  for (const auto& [id, infos] : live.steps) {
    if (after.has_value() && id.first <= *after) continue;
    if (last.has_value() && id.first > *last) break;
    if (counted >= most && cut.has_value() && id.first != *cut) {
      last = *cut;
      some->more = true;
      break;
    }
    cut = id.first;
    ++counted;
  }
  if (last.has_value()) {
    some->steps.erase(
        std::remove_if(some->steps.begin(), some->steps.end(),
                       [&](const v1::StepInfo& s) { return s.step() > *last; }),
        some->steps.end());
  }
  RP_RETURN_IF_ERROR(Merge(
      run, live,
      [&](int64_t step) {
        return (!after.has_value() || step > *after) &&
               (!last.has_value() || step <= *last);
      },
      &some->steps));
  size_t end = std::min(most, some->steps.size());
  while (end > 0 && end < some->steps.size() &&
         some->steps[end].step() == some->steps[end - 1].step())
    ++end;
  if (end < some->steps.size()) {
    some->steps.resize(end);
    some->more = true;
  }
  return some;
}

struct UnitedReader::LiveRuns {
  struct One {
    std::vector<v1::RunInfo> of_leaves;
    Live live;
  };
  std::map<std::string, One> runs;
};

absl::StatusOr<UnitedReader::LiveRuns> UnitedReader::AskRuns() {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++asked_;
  }
  v1::LiveQuestion question;
  question.set_runs(true);
  LiveRuns all;
  std::set<std::string> silent;
  size_t bytes = 0;
  for (Asked& asked : AskAll(question, &silent)) {
    std::map<std::string, v1::LiveRun> runs;
    absl::Status status;
    RP_RETURN_IF_ERROR(TakeList(
        asked.answer.get(), &bytes,
        [&](v1::LiveAnswer* part) {
          for (v1::LiveRun& untrusted : *part->mutable_runs()) {
            v1::LiveRun& run = runs[untrusted.run().run()];
            if (!run.has_run())
              run.mutable_run()->Swap(untrusted.mutable_run());
            for (v1::StepInfo& step : *untrusted.mutable_steps())
              run.add_steps()->Swap(&step);
          }
        },
        &status));
    if (!status.ok()) {
      silent.insert(asked.leaf.name);
      Miss(asked.leaf, "", std::string(status.message()));
      continue;
    }
    for (auto& [name, run] : runs) {
      LiveRuns::One& one = all.runs[name];
      for (v1::StepInfo& step : *run.mutable_steps()) {
        one.live.steps[{step.step(), step.incarnation()}][asked.leaf.name].Swap(
            &step);
      }
      one.of_leaves.emplace_back().Swap(run.mutable_run());
    }
  }
  for (auto& [name, one] : all.runs) {
    one.live.asked = number;
    one.live.silent = silent;
  }
  return all;
}

absl::StatusOr<std::vector<v1::RunInfo>> UnitedReader::ListRuns() {
  RP_ASSIGN_OR_RETURN(LiveRuns all, AskRuns());
  RP_ASSIGN_OR_RETURN(std::vector<v1::RunInfo> runs, stored_->ListRuns());
  std::map<std::string, v1::RunInfo> by_name;
  for (v1::RunInfo& run : runs) by_name[run.run()].Swap(&run);
  for (auto& [name, one] : all.runs) {
    const absl::StatusOr<std::vector<v1::StepInfo>> steps =
        UniteSteps(name, IntSet(), std::move(one.live));
    // The store has already reported runs that it cannot read.
    if (absl::IsNotFound(steps.status()) ||
        sealed::IsOfOneObject(steps.status()))
      continue;
    RP_RETURN_IF_ERROR(steps.status());
    v1::RunInfo& run = by_name[name];
    uint64_t stored_bytes = 0, offered_bytes = 0;
    int64_t created_ns = INT64_MAX;
    for (const v1::RunInfo& info : one.of_leaves) {
      stored_bytes += info.stored_payload_bytes();
      offered_bytes += info.offered_payload_bytes();
      created_ns = std::min(created_ns, info.created_unix_ns());
    }
    if (!run.run().empty())
      created_ns = std::min(created_ns, run.created_unix_ns());
    run.set_run(name);
    sealed::RunCounter counter;
    for (const v1::StepInfo& step : *steps) counter.Add(step);
    counter.Describe(&run);
    run.set_created_unix_ns(created_ns);
    // A leaf counts what it has, stored or not; the store also counts the data
    // of disconnected leaves.
    run.set_stored_payload_bytes(
        std::max(run.stored_payload_bytes(), stored_bytes));
    run.set_offered_payload_bytes(
        std::max(run.offered_payload_bytes(), offered_bytes));
  }
  std::vector<v1::RunInfo> out;
  for (auto& [name, run] : by_name) out.emplace_back().Swap(&run);
  return out;
}

absl::Status UnitedReader::ForEachIncarnation(const std::string& run,
                                              const IncarnationFn& callback) {
  v1::LiveQuestion question;
  question.set_run(run);
  question.set_incarnations(true);
  std::map<uint64_t, std::map<std::string, v1::IncarnationRow>> live;
  size_t bytes = 0;
  for (Asked& asked : AskAll(question, nullptr)) {
    absl::Status status;
    RP_RETURN_IF_ERROR(TakeList(
        asked.answer.get(), &bytes,
        [&](v1::LiveAnswer* part) {
          for (v1::IncarnationRow& row : *part->mutable_incarnations())
            live[row.identity().incarnation()][asked.leaf.name].Swap(&row);
        },
        &status));
    if (!status.ok()) Miss(asked.leaf, run, std::string(status.message()));
  }
  const absl::Status known = stored_->Renew(run);
  auto accounts = stored_->AccountsByShard(run);
  LeaveOutGone(run, accounts, &live);
  if (!absl::IsNotFound(known) || live.empty()) RP_RETURN_IF_ERROR(known);
  for (auto& [incarnation, of_leaves] : live) {
    for (auto& [leaf, row] : of_leaves) {
      v1::IncarnationRow& stored = accounts[incarnation][leaf];
      if (row.committed_sequence() >= stored.committed_sequence())
        stored.Swap(&row);
    }
  }
  for (auto& [incarnation, of_shards] : accounts) {
    std::vector<v1::IncarnationRow> rows;
    for (auto& [shard, row] : of_shards) rows.push_back(std::move(row));
    callback(sealed::UniteRows(std::move(rows)));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
