# SPDX-License-Identifier: Apache-2.0
"""The mutants of tests/scale/mutants.py: what each breaks, and the narrowest test that must fail with it."""

from __future__ import annotations

import dataclasses
from typing import Union

# What docs/scale.md says is survived.
FAULTS = {
    "killed": "a leaf is killed at each of its calls",
    "proxy": "a network that answers 503, is slow, hangs, cuts, loses answers",
    "away": "the store is away for ten minutes",
    "owners": "two owners of one log",
    "two-leaves": "one rank on two leaves",
    "daemons": "gateway and OSD are killed under load",
    "switch": "a leaf or the root is killed in prepare, when it is decided, in the commit",
    "janitor": "a janitor beside a slow reader and a leaf that sleeps",
    "ledger": "the ledger is exact when a leaf dies",
    "pressure": "a disk that is 70 % and 90 % full",
    "probe": "a store without create-if-absent is refused at the start",
}


@dataclasses.dataclass(frozen=True)
class Gtest:
    """`name` is a filter that one test matches."""
    program: str
    name: str
    seconds: int = 150
    needs_ceph: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.program,)

    def __str__(self) -> str:
        return f"{self.program} {self.name}"


@dataclasses.dataclass(frozen=True)
class Pytest:
    node: str
    targets: tuple[str, ...] = ("rankprobed", "rankprobe", "crash_oracle")
    seconds: int = 300
    needs_ceph: bool = False

    def __str__(self) -> str:
        return self.node


Test = Union[Gtest, Pytest]


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    fault: str
    rule: str
    file: str
    # Stands exactly once in it.
    old: str
    new: str
    test: Test


def store_test(name: str, **more: int) -> Gtest:
    return Gtest("object_store_test", name, **more)


def sealed_test(name: str, **more: int) -> Gtest:
    return Gtest("sealed_test", name, **more)


def control_test(name: str) -> Gtest:
    return Gtest("control_test", name)


def ingest_test(name: str) -> Gtest:
    return Gtest("ingest_test", name)


def ceph_test(name: str, **more: int) -> Pytest:
    return Pytest(f"tests/scale/test_store_faults.py::{name}", needs_ceph=True, **more)


def switch_test(name: str) -> Pytest:
    return Pytest(f"tests/integration/test_switch_faults.py::{name}")


SHARD_LOG = "collector/sealed/shard_log.cc"
SEALER = "collector/sealed/sealer.cc"
DIRECTORY = "collector/object_store/directory_object_store.cc"
S3 = "collector/object_store/s3_object_store.cc"
S3_CALLS = "collector/object_store/s3_calls.cc"
CURL = "collector/object_store/curl_transport.cc"
PROBE = "collector/object_store/store_probe.cc"
READER = "collector/sealed/sealed_reader.cc"
READER_LOG = "collector/sealed/sealed_log.cc"
CLEANER = "collector/sealed/store_cleaner.cc"
PLAN_LOG = "collector/sealed/plan_log.cc"
ROOT_STORE = "collector/sealed/root_registry.h"
ROOT_SERVICE = "collector/rpc/root_service.cc"
UNITE = "collector/sealed/unite.cc"
SWITCH = "collector/control/switch_operation.cc"
REGISTRY = "collector/control/leaf_registry.cc"
PRESSURE = "collector/ingest/disk_pressure.cc"
QUEUE_PRESSURE = "collector/ingest/commit_queue_pressure.cc"
FRAME_WINDOW = "agent/runtime/queue/frame_window.cc"

NOTHING = ""

