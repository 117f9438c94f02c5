// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/checker.h"

#include <chrono>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/crash/workload.h"

namespace rankprobe::crash {
namespace {

void Prepare(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::seconds(120));
  context->set_wait_for_ready(true);
}

constexpr size_t kMaxFaults = 20;

// The collector has just been killed and started again: the first call may
// still go into the old connection.
template <typename Call>
grpc::Status Retried(const Call& call) {
  grpc::Status status;
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    Prepare(&context);
    status = call(&context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
  }
  return status;
}

}  // namespace

Checker::Checker(const std::string& collector, uint64_t seed, bool kept,
                 bool small)
    : seed_(seed),
      kept_(kept),
      small_(small),
      archive_(v1::ArchiveService::NewStub(grpc::CreateChannel(
          collector, grpc::InsecureChannelCredentials()))) {}

void Checker::Fault(std::string text) {
  if (faults_.size() < kMaxFaults) faults_.push_back(std::move(text));
}

bool Checker::CheckPayload(const std::string& place,
                           const v1::PayloadRef& payload,
                           const std::string& expected) {
  const std::string id = payload.digest();
  if (payloads_passed_.count(id) > 0) return true;
  v1::GetTensorRequest request;
  request.set_run(kRun);
  request.set_digest(payload.digest());
  request.set_length_bytes(payload.length_bytes());
  std::string data;
  const grpc::Status status = Retried([&](grpc::ClientContext* context) {
    data.clear();
    const auto reader = archive_->GetTensor(context, request);
    v1::TensorBytes piece;
    while (reader->Read(&piece)) data += piece.data();
    return reader->Finish();
  });
  if (!status.ok() || data != expected) {
    Fault(absl::StrCat(place, ": a payload of ", expected.size(), " bytes: ",
                       status.ok() ? "other bytes" : status.error_message()));
    return false;
  }
  payloads_passed_.insert(id);
  return true;
}

void Checker::CheckStep(int64_t rank, int64_t step) {
  const std::string place = absl::StrCat("rank ", rank, " step ", step);
  const std::vector<Payload> payloads =
      PayloadsOf(seed_, rank, step, kept_, small_);
  v1::ListCallsRequest request;
  request.set_run(kRun);
  request.set_step(step);
  request.set_rank(rank);
  int calls = 0;
  std::vector<v1::PayloadRef> found;
  std::string wrong;
  const grpc::Status status = Retried([&](grpc::ClientContext* context) {
    calls = 0;
    found.clear();
    const auto reader = archive_->ListCalls(context, request);
    v1::CallEntry entry;
    while (reader->Read(&entry)) {
      const std::string expected = absl::StrCat("Torch.op.", calls, ".forward");
      if (entry.entry() != expected)
        wrong = absl::StrCat(entry.entry(), " instead of ", expected);
      if (entry.call().output().items_size() == 1) {
        const v1::TensorSummary& tensor =
            entry.call().output().items(0).tensor();
        found.push_back(tensor.payload());
        if (const double norm = NormOf(seed_, rank, step, calls);
            tensor.stats().norm_f() != norm)
          wrong = absl::StrCat(expected, ": Norm ", tensor.stats().norm_f(),
                               " instead of ", norm);
      }
      ++calls;
    }
    return reader->Finish();
  });
  if (!wrong.empty()) return Fault(absl::StrCat(place, ": ", wrong));
  if (!status.ok() || calls != kCallsPerStep ||
      found.size() != static_cast<size_t>(calls)) {
    return Fault(absl::StrCat(place, ": acked, but ", calls, " of ",
                              kCallsPerStep, " calls are there ",
                              status.error_message()));
  }
  for (size_t call = 0; call < found.size(); ++call) {
    const Payload& payload = payloads[call % payloads.size()];
    if (found[call].digest() !=
        std::string(payload.digest.begin(), payload.digest.end()))
      return Fault(absl::StrCat(place, ": another digest"));
    if (!CheckPayload(place, found[call], payload.data)) return;
  }
  ++steps_checked_;
  passed_.insert({rank, step});
}

std::set<Checker::Place> Checker::Marked(const std::vector<std::string>& states,
                                         char wanted) {
  std::set<Place> places;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    std::ifstream file(states[rank]);
    char mark = 0;
    int64_t step = 0;
    while (file >> mark >> step) {
      if (mark == wanted) places.emplace(static_cast<int64_t>(rank), step);
    }
  }
  return places;
}

void Checker::CheckLedger(const v1::StepLedger& ledger,
                          const std::set<Place>& acked) {
  constexpr uint64_t kRecords = kCallsPerStep + 2;
  const Place place(ledger.rank(), ledger.step());
  const std::string text =
      absl::StrCat("rank ", place.first, " step ", place.second, ": ");
  if (ledger.step() < 0)
    return Fault(absl::StrCat(text, ledger.gaps(0).detail()));
  if (ledger.stored_records() > kRecords ||
      (ledger.state() != v1::StepLedger::STATE_OPEN &&
       ledger.stored_records() != kRecords)) {
    Fault(absl::StrCat(text, ledger.stored_records(), " records"));
  }
  if (acked.count(place) > 0 && ledger.state() != v1::StepLedger::STATE_WHOLE) {
    Fault(absl::StrCat(text, "acked and ",
                       v1::StepLedger::State_Name(ledger.state())));
  }
}

void Checker::Check(const std::vector<std::string>& states) {
  const std::set<Place> acked = Marked(states, 'A');
  for (const Place& place : acked) {
    if (passed_.count(place) == 0) CheckStep(place.first, place.second);
  }
  // Nothing twice, and nothing that nobody recorded.
  v1::GetLedgerRequest request;
  request.set_run(kRun);
  std::vector<v1::StepLedger> ledgers;
  const grpc::Status status = Retried([&](grpc::ClientContext* context) {
    ledgers.clear();
    const auto reader = archive_->GetLedger(context, request);
    v1::StepLedger ledger;
    while (reader->Read(&ledger)) ledgers.push_back(ledger);
    return reader->Finish();
  });
  if (!status.ok() && !acked.empty())
    Fault("the ledger: " + status.error_message());
  std::set<Place> seen;
  for (const v1::StepLedger& ledger : ledgers) {
    CheckLedger(ledger, acked);
    if (ledger.step() >= 0) seen.emplace(ledger.rank(), ledger.step());
  }
  // Read last: the agents go on meanwhile.
  const std::set<Place> pending = Marked(states, 'P');
  for (const Place& place : seen) {
    if (pending.count(place) == 0) {
      Fault(absl::StrCat("rank ", place.first, " step ", place.second,
                         ": nobody recorded it"));
    }
  }
}

void Checker::Verify() {
  v1::VerifyRequest request;
  request.set_read_data(true);
  v1::VerifyReport report;
  const grpc::Status status = Retried([&](grpc::ClientContext* context) {
    report.Clear();
    const auto reader = archive_->Verify(context, request);
    while (reader->Read(&report)) {
    }
    return reader->Finish();
  });
  if (!status.ok() || !report.finished())
    Fault("verify: " + status.error_message());
  if (report.missing_payloads() > 0) {
    Fault(absl::StrCat("verify: ", report.missing_payloads(),
                       " payloads are referred to and not there"));
  }
  for (const std::string& fault : report.faults()) Fault("verify: " + fault);
}

}  // namespace rankprobe::crash
