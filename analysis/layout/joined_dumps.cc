// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/joined_dumps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/layout/step_ranks.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {
namespace {

using Steps = std::map<int64_t, std::vector<DumpPlace>>;

absl::StatusOr<Steps> StepsOf(const DumpLayout& layout) {
  if (layout.debug) {
    return absl::InvalidArgumentError(
        absl::StrCat(layout.path, ": debug.json has no calls to assemble"));
  }
  Steps out;
  for (const DumpPlace& place : layout.places) {
    // An extra process is not a rank.
    if (!place.process) out[place.step].push_back(place);
  }
  return out;
}

void AddTexts(absl::string_view side, const LayoutCounts& counts,
              std::vector<std::string>* out) {
  std::string line = absl::StrCat(side, ": ", Counted(counts.ranks, "rank"),
                                  ", ", Counted(counts.tensors, "tensor"));
  const auto add = [&line](int64_t count, absl::string_view what) {
    if (count > 0) absl::StrAppend(&line, ", ", count, " ", what);
  };
  if (counts.ranks > 1) {
    add(counts.shards, "assembled from shards");
    add(counts.by_shape, "by the other run's shape");
    add(counts.by_batch, "of parts of the batch");
    add(counts.sums, "of terms of a sum");
    add(counts.copies, "copies");
  }
  add(counts.copies_differ, "copies that differ");
  add(counts.refused, "not assembled");
  if (counts.calls_alone > 0) {
    absl::StrAppend(&line, "; ", Counted(counts.calls_alone, "call"),
                    " that the other run does not have");
  }
  out->push_back(std::move(line));
  if (counts.wrappers_left_out > 0) {
    out->push_back(absl::StrCat(
        "  ", side,
        ": `module.` of what wraps the model is left out of names"));
  }
  const auto list = [out](const std::vector<std::string>& texts, int64_t count,
                          absl::string_view what) {
    for (const std::string& text : texts) {
      out->push_back(absl::StrCat("  ", what, ": ", text));
    }
    const auto more = count - static_cast<int64_t>(texts.size());
    if (more > 0) out->push_back(absl::StrCat("  .. and ", more, " more"));
  };
  list(counts.differing, counts.copies_differ, "copies differ");
  list(counts.refusals, counts.refused, "not assembled");
  for (const std::string& text : counts.unused_rules) {
    out->push_back(absl::StrCat("  ", side, ": ", text));
  }
}

}  // namespace

absl::StatusOr<LayoutReport> JoinDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const LayoutOptions& options,
                                       const std::string& directory) {
  RP_ASSIGN_OR_RETURN(const Steps n, StepsOf(target));
  RP_ASSIGN_OR_RETURN(Steps b, StepsOf(reference));
  // The directory of a single step does not give the step's number.
  if (n.size() == 1 && b.size() == 1 && n.begin()->first != b.begin()->first) {
    std::vector<DumpPlace> places = std::move(b.begin()->second);
    b.clear();
    b[n.begin()->first] = std::move(places);
  }
  LayoutReport report;
  std::optional<GivenLayout> given_n;
  std::optional<GivenLayout> given_b;
  if (options.file.has_value()) {
    const LayoutFile& file = *options.file;
    if (file.target.has_value()) given_n.emplace(file.path, *file.target);
    if (file.reference.has_value()) given_b.emplace(file.path, *file.reference);
  }
  // A file without sides does not apply to a run on one rank.
  const auto applies = [&](const auto& given, const auto& places) {
    return given.has_value() && (places.size() > 1 || options.file->by_side);
  };
  bool any = false;
  for (const auto& [step, places] : n) {
    const auto it = b.find(step);
    if (it == b.end()) {
      report.unpaired.push_back(absl::StrCat(target.path, ": step ", step));
      continue;
    }
    any = true;
    struct Side {
      const std::vector<DumpPlace>* places;
      std::string directory;
      LayoutCounts* counts;
      GivenLayout* given;
    };
    Side sides[] = {
        {&places, absl::StrCat(directory, "/target/step", step, "/rank0"),
         &report.target, applies(given_n, places) ? &*given_n : nullptr},
        {&it->second,
         absl::StrCat(directory, "/reference/step", step, "/rank0"),
         &report.reference,
         applies(given_b, it->second) ? &*given_b : nullptr}};
    if (options.file.has_value() && sides[0].given == nullptr &&
        sides[1].given == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.file->path,
                       ": both runs have one rank, whose tensors are "
                       "complete"));
    }
    for (const Side& side : sides) {
      if (side.given == nullptr) continue;
      RP_RETURN_IF_ERROR(side.given->CheckRanks(
          &side == &sides[0] ? "the target" : "the reference", *side.places));
    }
    Side& first = places.size() < it->second.size() ? sides[0] : sides[1];
    Side& second = &first == &sides[0] ? sides[1] : sides[0];
    int wrappers[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      RP_ASSIGN_OR_RETURN(
          const auto dump,
          DumpReader::Open(file_system, sides[i].places->front().directory,
                           {}));
      wrappers[i] = CountWrappers(*dump);
    }
    for (size_t i = 0; i < 2; ++i) {
      LayoutCounts& counts = *sides[i].counts;
      counts.ranks = static_cast<int64_t>(sides[i].places->size());
      ++counts.steps;
      counts.wrappers_left_out = std::max(wrappers[i] - wrappers[1 - i], 0);
    }
    RP_RETURN_IF_ERROR(JoinStep(file_system, *first.places, nullptr, options,
                                first.given, first.directory, first.counts));
    RP_ASSIGN_OR_RETURN(const auto whole,
                        OpenWithTree(file_system, first.directory));
    RP_RETURN_IF_ERROR(JoinStep(file_system, *second.places, whole.get(),
                                options, second.given, second.directory,
                                second.counts));
  }
  for (const auto& [given, counts] : {std::pair(&given_n, &report.target),
                                      std::pair(&given_b, &report.reference)}) {
    if (given->has_value() && (counts->ranks > 1 || options.file->by_side)) {
      counts->unused_rules = (*given)->Unused();
    }
  }
  for (const auto& [step, places] : b) {
    if (n.find(step) == n.end()) {
      report.unpaired.push_back(absl::StrCat(reference.path, ": step ", step));
    }
  }
  if (!any) {
    return absl::InvalidArgumentError(absl::StrCat(
        target.path, " and ", reference.path, " have no step in common"));
  }
  return report;
}

std::vector<std::string> LayoutTexts(const LayoutReport& report) {
  std::vector<std::string> out;
  AddTexts("target", report.target, &out);
  AddTexts("reference", report.reference, &out);
  for (const std::string& text : report.unpaired) {
    out.push_back(absl::StrCat(text, " is on this side only"));
  }
  return out;
}

}  // namespace rankprobe::analysis