KILLED = [
    Mutant("entry-before-its-objects", "killed", "nothing is committed before all that it names is there", SHARD_LOG,
           """    RP_RETURN_IF_ERROR(PutObjects(entry));
    const absl::Status put =
        store_->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
    if (!absl::IsAlreadyExists(put)) RP_RETURN_IF_ERROR(put);
""",
           """    const absl::Status put =
        store_->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
    if (!absl::IsAlreadyExists(put)) RP_RETURN_IF_ERROR(put);
    RP_RETURN_IF_ERROR(PutObjects(entry));
""", sealed_test("SealCrash.AtEachCallToTheStore")),
    Mutant("noted-before-it-is-stored", "killed", "what is noted as stored is in the store", SHARD_LOG,
           """    RP_RETURN_IF_ERROR(PutObjects(entry));
""",
           """    RP_RETURN_IF_ERROR(PutObjects(entry));
    RP_RETURN_IF_ERROR(NoteStored(bytes, entry.sequence()));
""", sealed_test("SealCrash.AtEachCallToTheStore")),
    Mutant("own-entry-not-known-after-a-restart", "killed", "an entry with a leaf's own bytes is its own, also for the next process", SHARD_LOG,
           """        if (ours == bytes) return absl::OkStatus();
""", NOTHING, sealed_test("SealCrash.AtEachCallToTheStore")),
    Mutant("decided-before-it-is-synced", "killed", "a set is decided by an entry that is on the disk", SHARD_LOG,
           """  RP_RETURN_IF_ERROR(file->Sync());
""", NOTHING, sealed_test("SealCrash.AtEachCallToTheDisk")),
    Mutant("objects-are-not-named-on-the-disk", "killed", "an object that was put is there when the store's machine has crashed", DIRECTORY,
           """    RP_RETURN_IF_ERROR(file_system_->Rename(upload, path));
    return file_system_->SyncDirectory(parent);
""",
           """    return file_system_->Rename(upload, path);
""", sealed_test("SealCrash.AtEachCallToTheDiskOfTheStore")),
    Mutant("objects-are-not-synced", "killed", "an object that is there after a crash is whole", DIRECTORY,
           """  absl::Status status = file->Append(bytes);
  if (status.ok()) status = file->Sync();
""",
           """  absl::Status status = file->Append(bytes);
""", store_test("DirectoryObjectStore.IsWholeOrAbsentAfterACrashAtEachCall")),
    Mutant("frees-before-it-was-read-back", "killed", "nothing is freed before the entry was read back", SHARD_LOG,
           """    RP_ASSIGN_OR_RETURN(const std::string there,
                        GetObject(store_, key, sealed::kMaxEntryBytes));
""",
           """    const std::string there =
        put.ok() ? bytes
                 : GetObject(store_, key, sealed::kMaxEntryBytes).value_or("");
""", sealed_test("Freeing.AnEntryThatIsNotReadBackFreesNothing")),
    Mutant("frees-what-came-since", "killed", "a step is freed when all of it is stored", SEALER,
           """                        sealed->second.records == info.records() &&
                        (sealed->second.missing_payloads == 0 || none_missing);
""",
           """                        (sealed->second.missing_payloads == 0 || none_missing);
""", sealed_test("Freeing.AStepThatHasMoreThanIsStoredStays")),
    Mutant("frees-a-step-without-its-payload", "killed", "a step is freed when its payloads are stored", SEALER,
           """                        (sealed->second.missing_payloads == 0 || none_missing);
""",
           """                        (sealed->second.missing_payloads < 9 || none_missing);
""", sealed_test("Freeing.AStepWhosePayloadIsNotThereStays")),
    Mutant("an-addendum-forgets-what-is-missing", "killed", "a payload that is missing is sought until it comes, by the next process, too", SEALER,
           """    known.missing_payloads += step.missing_payloads();
""",
           """    known.missing_payloads = step.missing_payloads();
""", sealed_test("Freeing.AnAddendumDoesNotForgetWhatIsMissing")),
]

