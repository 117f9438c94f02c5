// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/frame_validator.h"

#include "absl/strings/str_cat.h"
#include "collector/ingest/refusal.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/io/crc32c.h"
#include "common/records/call_values.h"
#include "common/text/json_check.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxDebugPathBytes = 4096;
constexpr int kMaxMeshDepth = 16;
constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 40;
constexpr int kMaxOffers = 256;

absl::Status CheckName(absl::string_view name, absl::string_view what) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", name.size(), " bytes; 1 to ", kMaxNameBytes,
                     " are legal"));
  }
  return absl::OkStatus();
}

absl::Status CheckCall(const v1::CallPhase& call) {
  RP_RETURN_IF_ERROR(CheckName(call.entry(), "an entry name"));
  if (call.kind() == v1::CALL_KIND_UNSPECIFIED)
    return absl::InvalidArgumentError("a call has no kind");
  if (NestedMessages(call) > kMaxValueMessages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a value of ", call.entry().substr(0, 200), " is nested deeper than ",
        kMaxValueMessages / kListMessages, " lists or ",
        kMaxValueMessages / kMapMessages, " dicts"));
  }
  if (call.debug_path().size() > kMaxDebugPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path of a debug value has ", call.debug_path().size(),
                     " bytes; ", kMaxDebugPathBytes, " are legal"));
  }
  absl::Status status;
  ForEachTensor(call, [&](const v1::TensorSummary& tensor) {
    // Checked because it is copied into dump.json.
    const std::string& mesh = tensor.device_mesh_json();
    if (!mesh.empty() &&
        (mesh.size() > kMaxMeshBytes || !IsJsonText(mesh, kMaxMeshDepth)))
      status = absl::InvalidArgumentError("a device mesh is not JSON");
    for (const auto* sizes : {&tensor.shape(), &tensor.global_shape()}) {
      if (sizes->size() > kMaxDimensions)
        status = absl::InvalidArgumentError("a tensor has over 64 dimensions");
      for (const int64_t size : *sizes) {
        if (size < 0)
          status = absl::InvalidArgumentError("a tensor has a negative size");
      }
    }
    if (tensor.extra_size() > kMaxExtraStatistics)
      status = absl::InvalidArgumentError("a tensor has over 32 statistics");
    if (tensor.has_payload() &&
        (tensor.payload().length_bytes() > kMaxPayloadBytes ||
         (tensor.payload().lost() == v1::LOSS_REASON_UNSPECIFIED &&
          tensor.payload().digest().size() != kPayloadDigestBytes))) {
      status = absl::InvalidArgumentError(
          "a payload reference has impossible lengths");
    }
  });
  return status;
}

absl::Status CheckRequests(const v1::StepRequests& step) {
  if (step.requests_size() > kMaxStepRequests)
    return absl::InvalidArgumentError("a step names over 1024 requests");
  for (const v1::RequestRows& rows : step.requests()) {
    if (rows.id().size() > kMaxRequestIdBytes)
      return absl::InvalidArgumentError("a request's id is over 256 bytes");
    if (rows.begin() < 0 || rows.end() < rows.begin() ||
        rows.end() > step.rows())
      return absl::InvalidArgumentError("a request's rows are impossible");
  }
  return absl::OkStatus();
}

