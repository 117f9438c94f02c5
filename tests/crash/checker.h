// SPDX-License-Identifier: Apache-2.0
// Compares the archive with the answers that the agents received.
// Not thread-safe. Failure: a list of differences for a person.
#ifndef RANKPROBE_TESTS_CRASH_CHECKER_H_
#define RANKPROBE_TESTS_CRASH_CHECKER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "rankprobe/v1/archive.grpc.pb.h"

namespace rankprobe::crash {

class Checker {
 public:
  Checker(const std::string& collector, uint64_t seed, bool kept,
          bool small = false);

  // `states`: the state file of each rank. Every acked step must be there, bit
  // by bit and once; one that is pending may be there in parts, but nothing
  // wrong. Steps that passed once are looked at again only by Verify.
  void Check(const std::vector<std::string>& states);
  // rankprobe verify --read-data.
  void Verify();

  uint64_t steps_checked() const { return steps_checked_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  using Place = std::pair<int64_t, int64_t>;  // rank, step
  // The steps with this mark in the state file of each rank.
  static std::set<Place> Marked(const std::vector<std::string>& states,
                                char wanted);
  void Fault(std::string text);
  void CheckLedger(const v1::StepLedger& ledger, const std::set<Place>& acked);
  void CheckStep(int64_t rank, int64_t step);
  bool CheckPayload(const std::string& place, const v1::PayloadRef& payload,
                    const std::string& expected);

  const uint64_t seed_;
  const bool kept_, small_;
  const std::unique_ptr<v1::ArchiveService::Stub> archive_;
  std::set<Place> passed_;
  std::set<std::string> payloads_passed_;
  uint64_t steps_checked_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace rankprobe::crash

#endif  // RANKPROBE_TESTS_CRASH_CHECKER_H_