PROXY = [
    Mutant("503-is-not-tried-again", "proxy", "what may pass is tried again", S3,
           """  verdict.again = verdict.overload || (status >= 500 && status != 501) ||
""",
           """  verdict.again = (status >= 500 && status != 501 && status != 503) ||
""", store_test("S3Client.TriesAgainWhatMayPass")),
    Mutant("503-makes-no-fewer-requests", "proxy", "a store that has too much to do gets fewer requests at once", S3,
           """    if (verdict.overload) pacer_.OnOverload();
""", NOTHING, store_test("S3Client.TriesAgainWhatMayPass")),
    Mutant("all-wait-as-long", "proxy", "whoever waits does so for a random part of it", "collector/object_store/request_pacer.cc",
           """  return std::min(longest, options_.longest_wait) * options_.random();
""",
           """  return std::min(longest, options_.longest_wait);
""", store_test("RequestPacer.WaitsAreSpreadOverALengthThatDoubles")),
    Mutant("slow-is-away", "proxy", "a request that moves much has a second more for each MiB", S3,
           """      static_cast<int64_t>((call.body.size() + call.max_body_bytes) >> 20));
""",
           """      static_cast<int64_t>((call.body.size() + call.max_body_bytes) >> 40));
""", store_test("S3Timeouts.ACallThatMovesMuchHasASecondMoreForEachMiB")),
    Mutant("slow-holds-readers-up", "proxy", "nobody waits for another's request for what is known already", READER,
           """  RP_RETURN_IF_ERROR(Known(key.run));
""",
           """  RP_RETURN_IF_ERROR(Refresh(key.run));
""", sealed_test("Sealing.ARequestOnItsWayHasOthersWaitForNothing", seconds=200)),
    Mutant("a-request-hangs-for-ever", "proxy", "a request ends in its time", S3,
           """  request.timeout = timeout;
""",
           """  request.timeout = timeout * 10000;
""", store_test("S3Client.DoesNotWaitForAStoreThatHangs", seconds=40)),
    Mutant("a-hanging-request-is-the-last", "proxy", "a request that has had its time is tried again", S3,
           """    verdict.again = absl::IsUnavailable(response.status()) ||
                    absl::IsDeadlineExceeded(response.status());
""",
           """    verdict.again = absl::IsUnavailable(response.status());
""", store_test("S3Client.DoesNotWaitForAStoreThatHangs", seconds=40)),
    Mutant("a-call-goes-on-for-ever", "proxy", "a call with all its attempts ends in its time", S3,
           """    if (wait >= left() || !options_.sleep(wait)) {
""",
           """    if (!options_.sleep(wait)) {
""", store_test("S3Client.GivesUpAtItsDeadline", seconds=40)),
    Mutant("a-cut-answer-passes", "proxy", "an answer that is cut is none", CURL,
           """    if (code != CURLE_OK) return StatusOf(code);
""",
           """    if (code != CURLE_OK && status == 0) return StatusOf(code);
""", store_test("S3Client.TriesAgainWhatMayPass")),
    Mutant("no-comparing-of-own-bytes", "proxy", "who is told that his entry is there looks whether it is his own", SHARD_LOG,
           """    if (there != bytes) {
""",
           """    if (there != bytes || !put.ok()) {
""", sealed_test("SealCrash.AStoreThatGoesAwayAndComesBack")),
    Mutant("no-comparing-of-own-bytes-over-ceph", "proxy", "who is told that his entry is there looks whether it is his own", SHARD_LOG,
           """    if (there != bytes) {
""",
           """    if (there != bytes || !put.ok()) {
""", ceph_test("test_every_commit_whose_answer_is_lost_is_the_leafs_own")),
    Mutant("status-of-a-completion-is-believed", "proxy", "an error behind the status of a completion is one", S3,
           """  if (IsSuccess(status) && error.code.empty()) return verdict;
""",
           """  if (IsSuccess(status)) return verdict;
""", store_test("S3Parts.DoesNotBelieveTheStatusOfACompletion")),
    Mutant("a-lost-completion-is-a-failure", "proxy", "an upload whose completion was not answered is looked for", S3_CALLS,
           """  return there.object_bytes == size ? absl::OkStatus() : status;
""",
           """  return status;
""", store_test("S3Parts.SeesThatACompletionWhoseAnswerWasLostIsDone")),
]

AWAY = [
    Mutant("ends-at-the-first-failure", "away", "a leaf goes on asking", "collector/server/uploader.cc",
           """  Tell(status);
  return true;
""",
           """  Tell(status);
  return false;
""", Gtest("server_test", "UploaderTest.GoesOnWhenAStoreThatRefusedTakesAgain")),
    Mutant("waits-for-ever-at-its-end", "away", "a leaf that is told to stop does so without its store", "collector/server/uploader.cc",
           """  while (Round(over) && failing_ && !over() &&
""",
           """  while (Round([&] { return over() && false; }) && failing_ &&
""", Gtest("server_test", "UploaderTest.StopsWithoutAStore", seconds=40)),
    Mutant("a-refusal-is-a-fence", "away", "a store that refuses fences nobody", SEALER,
           """  if (run->log->fenced()) report->fenced = true;
""",
           """  if (absl::IsFailedPrecondition(entry.status())) report->fenced = true;
""", sealed_test("Sealing.IsNotFencedByAStoreThatRefuses")),
    Mutant("a-failed-pass-is-done", "away", "what could not be stored is said, and done again", SEALER,
           """  RP_RETURN_IF_ERROR(entry.status());
  ++report->sets;
""",
           """  if (!entry.ok()) return absl::OkStatus();
  ++report->sets;
""", sealed_test("Sealing.KeepsAllWhileTheStoreIsAwayForTenMinutes")),
]

