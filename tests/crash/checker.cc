#include "tests/crash/checker.h"

#include <chrono>
#include <fstream>
#include <map>

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

}  // namespace

Checker::Checker(const std::string& collector, uint64_t seed)
    : seed_(seed),
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
  grpc::ClientContext context;
  Prepare(&context);
  v1::GetTensorRequest request;
  request.set_run(kRun);
  request.set_digest(payload.digest());
  request.set_length_bytes(payload.length_bytes());
  const auto reader = archive_->GetTensor(&context, request);
  std::string data;
  v1::TensorBytes piece;
  while (reader->Read(&piece)) data += piece.data();
  const grpc::Status status = reader->Finish();
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
  const std::vector<Payload> payloads = PayloadsOf(seed_, rank, step);
  grpc::ClientContext context;
  Prepare(&context);
  v1::ListCallsRequest request;
  request.set_run(kRun);
  request.set_step(step);
  request.set_rank(rank);
  const auto reader = archive_->ListCalls(&context, request);
  v1::CallEntry entry;
  int calls = 0;
  std::vector<v1::PayloadRef> found;
  while (reader->Read(&entry)) {
    const std::string expected = absl::StrCat("Torch.op.", calls, ".forward");
    if (entry.entry() != expected)
      Fault(absl::StrCat(place, ": ", entry.entry(), " instead of ", expected));
    if (entry.call().output().items_size() == 1)
      found.push_back(entry.call().output().items(0).tensor().payload());
    ++calls;
  }
  const grpc::Status status = reader->Finish();
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

void Checker::Check(const std::vector<std::string>& states) {
  std::set<Place> acked, pending;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    std::ifstream file(states[rank]);
    char mark = 0;
    int64_t step = 0;
    while (file >> mark >> step) {
      const Place place(static_cast<int64_t>(rank), step);
      if (mark == 'P') pending.insert(place);
      if (mark == 'A') acked.insert(place);
    }
  }
  for (const Place& place : acked) {
    if (passed_.count(place) == 0) CheckStep(place.first, place.second);
  }
  // Nothing twice, and nothing that nobody recorded.
  grpc::ClientContext context;
  Prepare(&context);
  v1::GetLedgerRequest request;
  request.set_run(kRun);
  const auto reader = archive_->GetLedger(&context, request);
  v1::StepLedger ledger;
  constexpr uint64_t kRecords = kCallsPerStep + 2;
  while (reader->Read(&ledger)) {
    const Place place(ledger.rank(), ledger.step());
    const std::string text =
        absl::StrCat("rank ", place.first, " step ", place.second, ": ");
    if (ledger.step() < 0) {
      Fault(absl::StrCat(text, ledger.gaps(0).detail()));
      continue;
    }
    if (pending.count(place) == 0) Fault(text + "nobody recorded it");
    if (ledger.stored_records() > kRecords ||
        (ledger.state() != v1::StepLedger::STATE_OPEN &&
         ledger.stored_records() != kRecords)) {
      Fault(absl::StrCat(text, ledger.stored_records(), " records"));
    }
    if (acked.count(place) > 0 &&
        ledger.state() != v1::StepLedger::STATE_WHOLE) {
      Fault(absl::StrCat(text, "acked and ",
                         v1::StepLedger::State_Name(ledger.state())));
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() && !acked.empty())
    Fault("the ledger: " + status.error_message());
}

void Checker::Verify() {
  grpc::ClientContext context;
  Prepare(&context);
  v1::VerifyRequest request;
  request.set_read_data(true);
  const auto reader = archive_->Verify(&context, request);
  v1::VerifyReport report;
  while (reader->Read(&report)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || !report.finished())
    Fault("verify: " + status.error_message());
  if (report.missing_payloads() > 0) {
    Fault(absl::StrCat("verify: ", report.missing_payloads(),
                       " payloads are referred to and not there"));
  }
  for (const std::string& fault : report.faults()) Fault("verify: " + fault);
}

}  // namespace rankprobe::crash
