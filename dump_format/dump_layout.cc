// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_layout.h"

#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/text/ranges_text.h"
#include "dump_format/dump_jobs.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kForms =
    "expected a directory with dump.json, one of rank{R} or proc{pid} "
    "directories, or one of step{N} directories";

absl::Status Bad(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The number after `prefix`, 0 if there is none; nullopt for another name.
std::optional<int64_t> Numbered(absl::string_view name,
                                absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix)) return std::nullopt;
  if (name.empty()) return 0;
  int64_t number = 0;
  if (!absl::c_all_of(name, absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &number)) {
    return std::nullopt;
  }
  return number;
}

// Returns an error if the path must not be read.
absl::StatusOr<bool> IsDirectory(FileSystem* file_system,
                                 const std::string& path) {
  const absl::Status status = file_system->List(path).status();
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  return status.ok();
}

std::optional<bool> HasDump(FileSystem* file_system, const std::string& path) {
  if (file_system->Exists(path + "/dump.json")) return false;
  if (file_system->Exists(path + "/debug.json")) return true;
  return std::nullopt;
}

absl::Status AddRanks(FileSystem* file_system, const std::string& path,
                      int64_t step, const std::vector<std::string>& names,
                      DumpLayout* out) {
  std::vector<DumpPlace> places;
  std::vector<DumpPlace> processes;
  std::set<int64_t> ranks;
  for (const std::string& name : names) {
    const std::string directory = absl::StrCat(path, "/", name);
    const std::optional<int64_t> rank = Numbered(name, "rank");
    const std::optional<int64_t> pid = Numbered(name, "proc");
    if (!rank.has_value() && !pid.has_value()) {
      RP_ASSIGN_OR_RETURN(const bool is_directory,
                          IsDirectory(file_system, directory));
      if (!is_directory) continue;
      return Bad(directory, absl::StrCat("is unexpected here; ", kForms));
    }
    if (rank.has_value() && !ranks.insert(*rank).second)
      return Bad(path, "has two directories for one rank");
    const std::optional<bool> debug = HasDump(file_system, directory);
    if (!debug.has_value()) return Bad(directory, "has no dump.json");
    out->debug = *debug;
    (rank.has_value() ? places : processes)
        .push_back({step, rank.has_value() ? *rank : *pid, directory});
  }
  const auto by_rank = [](const DumpPlace& a, const DumpPlace& b) {
    return a.rank < b.rank;
  };
  absl::c_sort(processes, by_rank);
  int64_t index = 0;
  // Several processes without a rank belong to several jobs; ChooseJobOfDump()
  // leaves one.
  const bool are_beside = !ranks.empty() || processes.size() > 1;
  for (DumpPlace& process : processes) {
    process.process = are_beside;
    process.process_index = index++;
    if (!process.process) process.rank = 0;
    // Its number is its pid, or the next one that is not in use.
    while (!ranks.insert(process.rank).second) ++process.rank;
    places.push_back(process);
  }
  if (places.empty()) return Bad(path, absl::StrCat("has no dump; ", kForms));
  absl::c_sort(places, by_rank);
  out->places.insert(out->places.end(), places.begin(), places.end());
  return absl::OkStatus();
}

}  // namespace

std::string DumpPlace::Name() const {
  return absl::StrCat(process ? "proc" : "rank", rank);
}

std::vector<int64_t> DumpLayout::Steps() const {
  std::set<int64_t> steps;
  for (const DumpPlace& place : places) steps.insert(place.step);
  return {steps.begin(), steps.end()};
}

std::vector<int64_t> DumpLayout::Ranks() const {
  std::set<int64_t> ranks;
  for (const DumpPlace& place : places) ranks.insert(place.rank);
  return {ranks.begin(), ranks.end()};
}

absl::StatusOr<DumpLayout> FindDumps(FileSystem* file_system,
                                     const std::string& given,
                                     std::optional<int64_t> job) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!file_system->Exists(path)) {
    // A single word may be meant as the name of a run.
    return Bad(path, path.find_first_of("/:.") == std::string::npos
                         ? absl::StrCat("does not exist; a run of a collector "
                                        "is written run:",
                                        path)
                         : "does not exist");
  }
  DumpLayout out;
  out.path = path;
  RP_ASSIGN_OR_RETURN(const bool is_directory, IsDirectory(file_system, path));
  if (!is_directory) {
    const size_t slash = path.rfind('/');
    const std::string file =
        slash == std::string::npos ? path : path.substr(slash + 1);
    if (file != "dump.json" && file != "debug.json") {
      return Bad(path, "is neither a directory nor dump.json or debug.json");
    }
    out.debug = file == "debug.json";
    out.places.push_back(
        {0, 0, slash == std::string::npos ? "." : path.substr(0, slash)});
    return out;
  }
  if (const std::optional<bool> debug = HasDump(file_system, path);
      debug.has_value()) {
    out.debug = *debug;
    out.places.push_back({0, 0, path});
    return out;
  }
  RP_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      file_system->List(path));
  if (names.empty()) return Bad(path, absl::StrCat("is empty; ", kForms));
  std::map<int64_t, std::string> steps;
  bool ranks = false;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = Numbered(name, "step");
    const std::string inside = absl::StrCat(path, "/", name);
    if (step.has_value()) {
      RP_ASSIGN_OR_RETURN(const bool usable, IsDirectory(file_system, inside));
      if (!usable) continue;
      if (!steps.emplace(*step, inside).second) {
        return Bad(path, absl::StrCat("has two directories for step ", *step));
      }
    }
    ranks = ranks || absl::StartsWith(name, "rank") ||
            absl::StartsWith(name, "proc");
  }
  if (!steps.empty() && ranks) {
    return Bad(path, "mixes step and rank directories");
  }
  if (steps.empty()) {
    out.kind = DumpLayout::Kind::kRanks;
    RP_RETURN_IF_ERROR(AddRanks(file_system, path, 0, names, &out));
    RP_RETURN_IF_ERROR(ChooseJobOfDump(file_system, job, &out));
    return out;
  }
  out.kind = DumpLayout::Kind::kSteps;
  for (const auto& [step, directory] : steps) {
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> inside,
                        file_system->List(directory));
    RP_RETURN_IF_ERROR(AddRanks(file_system, directory, step, inside, &out));
  }
  RP_RETURN_IF_ERROR(ChooseJobOfDump(file_system, job, &out));
  return out;
}

