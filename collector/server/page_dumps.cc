// SPDX-License-Identifier: Apache-2.0
#include "collector/server/page_dumps.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "collector/archive/export.h"
#include "common/base/monotonic_event.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kMostNumbers = 1024;

// Parses "0,2-4".
absl::StatusOr<std::vector<int64_t>> Numbers(absl::string_view name,
                                             absl::string_view text) {
  const absl::Status fault = absl::InvalidArgumentError(
      absl::StrCat(name,
                   ": expected run:NAME, run:NAME@STEP or "
                   "run:NAME@STEP/rankR"));
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int64_t first = 0;
    int64_t last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) || first < 0) return fault;
    last = first;
    if (part.size() != ends.first.size() &&
        (!absl::SimpleAtoi(ends.second, &last) || last < first)) {
      return fault;
    }
    if (static_cast<uint64_t>(last - first) >= kMostNumbers ||
        numbers.size() + static_cast<size_t>(last - first) >= kMostNumbers) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": more than ", kMostNumbers, " numbers"));
    }
    for (int64_t number = first; number <= last; ++number)
      numbers.push_back(number);
  }
  return numbers;
}

// Shared by a task in the pool and its waiter; the last one frees it, because
// at a shutdown the waiter does not wait for a thread that the disk blocks.
struct Fetching {
  std::atomic<bool> cancelled = false;
  MonotonicEvent done;
  absl::Status status;
};

// Limit for how late a cancelled job ends.
constexpr absl::Duration kLookForCancel = absl::Milliseconds(50);

// Runs in a thread of the pool.
absl::Status Export(ArchiveReader* store, FileSystem* file_system,
                    const JobDump& dump, const RunPlace& place,
                    uint64_t max_bytes, const std::atomic<bool>& cancelled) {
  if (cancelled) return absl::CancelledError("cancelled");
  ExportOptions options;
  options.run = place.run;
  options.steps = IntSet({place.steps.begin(), place.steps.end()});
  options.ranks = IntSet({place.ranks.begin(), place.ranks.end()});
  options.without_payloads = !dump.payloads;
  options.manifest_in_reply = true;
  options.progress = [&](const v1::ExportProgress& progress) -> absl::Status {
    if (cancelled) return absl::CancelledError("cancelled");
    if (progress.bytes_done() <= max_bytes &&
        progress.bytes_total() <= max_bytes) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(dump.name, ": more than ", max_bytes >> 20,
                     " MiB: name a step or a rank of it"));
  };
  return ExportRunToDirectory(store, options, file_system, dump.path).status();
}

}  // namespace

absl::StatusOr<std::vector<RunPlace>> ParseRunPlace(absl::string_view name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "run:") || rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name,
                     ": expected run:NAME, run:NAME@STEP or "
                     "run:NAME@STEP/rankR"));
  }
  const size_t at = rest.rfind('@');
  if (at == absl::string_view::npos) {
    return std::vector<RunPlace>{{std::string(rest), {}, {}}};
  }
  RunPlace place;
  place.run = std::string(rest.substr(0, at));
  absl::string_view step = rest.substr(at + 1);
  const size_t slash = step.find("/rank");
  absl::StatusOr<std::vector<int64_t>> steps =
      Numbers(name, step.substr(0, slash));
  absl::StatusOr<std::vector<int64_t>> ranks = std::vector<int64_t>();
  if (slash != absl::string_view::npos)
    ranks = Numbers(name, step.substr(slash + 5));
  const RunPlace whole = {std::string(rest), {}, {}};
  if (!steps.ok() || !ranks.ok() || place.run.empty())
    return std::vector<RunPlace>{whole};
  place.steps = *std::move(steps);
  place.ranks = *std::move(ranks);
  return std::vector<RunPlace>{std::move(place), whole};
}

absl::StatusOr<std::string> FetchDump(ArchiveReader* store,
                                      FileSystem* file_system, WorkerPool* pool,
                                      const JobDump& dump, uint64_t max_bytes,
                                      const std::function<bool()>& cancelled) {
  RP_ASSIGN_OR_RETURN(const std::vector<RunPlace> places,
                      ParseRunPlace(dump.name));
  RP_RETURN_IF_ERROR(file_system->CreateDirectories(
      dump.path.substr(0, dump.path.rfind('/'))));
  absl::Status first;
  for (const RunPlace& place : places) {
    const auto fetching = std::make_shared<Fetching>();
    const bool taken =
        pool->Run([fetching, store, file_system, dump, place, max_bytes] {
          fetching->status = Export(store, file_system, dump, place, max_bytes,
                                    fetching->cancelled);
          // The cancelled job may have deleted its directory while this task
          // wrote to it.
          if (fetching->cancelled)
            (void)file_system->DeleteTree(dump.directory);
          fetching->done.Set();
        });
    if (!taken) {
      return absl::ResourceExhaustedError(
          "too many queries wait: try again later");
    }
    while (!fetching->done.WaitFor(kLookForCancel)) {
      if (!cancelled()) continue;
      fetching->cancelled = true;
      return absl::CancelledError("cancelled");
    }
    const absl::Status& status = fetching->status;
    if (absl::IsNotFound(status) || absl::IsInvalidArgument(status)) {
      if (first.ok()) first = status;
      continue;
    }
    RP_RETURN_IF_ERROR(status);
    // As in `rankprobe`: a single step means the step's directory, a single
    // rank of it that of the rank.
    std::string path = dump.path;
    if (place.steps.size() == 1) {
      const std::string step = absl::StrCat(path, "/step", place.steps[0]);
      if (file_system->Exists(step)) path = step;
      if (place.ranks.size() == 1 && dump.rank_directory) {
        const std::string rank = absl::StrCat(step, "/rank", place.ranks[0]);
        if (file_system->Exists(rank)) path = rank;
      }
    }
    return path;
  }
  return first;
}

}  // namespace rankprobe