OWNERS = [
    Mutant("no-fence", "owners", "whose entry is another's stores nothing more", SHARD_LOG,
           """  if (entry.ok() && entry->has_sweep()) {
""",
           """  if (entry.ok()) {
""", sealed_test("Sealing.FencesTheCopyOfACollector")),
    Mutant("a-late-copy-goes-on", "owners", "a copy that comes when the other has gone on is fenced as well", SHARD_LOG,
           """          RP_RETURN_IF_ERROR(GiveWay(bytes));
""", NOTHING, sealed_test("Sweeping.ACopyIsFencedAndNotSwept")),
    Mutant("the-log-is-overwritten", "owners", "an entry is put if there is none", SHARD_LOG,
           """        store_->Put(key, bytes, ObjectStore::PutMode::kIfAbsent);
""",
           """        store_->Put(key, bytes, ObjectStore::PutMode::kReplace);
""", sealed_test("Sealing.FencesTheCopyOfACollector")),
    Mutant("put-without-if-none-match", "owners", "create-if-absent is asked of the store", S3_CALLS,
           """  if (mode == PutMode::kIfAbsent)
    call.headers.emplace_back("If-None-Match", "*");
""",
           """  (void)mode;
""", store_test("S3Client.SendsWhatItSigns")),
    Mutant("put-without-if-none-match-over-ceph", "owners", "create-if-absent is asked of the store", S3_CALLS,
           """  if (mode == PutMode::kIfAbsent)
    call.headers.emplace_back("If-None-Match", "*");
""",
           """  (void)mode;
""", store_test("Stores/Conformance.HasOneWinnerOfManyRacers/s3", needs_ceph=True)),
    Mutant("a-directory-replaces", "owners", "create-if-absent is link(2)", DIRECTORY,
           """  if (mode == PutMode::kReplace) {
""",
           """  if (mode == PutMode::kReplace || mode == PutMode::kIfAbsent) {
""", store_test("Stores/Conformance.HasOneWinnerOfManyRacers/directory")),
    Mutant("a-loser-relies-on-what-may-go", "owners", "who is told that it is there finds it there after a crash", DIRECTORY,
           """  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(parent));
  if (!linked.ok()) return absl::AlreadyExistsError(key);
""",
           """  if (!linked.ok()) return absl::AlreadyExistsError(key);
  RP_RETURN_IF_ERROR(file_system_->SyncDirectory(parent));
""", store_test("DirectoryObjectStore.WhoLosesARaceSyncsTheWinner")),
    Mutant("no-fence-over-ceph", "owners", "whose entry is another's stores nothing more", SHARD_LOG,
           """  if (entry.ok() && entry->has_sweep()) {
""",
           """  if (entry.ok()) {
""", ceph_test("test_of_two_owners_of_a_log_one_is_fenced", seconds=600)),
]

TWO_LEAVES = [
    Mutant("one-leafs-part-alone", "two-leaves", "what two leaves have of a step is one step", READER_LOG,
           """    if (entry.has_records()) step.sources.push_back({object, i, log});
""",
           """    if (entry.has_records() && step.sources.empty())
      step.sources.push_back({object, i, log});
""", sealed_test("UniteTest.TwoCollectorsSealWhatOneWould")),
    Mutant("records-count-twice", "two-leaves", "a record counts once, whoever has it", UNITE,
           """  if (orders_.insert(record.order()).second) CountRecord(record, ignore, &all_);
""",
           """  CountRecord(record, ignore, &all_);
""", sealed_test("UniteTest.TwoCollectorsSealWhatOneWould")),
    Mutant("two-processes-are-one-rank", "two-leaves", "a second process of a rank is refused while the first is there",
           "collector/control/session_table.cc",
           """        agent->identity.rank() != identity.rank() ||
        agent->identity.incarnation() == identity.incarnation() ||
""",
           """        agent->identity.rank() != identity.rank() ||
        agent->identity.incarnation() != 0 ||
""", control_test("ControlPlaneTest.TwoProcessesCannotBeOneRank")),
    Mutant("the-second-is-not-told", "two-leaves", "a second process of a rank is told to go, by whichever leaf it came", ROOT_SERVICE,
           """      send(goodbye);
""", NOTHING, Gtest("server_test", "RootLinkTest.ASecondProcessOfARankIsToldToGo")),
    Mutant("a-conflict-is-not-listed", "two-leaves", "of two processes of a rank the export says so", "collector/archive/choose_steps.cc",
           """      if (it != best) chosen.passed_over.emplace_back(*it, *best);
""",
           """      if (it == candidates.end()) chosen.passed_over.emplace_back(*it, *best);
""", Gtest("archive_test", "ExportTest.TheNewestCompleteIncarnationWins")),
    Mutant("a-conflict-is-not-listed-over-ceph", "two-leaves", "of two processes of a rank the export says so", "collector/archive/choose_steps.cc",
           """      if (it != best) chosen.passed_over.emplace_back(*it, *best);
""",
           """      if (it == candidates.end()) chosen.passed_over.emplace_back(*it, *best);
""", ceph_test("test_one_rank_on_two_leaves_is_a_conflict", targets=("rankprobed", "rankprobe", "train_transformer"))),
]

