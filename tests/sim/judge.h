// SPDX-License-Identifier: Apache-2.0
// Compares the archive with the answers to the ranks and the operator, by the
// rules of tests/crash/checker.h and tests/churn: what was acknowledged is there
// once, bit by bit; what is missing the ledger names, and it adds up; one epoch
// is one plan, and begins at the step that was announced or later under a name.
// Not thread-safe. Failure: a list of differences for a person.
#ifndef RANKPROBE_TESTS_SIM_JUDGE_H_
#define RANKPROBE_TESTS_SIM_JUDGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collector/store/archive_reader.h"
#include "collector/store/store.h"
#include "tests/sim/facts.h"

namespace rankprobe::sim {

// All bytes are looked at.
v1::VerifyRequest ReadAllData();

class Judge {
 public:
  explicit Judge(const Facts* facts);

  void CheckArchive(ArchiveReader* archive);
  // What the files say of themselves.
  void CheckFiles(Store* store);
  void CheckReport(const char* of,
                   const absl::StatusOr<v1::VerifyReport>& report);
  void CheckSwitches();

  uint64_t whole_steps() const { return whole_; }
  uint64_t applied() const { return applied_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void Fault(std::string text);
  bool MayBeMissing(const v1::LedgerGap& gap) const;
  static bool Followed(const Told& told);
  void CheckStep(ArchiveReader* store, const Life& life, int64_t step,
                 const StepFact& fact, const v1::StepInfo* info);
  // Records of the step that are there and right.
  uint64_t CheckRecords(ArchiveReader* store, const std::string& place,
                        const Life& life, int64_t step,
                        const v1::StepInfo& info, bool whole);
  void CheckAnswer(const Told& told);
  void CheckLife(const Life& life,
                 const std::map<uint64_t, const Told*>& by_epoch);

  const Facts* const facts_;
  // Of plans for some steps that were made while the step of no rank, or not of
  // all, was known: each rank counts from its own first step, and what the first
  // one says is taken for all, also for one that is a step behind.
  std::set<uint64_t> loose_epochs_;
  uint64_t whole_ = 0, applied_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace rankprobe::sim

#endif  // RANKPROBE_TESTS_SIM_JUDGE_H_
