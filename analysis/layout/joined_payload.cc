// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/joined_payload.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/layout/layout_execute.h"
#include "common/base/status_macros.h"
#include "dump_format/pt_reader.h"

namespace rankprobe::analysis {
namespace {

std::string PayloadPath(const DumpReader& dump, const JsonValue& record) {
  const JsonValue* const name = record.Find("data_name");
  if (name == nullptr || !absl::EndsWith(name->text, ".pt") ||
      absl::StrContains(name->text, '/') || dump.data_dir().empty()) {
    return "";
  }
  return absl::StrCat(dump.data_dir(), "/", name->text);
}

const DumpReader& DumpOf(const StepRanks& ranks, int64_t rank) {
  size_t i = 0;
  while (ranks.RankOf(i) != rank) ++i;
  return ranks.dump(i);
}

}  // namespace

absl::StatusOr<AlignedTensor> ReadJoined(
    FileSystem* file_system, const StepRanks& ranks,
    absl::Span<const TensorPart> parts,
    absl::Span<const JsonValue* const> records, const JoinPlan& plan) {
  return JoinBytes(plan, [&](size_t i) -> absl::StatusOr<AlignedTensor> {
    const std::string path =
        PayloadPath(DumpOf(ranks, parts[i].rank), *records[i]);
    if (path.empty() || !file_system->Exists(path)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", parts[i].rank, " has no .pt file of it"));
    }
    RP_ASSIGN_OR_RETURN(const PtTensor pt, OpenPt(file_system, path));
    if (pt.shape != parts[i].shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("has another shape in ", path));
    }
    AlignedTensor out;
    out.dtype = pt.dtype;
    out.shape = pt.shape;
    RP_ASSIGN_OR_RETURN(out.bytes, ReadBytes(pt, pt.dtype));
    return out;
  });
}

}  // namespace rankprobe::analysis