DAEMONS = [
    Mutant("no-connection-is-the-end", "daemons", "a request that finds nobody is tried again, and nobody hears of it", S3,
           """    verdict.again = absl::IsUnavailable(response.status()) ||
                    absl::IsDeadlineExceeded(response.status());
""",
           """    verdict.again = absl::IsDeadlineExceeded(response.status());
""", ceph_test("test_a_daemon_of_the_store_is_killed_under_load[rgw-8]", seconds=500)),
    Mutant("no-answer-is-the-end", "daemons", "a request that hangs is tried again, and nobody hears of it", S3,
           """    verdict.again = absl::IsUnavailable(response.status()) ||
                    absl::IsDeadlineExceeded(response.status());
""",
           """    verdict.again = absl::IsUnavailable(response.status());
""", ceph_test("test_a_daemon_of_the_store_is_killed_under_load[osd-24]", seconds=500)),
]

SWITCHED = [
    Mutant("decided-before-all-are-prepared", "switch", "a plan is decided when all ranks can follow it", SWITCH,
           """  if (saving_ || ranks_.AnyIs(v1::RankSwitch::STATE_UNSPECIFIED)) return;
  bool any = false;
  for (const auto& [session, rank] : ranks_.all()) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
    if (rank.state != v1::RankSwitch::STATE_PREPARED) return;
""",
           """  if (saving_) return;
  bool any = false;
  for (const auto& [session, rank] : ranks_.all()) {
    if (rank.state == v1::RankSwitch::STATE_LOST || rank.left_out) continue;
""", switch_test("test_killed_while_ranks_prepare")),
    Mutant("a-lost-rank-holds-the-others", "switch", "who is lost while ranks prepare holds nobody up", SWITCH,
           """  if (committed_) {
    FinishIfAllSettled();
  } else {
    SaveIfAllPrepared();
  }
""",
           """  if (committed_) FinishIfAllSettled();
""", control_test("ControlPlaneTest.LostRanksDoNotHoldTheOthers")),
    Mutant("ranks-of-a-dead-leaf-are-waited-for", "switch", "ranks of a leaf that has gone are lost to a switch", ROOT_SERVICE,
           """    for (const auto& [leafs, session] : sessions_)
      agents_->Disconnected(session, "its leaf has disconnected");
""", NOTHING, Gtest("server_test", "RootLinkTest.WhatRanksAndRootSayComesThrough")),
    Mutant("commit-before-the-store-has-it", "switch", "no rank hears of a plan that is not in the store", SWITCH,
           """  saving_since_ = actions_.now();
  written_ = false;
""",
           """  saving_since_ = actions_.now();
  written_ = false;
  Decide();
""", switch_test("test_a_root_that_is_killed_before_it_has_decided")),
    Mutant("commit-before-the-disk-has-it", "switch", "no rank hears of a plan that is not on the disk", SWITCH,
           """  saving_since_ = actions_.now();
  written_ = false;
""",
           """  saving_since_ = actions_.now();
  written_ = false;
  Decide();
""", control_test("SlowDiskTest.ACommitThatWasHeardOfSurvives")),
    Mutant("a-root-keeps-its-decision-to-itself", "switch", "a decision is put into the store", ROOT_STORE,
           """    return plans_->Save(key, plan);
""",
           """    (void)key, (void)plan;
    return absl::OkStatus();
""", switch_test("test_killed_when_it_is_decided")),
    Mutant("a-root-does-not-read-what-was-decided", "switch", "a root that comes back has the plan of the store", ROOT_STORE,
           """    return plans_->Load(key);
""",
           """    (void)key;
    return std::optional<v1::PlanSpec>();
""", switch_test("test_killed_when_it_is_decided")),
    Mutant("who-comes-later-is-not-told", "switch", "ranks that have not heard of a plan get it where they come next", ROOT_SERVICE,
           """    if (welcome.has_plan()) {
""",
           """    if (welcome.has_plan() && welcome.degrade() > 0) {
""", Gtest("server_test", "RootLinkTest.WhatRanksAndRootSayComesThrough")),
    Mutant("who-missed-the-commit-is-not-told", "switch", "ranks that have not heard of a plan get it where they come next", ROOT_SERVICE,
           """    if (welcome.has_plan()) {
""",
           """    if (welcome.has_plan() && welcome.degrade() > 0) {
""", switch_test("test_killed_in_the_commit")),
    Mutant("applied-without-a-commit", "switch", "a plan without its commit is not followed", "agent/runtime/session/plan_switcher.cc",
           """    prepared_ = HeldOf(spec, *std::move(plan));
""",
           """    Agree(HeldOf(spec, *std::move(plan)));
""", Gtest("session_test", "PlanSwitcherTest.WithoutItsCommitAPlanIsNeverApplied")),
    Mutant("saved-and-not-agreed-on-stays", "switch", "what was saved and not agreed on is taken back", SWITCH,
           """    if (!committed_ && is_last) actions_.take_back();
""",
           """    if (!committed_ && is_last && !stored_) actions_.take_back();
""", control_test("SlowDiskTest.TheAnswerComesAtTheDeadlineAndThePlanIsTakenBack")),
    Mutant("an-epoch-is-used-again", "switch", "no epoch is used twice", "collector/control/saved_runs.cc",
           """  run->plans.RaiseEpoch(saved.epoch);
""", NOTHING, control_test("SavedRunsTest.AnEpochOfARankThatIsGoneIsNotUsedAgain")),
    Mutant("two-roots-decide", "switch", "of two roots one decides", PLAN_LOG,
           """        store_->Put(object, bytes, ObjectStore::PutMode::kIfAbsent);
""",
           """        store_->Put(object, bytes, ObjectStore::PutMode::kReplace);
""", sealed_test("PlanLogTest.OfTwoRootsOneDecides")),
    Mutant("a-lost-answer-is-another-root", "switch", "a plan with a root's own bytes is its own", PLAN_LOG,
           """      if (there != bytes) {
        return Another(object);
      }
""",
           """      return Another(object);
""", sealed_test("PlanLogTest.AnAnswerThatIsLostIsNoOtherRoot")),
    Mutant("a-number-that-is-free-again-decides", "switch", "a root that slept decides nothing behind the newer versions", PLAN_LOG,
           """    if (!newer->objects.empty()) return Another(object);
""", NOTHING, sealed_test("Cleaning.OldVersionsOfPlansGoAndNoNumberIsUsedTwice")),
]

