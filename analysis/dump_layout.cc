#include "analysis/dump_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kForms =
    "expected a directory with dump.json, one of rank{R} or proc{pid} "
    "directories, or one of step{N} directories";

absl::Status Bad(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The number behind `prefix`, 0 when there is none; unset for another name.
std::optional<int64_t> Numbered(absl::string_view name,
                                absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix)) return std::nullopt;
  if (name.empty()) return 0;
  int64_t number = 0;
  if (!std::all_of(name.begin(), name.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &number)) {
    return std::nullopt;
  }
  return number;
}

bool IsDirectory(FileSystem* file_system, const std::string& path) {
  return file_system->List(path).ok();
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
  int processes = 0;
  std::set<int64_t> ranks;
  for (const std::string& name : names) {
    const std::string directory = absl::StrCat(path, "/", name);
    std::optional<int64_t> rank = Numbered(name, "rank");
    if (!rank.has_value() && Numbered(name, "proc").has_value()) {
      ++processes;
      rank = 0;
    }
    if (!rank.has_value()) {
      if (!IsDirectory(file_system, directory)) continue;
      return Bad(directory, absl::StrCat("is unexpected here; ", kForms));
    }
    if (!ranks.insert(*rank).second) {
      return Bad(path,
                 processes > 1
                     ? "has more than one proc directory; their ranks are not "
                       "known, so name one of them"
                     : "has two directories for one rank");
    }
    const std::optional<bool> debug = HasDump(file_system, directory);
    if (!debug.has_value()) return Bad(directory, "has no dump.json");
    out->debug = *debug;
    places.push_back({step, *rank, directory});
  }
  if (places.empty()) return Bad(path, absl::StrCat("has no dump; ", kForms));
  std::sort(
      places.begin(), places.end(),
      [](const DumpPlace& a, const DumpPlace& b) { return a.rank < b.rank; });
  out->places.insert(out->places.end(), places.begin(), places.end());
  return absl::OkStatus();
}

}  // namespace

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
                                     const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!file_system->Exists(path)) return Bad(path, "does not exist");
  DumpLayout out;
  out.path = path;
  if (!IsDirectory(file_system, path)) {
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
    if (step.has_value() && IsDirectory(file_system, inside)) {
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
    return out;
  }
  out.kind = DumpLayout::Kind::kSteps;
  for (const auto& [step, directory] : steps) {
    RP_ASSIGN_OR_RETURN(const std::vector<std::string> inside,
                        file_system->List(directory));
    RP_RETURN_IF_ERROR(AddRanks(file_system, directory, step, inside, &out));
  }
  return out;
}

absl::StatusOr<std::vector<std::pair<DumpPlace, DumpPlace>>> PairDumps(
    const DumpLayout& target, const DumpLayout& golden,
    std::vector<std::string>* unpaired) {
  if (target.kind != golden.kind) {
    return absl::InvalidArgumentError(absl::StrCat(
        target.path, " and ", golden.path,
        ": are not of one kind (a rank, a step of ranks, a dump of steps)"));
  }
  if (target.debug != golden.debug) {
    return absl::InvalidArgumentError(
        absl::StrCat(target.path, " and ", golden.path,
                     ": one is a dump.json, the other a debug.json"));
  }
  std::map<std::pair<int64_t, int64_t>, const DumpPlace*> by_key;
  for (const DumpPlace& place : golden.places) {
    by_key[{place.step, place.rank}] = &place;
  }
  std::vector<std::pair<DumpPlace, DumpPlace>> out;
  for (const DumpPlace& place : target.places) {
    const auto it = by_key.find({place.step, place.rank});
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
    return absl::InvalidArgumentError(
        absl::StrCat(target.path, " and ", golden.path,
                     ": have no step and rank in common"));
  }
  return out;
}

std::string TimestampText(absl::Time time) {
  return absl::FormatTime("%Y%m%d%H%M%S", time, absl::LocalTimeZone());
}

}  // namespace rankprobe::analysis