absl::Status CheckRunCard(const v1::RunCard& card) {
  if (card.facts_size() > kMaxRunFacts)
    return absl::InvalidArgumentError("a run card has over 1024 facts");
  for (const v1::RunFact& fact : card.facts()) {
    if (fact.section().empty() ||
        fact.section().size() > kMaxFactSectionBytes || fact.name().empty() ||
        fact.name().size() > kMaxFactNameBytes ||
        fact.value().size() > kMaxFactValueBytes) {
      return absl::InvalidArgumentError(
          "a run card has a fact without a name, or one that is too long");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRecord(const v1::Record& record) {
  switch (record.body_case()) {
    case v1::Record::kCall:
      return CheckCall(record.call());
    case v1::Record::kStackUse:
      return CheckName(record.stack_use().entry(), "a stack's entry name");
    case v1::Record::kEdge:
      return CheckName(record.edge().entry(), "a construct entry name");
    case v1::Record::kStepBegin:
      if (record.step_begin().extra_statistics_size() > kMaxExtraStatistics)
        return absl::InvalidArgumentError("a step has over 32 statistics");
      return CheckRequests(record.step_begin().requests());
    case v1::Record::kStack:
      if (record.stack().frames_size() > kMaxStackFrames)
        return absl::InvalidArgumentError("a stack is too deep");
      return absl::OkStatus();
    case v1::Record::kRunCard:
      return CheckRunCard(record.run_card());
    case v1::Record::BODY_NOT_SET:
      return absl::InvalidArgumentError("a record is empty");
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckChunk(const v1::PayloadChunk& chunk, bool own_checksum) {
  if (chunk.digest().size() != kPayloadDigestBytes)
    return absl::InvalidArgumentError("a chunk's digest is not 16 bytes");
  if (chunk.data().empty())
    return absl::InvalidArgumentError("a chunk is empty");
  if (chunk.length_bytes() > kMaxPayloadBytes)
    return absl::InvalidArgumentError("a payload is over 2^40 bytes");
  if (chunk.offset_bytes() > chunk.length_bytes() ||
      chunk.data().size() > chunk.length_bytes() - chunk.offset_bytes()) {
    return absl::InvalidArgumentError("a chunk reaches beyond its payload");
  }
  if (!own_checksum && Crc32c(chunk.data()) != chunk.crc32c())
    return absl::InvalidArgumentError("a chunk does not match its checksum");
  return absl::OkStatus();
}

absl::Status CheckOffers(const v1::PayloadOffers& offers) {
  if (offers.digests_size() == 0 || offers.digests_size() > kMaxOffers ||
      offers.digests_size() != offers.length_bytes_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        offers.digests_size(), " payloads with ", offers.length_bytes_size(),
        " lengths are offered; 1 to ", kMaxOffers, " are legal"));
  }
  for (const std::string& digest : offers.digests()) {
    if (digest.size() != kPayloadDigestBytes)
      return absl::InvalidArgumentError("an offered digest is not 16 bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlace(const v1::UploadFrame& frame,
                        uint64_t expected_sequence) {
  if (frame.has_offers()) {
    return frame.sequence() == 0
               ? CheckOffers(frame.offers())
               : absl::InvalidArgumentError("offers have a sequence number");
  }
  if (frame.sequence() == 0)
    return absl::InvalidArgumentError("a frame has no sequence number");
  if (frame.sequence() > expected_sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame ", frame.sequence(), " came where ",
                     expected_sequence, " was expected"));
  }
  if (frame.has_open())
    return absl::InvalidArgumentError("the upload is open already");
  return absl::OkStatus();
}

absl::Status CheckContent(const v1::UploadFrame& frame, const FrameSize& size,
                          bool own_checksum) {
  // Also checked if the frame is small now, because parsing may have allocated
  // more and discarded it.
  if (const uint64_t bytes = size.memory - size.encoded;
      bytes > kMaxDecodedBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        frame.batch().records_size(), " records of one frame take ", bytes,
        " bytes of memory; at most ", kMaxDecodedBytes, " are taken"));
  }
  // Refused with the reason that its agent gives, which is written to the log.
  if (frame.has_undeliverable()) {
    return absl::DataLossError(
        frame.undeliverable().reason().substr(0, kMaxRefusalReasonBytes));
  }
  if (frame.has_chunk()) return CheckChunk(frame.chunk(), own_checksum);
  if (frame.has_batch()) {
    if (!IsStep(frame.batch().step())) {
      return absl::InvalidArgumentError(
          absl::StrCat("a record batch is of step ", frame.batch().step(),
                       "; 0 .. ", kMaxStep, " are legal"));
    }
    for (const v1::Record& record : frame.batch().records())
      RP_RETURN_IF_ERROR(CheckRecord(record));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