namespace {

const char* KindText(DumpLayout::Kind kind) {
  switch (kind) {
    case DumpLayout::Kind::kSingle:
      return "one rank of a step";
    case DumpLayout::Kind::kRanks:
      return "one step";
    case DumpLayout::Kind::kSteps:
      return "a dump of several steps";
  }
  return "";
}

// "steps 0-2, ranks 0-1": steps or ranks that the sides do not share.
std::string PlacesText(const DumpLayout& layout, bool steps, bool ranks) {
  std::string text;
  const auto add = [&](const char* what, const std::vector<int64_t>& numbers) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", what,
                    numbers.size() == 1 ? " " : "s ", RangesText(numbers));
  };
  if (steps) add("step", layout.Steps());
  if (ranks) add("rank", layout.Ranks());
  return text;
}

// The first place whose number the other side does not have, or the first of
// all.
const DumpPlace& OwnPlace(const DumpLayout& layout,
                          const std::vector<int64_t>& others,
                          int64_t DumpPlace::*number) {
  const auto own = absl::c_find_if(layout.places, [&](const DumpPlace& place) {
    return !absl::c_linear_search(others, place.*number);
  });
  return own == layout.places.end() ? layout.places.front() : *own;
}

std::string StepDirectory(const DumpPlace& place) {
  return place.directory.substr(0, place.directory.rfind('/'));
}

// The place in `large` that corresponds to `small` in size, with the same name
// if there is one.
std::string PlaceLike(const DumpLayout& small, const DumpLayout& large) {
  const auto path_of = [&](const DumpPlace& place) {
    return small.kind == DumpLayout::Kind::kSingle ? place.directory
                                                   : StepDirectory(place);
  };
  const std::string& own = small.kind == DumpLayout::Kind::kSingle
                               ? small.places.front().directory
                               : small.path;
  const std::string name = absl::StrCat("/", own.substr(own.rfind('/') + 1));
  for (const DumpPlace& place : large.places) {
    if (absl::EndsWith(path_of(place), name)) return path_of(place);
  }
  return path_of(large.places.front());
}

}  // namespace

std::string PairingHint(const DumpLayout& target, const DumpLayout& reference) {
  const bool steps = target.Steps() != reference.Steps();
  const bool ranks = target.Ranks() != reference.Ranks() || !steps;
  // A step of one side with a step of the other, or two ranks of one step.
  const auto example = [&](const DumpLayout& layout, const DumpLayout& other) {
    return steps ? StepDirectory(
                       OwnPlace(layout, other.Steps(), &DumpPlace::step))
                 : OwnPlace(layout, other.Ranks(), &DumpPlace::rank).directory;
  };
  return absl::StrCat(
      target.path, " has ", PlacesText(target, steps, ranks), " and ",
      reference.path, " has ", PlacesText(reference, steps, ranks),
      ". Those with different numbers are compared when both "
      "are named, as ",
      example(target, reference), " and ", example(reference, target));
}

absl::StatusOr<std::vector<std::pair<DumpPlace, DumpPlace>>> PairDumps(
    const DumpLayout& target, const DumpLayout& reference,
    std::vector<std::string>* unpaired) {
  if (target.kind != reference.kind) {
    return absl::InvalidArgumentError(absl::StrCat(
        target.path, " is ", KindText(target.kind), " and ", reference.path,
        " is ", KindText(reference.kind), ": name two of one kind, as ",
        target.kind < reference.kind ? PlaceLike(target, reference)
                                     : PlaceLike(reference, target)));
  }
  if (target.debug != reference.debug) {
    return absl::InvalidArgumentError(
        absl::StrCat(target.path, " and ", reference.path,
                     ": one is a dump.json, the other a debug.json"));
  }
  // Processes of two runs have different pids, so they are paired by index.
  const auto key_of = [](const DumpPlace& place) {
    return std::make_tuple(place.step, place.process,
                           place.process ? place.process_index : place.rank);
  };
  std::map<std::tuple<int64_t, bool, int64_t>, const DumpPlace*> by_key;
  for (const DumpPlace& place : reference.places) {
    by_key[key_of(place)] = &place;
  }
  std::vector<std::pair<DumpPlace, DumpPlace>> out;
  for (const DumpPlace& place : target.places) {
    const auto it = by_key.find(key_of(place));
    if (it == by_key.end()) {
      unpaired->push_back(place.directory);
      continue;
    }
    out.emplace_back(place, *it->second);
    by_key.erase(it);
  }
  for (const auto& [key, place] : by_key) {
    unpaired->push_back(place->directory);
  }
  if (out.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        target.path, " and ", reference.path,
        ": have no step and rank in common. ", PairingHint(target, reference)));
  }
  return out;
}

std::string TimestampText(absl::Time time) {
  return absl::FormatTime("%Y%m%d%H%M%S", time, absl::LocalTimeZone());
}

}  // namespace rankprobe