JANITOR = [
    Mutant("no-grace", "janitor", "what an entry named goes a grace period after it was noted", CLEANER,
           """  const int64_t before = absl::ToUnixNanos(clock_->Now() - options_.grace);
""",
           """  const int64_t before = absl::ToUnixNanos(clock_->Now());
""", sealed_test("Cleaning.WhatIsDeletedGoesAfterTheGracePeriodAndNoSooner")),
    Mutant("no-grace-of-orphans", "janitor", "an orphan goes once it was seen for the grace period", CLEANER,
           """    if (now - first >= absl::ToInt64Nanoseconds(options_.grace))
""",
           """    if (now >= first)
""", sealed_test("Grace.AnOrphanStaysUntilItHasBeenSeenForThatLong")),
    Mutant("no-sweep", "janitor", "no object goes that a leaf may yet commit", CLEANER,
           """    RP_RETURN_IF_ERROR(Sweep(run, log));
""", NOTHING, sealed_test("Cleaning.OrphansGoAndNothingThatIsCommittedLater")),
    Mutant("no-sweep-of-a-leaf-without-entries", "janitor", "a leaf that has put objects and no entry yet is swept as well", CLEANER,
           """    if (sealed::IsHexName(shard)) shards.insert(std::move(shard));
""",
           """    if (shard.empty()) shards.insert(std::move(shard));
""", sealed_test("Cleaning.OrphansGoAndNothingThatIsCommittedLater")),
    Mutant("the-same-names-after-a-sweep", "janitor", "a set that was swept is made anew with objects of other names", SHARD_LOG,
           """  return absl::StrCat(shard_, "/", last_sweep_);
""",
           """  return absl::StrCat(shard_, "/");
""", sealed_test("Sweeping.BeforeEachCallToTheStore")),
    Mutant("packed-before-the-sweep-counts", "janitor", "what was packed before a sweep is packed again", SEALER,
           """    if (!run->log->swept()) break;
""",
           """    if (!run->log->swept() || sweeps >= 0) break;
""", sealed_test("Sweeping.BeforeEachCallToTheStore")),
    Mutant("a-slow-reader-sees-a-gap", "janitor", "a reader of what was removed is told so", READER_LOG,
           """  return absl::FailedPreconditionError(
      absl::StrCat(object, " of ", store_->name(),
""",
           """  return absl::NotFoundError(
      absl::StrCat(object, " of ", store_->name(),
""", sealed_test("StoreDeletion.AReaderOfAnObjectThatWentIsToldSo")),
    Mutant("a-reader-forgets-where-it-was", "janitor", "who found a payload is told that it went, not that there never was one", READER_LOG,
           """            !anew->packs.contains(place->pack->name))
          anew->removed_places.emplace(id, place);
""",
           """            !anew->packs.contains(place->pack->name))
          continue;
""", sealed_test("Grace.AReaderThatFoundAPayloadIsToldThatItWent")),
    Mutant("a-pack-in-use-goes", "janitor", "a pack stays while a step refers to a payload in it", CLEANER,
           """      (needed ? kept : dead).insert(pack.name());
""",
           """      (needed && !index.ok() ? kept : dead).insert(pack.name());
""", sealed_test("Cleaning.APackThatAnotherStepRefersToStays")),
    Mutant("packs-of-the-newest-steps-go", "janitor", "packs of the 64 newest steps stay", CLEANER,
           """constexpr int64_t kKeptSteps = 64;
""",
           """constexpr int64_t kKeptSteps = 0;
""", sealed_test("Grace.PacksOfTheNewestStepsStay")),
]

