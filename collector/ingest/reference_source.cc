// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/reference_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/step_range.h"
#include "common/records/reference_tensor.h"

namespace rankprobe {
namespace {

constexpr size_t kMessageBytes = 256 << 10;

bool IsForward(const v1::CallPhase& call) {
  return call.kind() == v1::CALL_KIND_API_FORWARD ||
         call.kind() == v1::CALL_KIND_MODULE_FORWARD;
}

void AddTensors(const v1::ValueList& values, bool output,
                v1::ReferenceEntry* entry) {
  for (int i = 0; i < values.items_size(); ++i) {
    if (!IsReferenceTensor(values.items(i))) continue;
    const v1::TensorSummary& tensor = values.items(i).tensor();
    v1::ReferenceTensor* const added = entry->add_tensors();
    added->set_output(output);
    added->set_position(static_cast<uint32_t>(i));
    *added->mutable_shape() = tensor.shape();
    if (tensor.checksum().has_crc32())
      added->set_crc32(tensor.checksum().crc32());
  }
}

std::string Where(const v1::ReferenceRequest& request) {
  return absl::StrCat(
      "run \"", request.run(), "\", step ", request.step(), ", ",
      request.has_rank() ? absl::StrCat("rank ", request.rank())
                         : std::string("a process without a rank"));
}

// Returns nothing if this process did not record the step.
absl::StatusOr<std::vector<v1::ReferenceChunk>> ReadStep(ArchiveReader* archive,
                                                         const StepKey& key,
                                                         size_t max_bytes) {
  std::vector<v1::ReferenceChunk> chunks;
  size_t chunk_bytes = 0, all_bytes = 0;
  RP_RETURN_IF_ERROR(archive->ForEachRecord(
      key, [&](const v1::Record& record) -> absl::Status {
        if (chunks.empty()) chunks.emplace_back();
        if (!record.has_call() || !IsForward(record.call()))
          return absl::OkStatus();
        const v1::CallPhase& call = record.call();
        v1::ReferenceEntry entry;
        entry.set_entry(call.entry());
        entry.set_has_inputs(call.has_input_args());
        entry.set_has_outputs(call.has_output());
        AddTensors(call.input_args(), /*output=*/false, &entry);
        AddTensors(call.output(), /*output=*/true, &entry);
        const size_t bytes = entry.ByteSizeLong();
        all_bytes += bytes;
        if (all_bytes > max_bytes) {
          return absl::ResourceExhaustedError(absl::StrCat(
              "the reference step has over ", max_bytes, " bytes"));
        }
        if (chunk_bytes + bytes > kMessageBytes && chunk_bytes > 0) {
          chunks.emplace_back();
          chunk_bytes = 0;
        }
        chunk_bytes += bytes;
        *chunks.back().add_entries() = std::move(entry);
        return absl::OkStatus();
      }));
  return chunks;
}

}  // namespace

absl::StatusOr<std::vector<v1::ReferenceChunk>> ReadReference(
    ArchiveReader* archive, const v1::ReferenceRequest& request,
    size_t max_bytes) {
  if (request.run().empty() || request.run().size() > 255 ||
      !IsStep(request.step()))
    return absl::InvalidArgumentError("a reference needs a run and a step");
  std::vector<v1::IncarnationRow> rows;
  RP_RETURN_IF_ERROR(archive->ForEachIncarnation(
      request.run(), [&](const v1::IncarnationRow& row) {
        if (row.identity().has_rank() == request.has_rank() &&
            (!request.has_rank() || row.identity().rank() == request.rank()))
          rows.push_back(row);
      }));
  std::sort(rows.begin(), rows.end(),
            [](const v1::IncarnationRow& a, const v1::IncarnationRow& b) {
              return a.updated_unix_ns() > b.updated_unix_ns();
            });
  std::vector<v1::ReferenceChunk> found;
  for (const v1::IncarnationRow& row : rows) {
    StepKey key;
    key.run = request.run();
    key.step = request.step();
    if (request.has_rank()) key.rank = request.rank();
    key.pid = row.identity().pid();
    key.incarnation = row.identity().incarnation();
    RP_ASSIGN_OR_RETURN(std::vector<v1::ReferenceChunk> chunks,
                        ReadStep(archive, key, max_bytes));
    if (chunks.empty()) continue;
    if (request.has_rank()) return chunks;
    if (!found.empty()) {
      return absl::NotFoundError(
          absl::StrCat(Where(request),
                       ": there are several, and it is unknown which one is "
                       "meant"));
    }
    found = std::move(chunks);
  }
  if (found.empty())
    return absl::NotFoundError(
        absl::StrCat("the archive has no ", Where(request)));
  return found;
}

}  // namespace rankprobe
