// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/reference/reference_dump.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/runtime/reference/reference_json.h"
#include "common/base/status_macros.h"
#include "common/records/reference_tensor.h"

namespace rankprobe {
namespace {

// Exports that are written in place leave no other directory.
absl::StatusOr<std::string> RankDirectory(FileSystem* file_system,
                                          const std::string& step_directory,
                                          std::optional<int64_t> rank) {
  const auto names = file_system->List(step_directory);
  if (!names.ok()) {
    return absl::NotFoundError(
        absl::StrCat("the reference has no ", step_directory));
  }
  if (rank.has_value()) {
    std::string name = absl::StrCat("rank", *rank);
    if (!absl::c_linear_search(*names, name)) {
      return absl::NotFoundError(
          absl::StrCat("the reference has no ", name, " in ", step_directory));
    }
    return name;
  }
  std::string found;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, "proc")) continue;
    if (!found.empty()) {
      return absl::NotFoundError(absl::StrCat(
          step_directory,
          " has several proc directories: which one this process compares "
          "with is not known without a rank"));
    }
    found = name;
  }
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "the reference has no proc directory in ", step_directory));
  }
  return found;
}

bool SameShape(const v1::TensorSummary& tensor,
               const std::vector<int64_t>& shape) {
  return absl::c_equal(tensor.shape(), shape);
}

}  // namespace

absl::Status CheckReferencePath(const Plan& plan, FileSystem* file_system) {
  if (plan.bench_path.empty() || !plan.ReferenceRun().empty())
    return absl::OkStatus();
  if (!file_system->Exists(plan.bench_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor.bench_path: \"", plan.bench_path,
                     "\" does not exist; a dump directory or run:NAME"));
  }
  if (!file_system->List(plan.bench_path).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor.bench_path: \"", plan.bench_path,
                     "\" is not a directory that can be read"));
  }
  return absl::OkStatus();
}

absl::Status ReferenceDump::LoadDirectory(FileSystem* file_system,
                                          const std::string& directory,
                                          int64_t step,
                                          std::optional<int64_t> rank) {
  Clear();
  const std::string in_step = absl::StrCat(directory, "/step", step);
  RP_ASSIGN_OR_RETURN(const std::string name,
                      RankDirectory(file_system, in_step, rank));
  absl::Status status = ReadReferenceJson(
      file_system, absl::StrCat(in_step, "/", name, "/dump.json"),
      kMaxFileBytes,
      [this](const v1::ReferenceEntry& entry) { return Add(entry); });
  if (status.ok()) status = CheckUsable();
  if (!status.ok()) Clear();
  return status;
}

void ReferenceDump::Clear() {
  entries_.clear();
  tensors_ = with_md5_ = 0;
}

absl::Status ReferenceDump::Add(const v1::ReferenceEntry& untrusted) {
  if (untrusted.entry().empty() || untrusted.entry().size() > kMaxNameBytes)
    return absl::OkStatus();
  const auto tensors = static_cast<size_t>(untrusted.tensors_size());
  if (entries_.size() >= kMaxEntries || tensors > kMaxTensors - tensors_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the reference has over ", kMaxEntries, " entries or ",
                     kMaxTensors, " tensors in this step"));
  }
  Entry& entry = entries_[untrusted.entry()];
  if (untrusted.has_inputs()) entry.inputs.clear();
  if (untrusted.has_outputs()) entry.outputs.clear();
  for (const v1::ReferenceTensor& tensor : untrusted.tensors()) {
    if (static_cast<size_t>(tensor.shape_size()) > kMaxDimensions) continue;
    Tensor& added =
        (tensor.output() ? entry.outputs : entry.inputs).emplace_back();
    added.position = tensor.position();
    if (tensor.has_crc32()) added.crc32 = tensor.crc32();
    added.shape.assign(tensor.shape().begin(), tensor.shape().end());
    with_md5_ += tensor.has_crc32() ? 1 : 0;
  }
  tensors_ += tensors;
  return absl::OkStatus();
}

absl::Status ReferenceDump::CheckUsable() const {
  if (tensors_ == 0 || with_md5_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the reference was not recorded with summary_mode md5");
}

const ReferenceDump::Entry* ReferenceDump::Find(absl::string_view entry) const {
  const auto it = entries_.find(entry);
  return it == entries_.end() ? nullptr : &it->second;
}

bool ReferenceDump::InputsMatch(absl::string_view name,
                                const v1::ValueList& inputs) const {
  const Entry* const entry = Find(name);
  if (entry == nullptr) return false;
  size_t met = 0;
  for (int i = 0; i < inputs.items_size(); ++i) {
    if (!IsReferenceTensor(inputs.items(i))) continue;
    const v1::TensorSummary& tensor = inputs.items(i).tensor();
    const auto it = absl::c_find_if(entry->inputs, [&](const Tensor& t) {
      return t.position == static_cast<uint32_t>(i);
    });
    if (it == entry->inputs.end() || !SameShape(tensor, it->shape) ||
        !tensor.checksum().has_crc32() ||
        it->crc32 != tensor.checksum().crc32())
      return false;
    ++met;
  }
  return met == entry->inputs.size();
}

std::optional<std::string> ReferenceDump::Difference(
    absl::string_view name, const v1::ValueList& outputs) const {
  const Entry* const entry = Find(name);
  if (entry == nullptr) return std::nullopt;
  for (const Tensor& reference : entry->outputs) {
    if (reference.position >= static_cast<uint32_t>(outputs.items_size()) ||
        !IsReferenceTensor(outputs.items(static_cast<int>(reference.position))))
      continue;
    const v1::TensorSummary& tensor =
        outputs.items(static_cast<int>(reference.position)).tensor();
    if (!SameShape(tensor, reference.shape) || !reference.crc32.has_value() ||
        !tensor.checksum().has_crc32() ||
        tensor.checksum().crc32() == *reference.crc32)
      continue;
    return absl::StrFormat("output %d: md5 %08x, reference %08x",
                           reference.position, tensor.checksum().crc32(),
                           *reference.crc32);
  }
  return std::nullopt;
}

}  // namespace rankprobe