LEDGER = [
    Mutant("lost-frames-are-not-noted", "ledger", "frames that another leaf had are noted as absent", "collector/rpc/agent_service.cc",
           """      if (const absl::Status status =
              registry_->NoteLostFrames(identity, first - 1);
          !status.ok())
        return status;
""", NOTHING, Pytest("tests/integration/test_root.py::test_what_went_with_a_leaf_is_in_the_ledger")),
    Mutant("frames-nobody-has-are-not-counted", "ledger", "frames that no leaf has are lost", UNITE,
           """  all.set_lost_frames(SaturatingAdd(CountAbsent(all), without_place));
""",
           """  all.set_lost_frames(without_place);
""", sealed_test("UniteTest.FramesThatNobodyHasAreCounted")),
    Mutant("frames-another-has-are-lost", "ledger", "frames that another leaf has are not lost", UNITE,
           """  SetAbsent(held, &all);
""",
           """  (void)SetAbsent;
""", sealed_test("UniteTest.TwoCollectorsSealWhatOneWould")),
    Mutant("the-next-leaf-gets-half-a-payload", "ledger", "another leaf gets payloads from their beginning", FRAME_WINDOW,
           """         frames_.front().offset > 0 &&
         frames_.front().sequence > sequence + 1) {
""",
           """         frames_.front().offset > 0 &&
         frames_.front().sequence > sequence + 1000) {
""", Gtest("queue_test", "FrameQueueTest.AnotherCollectorGetsPayloadsFromTheirBeginning")),
    Mutant("the-next-leaf-gets-no-payload", "ledger", "payloads are kept until the records that refer to them are committed", FRAME_WINDOW,
           """    if (frame.records == nullptr && keep) {
""",
           """    if (frame.records == nullptr && frame.payload == nullptr && keep) {
""", Gtest("queue_test", "FrameQueueTest.PayloadsStayUntilRecordsBehindThemAreCommitted")),
    Mutant("a-silent-leaf-is-named", "ledger", "a leaf without a word for five seconds is not there", REGISTRY,
           """  return leaf.link != 0 && absl::FromChrono(now - leaf.heard) < kSilence;
""",
           """  return leaf.link != 0 && now >= leaf.heard;
""", control_test("LeafRegistryTest.OneThatIsSilentIsNotThere")),
    Mutant("a-leaf-out-of-reach-is-named-again", "ledger", "a rank is not sent back to a leaf that it cannot reach", REGISTRY,
           """    if (!failed.contains(name)) order.emplace_back(Score(hashed, name), name);
""",
           """    order.emplace_back(Score(hashed, name), name);
""", control_test("LeafRegistryTest.ALeafThatARankDoesNotReachIsNotNamedToIt")),
    Mutant("nobody-says-that-a-leaf-is-out-of-reach", "ledger", "a rank says which leaf it cannot reach", "agent/runtime/session/collector_finder.cc",
           """  for (const std::string& leaf : failed_) question.request.add_failed(leaf);
""", NOTHING, Gtest("session_test", "CollectorFinderTest.ALeafThatIsNotReachedForLongIsNamed")),
]

PRESSED = [
    Mutant("at-70-payloads-are-taken", "pressure", "from 70 % on ranks are told to keep payloads", PRESSURE,
           """      return v1::PAYLOAD_CREDIT_NOT_NOW;
""",
           """      return v1::PAYLOAD_CREDIT_TAKEN;
""", ingest_test("CommitQueuePressureTest.RecordsGoOnAndPayloadsAreCountedByTheirEntry")),
    Mutant("at-90-as-at-70", "pressure", "from 90 % on nothing but records is taken", PRESSURE,
           """    return v1::DiskState::LEVEL_FULL;
""",
           """    return v1::DiskState::LEVEL_HIGH;
""", ingest_test("CommitQueuePressureTest.WhatHasBegunEndsAsLongAsThereIsRoom")),
    Mutant("of-the-whole-disk", "pressure", "percent are of what may be written", PRESSURE,
           """  const uint64_t left = *free - std::min(*free, options_.min_free_bytes);
""",
           """  const uint64_t left = *free;
""", ingest_test("DiskPressureTest.FullIsWhereWritingStops")),
    Mutant("what-is-sent-all-the-same-is-stored", "pressure", "a payload that comes all the same is refused", QUEUE_PRESSURE,
           """      if (!HasRoomFor(*t.upload, frame.chunk())) {
""",
           """      if (false && !HasRoomFor(*t.upload, frame.chunk())) {
""", ingest_test("CommitQueuePressureTest.RecordsGoOnAndPayloadsAreCountedByTheirEntry")),
    Mutant("left-out-and-not-counted", "pressure", "each payload that is left out is in the ledger", QUEUE_PRESSURE,
           """      payload->set_lost(v1::LOSS_REASON_COLLECTOR_DISK);
""", NOTHING, ingest_test("CommitQueuePressureTest.RecordsGoOnAndPayloadsAreCountedByTheirEntry")),
    Mutant("ranks-wait-each-time", "pressure", "a rank waits once for room, and then no more", "agent/runtime/queue/byte_budget.cc",
           """    waited_for_collector_ = Await(decided) != v1::LOSS_REASON_UNSPECIFIED;
""",
           """    (void)Await(decided);
""", Gtest("queue_test", "FrameQueueCreditTest.BlockWaitsOnceForRoom")),
    Mutant("nobody-tells-the-ranks", "pressure", "ranks hear of it while they are connected", "collector/server/server.cc",
           """    if (commits_ != nullptr) commits_->TellPayloadCredit();
""", NOTHING, Gtest("collector_faults_test", "DiskPressureServerTest.ARankThatIsSilentHearsOfRoom")),
    Mutant("the-root-does-not-say-whose-disk", "pressure", "the root names the leaf whose disk is full", REGISTRY,
           """    if (leaf.disk.has_value()) *response.add_disks() = *leaf.disk;
""", NOTHING, control_test("LeafRegistryTest.SaysWhoseDiskIsFull")),
]

PROBED = [
    Mutant("two-winners-will-do", "probe", "a store with two winners is refused", PROBE,
           """  if (winners > 1) {
""",
           """  if (winners > racers) {
""", store_test("StoreProbe.RefusesOneThatIgnoresTheCondition")),
    Mutant("any-winner-will-do", "probe", "a store that has another's bytes than the winner's is refused", PROBE,
           """  if (winners == 1 && there != Body(winner, bytes))
""",
           """  if (winners == 1 && there.size() != Body(winner, bytes).size())
""", store_test("StoreProbe.RefusesOneThatTellsTheWrongRacer")),
    Mutant("nobody-asks", "probe", "a leaf and a root ask before they take anything", "collector/server/main.cc",
           """  if (config.role != "reader") {
""",
           """  if (config.role == "janitor") {
""", Pytest("tests/integration/test_store_probe.py", targets=("rankprobed",))),
]

MUTANTS = KILLED + PROXY + AWAY + OWNERS + TWO_LEAVES + DAEMONS + SWITCHED + JANITOR + LEDGER + PRESSED + PROBED
