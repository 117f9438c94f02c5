// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_builder.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/graph_view/graph_visualize.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"
#include "common/io/scratch_directory.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

constexpr size_t kMostBuilt = 8;

std::string KeyOf(const GraphRequest& request) {
  return absl::StrCat(request.target, "\n", request.reference, "\n",
                      request.overflow_check, request.fuzzy, request.layers);
}

}  // namespace

absl::StatusOr<GraphBuilder::Built> GraphBuilder::Build(
    const GraphRequest& request, bool again,
    const std::function<void(size_t, size_t)>& progress,
    const std::atomic<bool>* gone) {
  if (request.target.empty() && root_ == nullptr) {
    return absl::InvalidArgumentError("target: there is nothing to show");
  }
  const std::string key = KeyOf(request);
  // A request that waits here for the same graph then reuses it.
  const absl::MutexLock building(&building_);
  if (*gone) return absl::CancelledError("the client has disconnected");
  {
    const absl::MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->key != key || again) continue;
      entries_.splice(entries_.begin(), entries_, it);
      return it->built;
    }
  }
  RP_ASSIGN_OR_RETURN(Entry entry, Make(request, progress, gone));
  entry.key = key;
  const absl::MutexLock lock(&mutex_);
  entry.built.name = absl::StrCat("@", ++number_);
  entry.built.json = absl::StrCat("{\"db\":\"", entry.built.name, "\",",
                                  entry.built.json, "}");
  entries_.remove_if([&key](const Entry& known) { return known.key == key; });
  entries_.push_front(std::move(entry));
  if (entries_.size() > kMostBuilt) entries_.pop_back();
  return entries_.front().built;
}

absl::StatusOr<GraphBuilder::Entry> GraphBuilder::Make(
    const GraphRequest& request,
    const std::function<void(size_t, size_t)>& progress,
    const std::atomic<bool>* gone) {
  const std::unique_ptr<FileSystem> unconfined = NewPosixFileSystem();
  RP_ASSIGN_OR_RETURN(const ScratchDirectory scratch,
                      ScratchDirectory::Make(unconfined.get()));
  const std::string graph = absl::StrCat(scratch.path(), "/graph.vis.db");
  std::vector<std::string> roots = {scratch.path()};
  if (root_ != nullptr) roots.push_back(root_->directory());
  std::vector<std::unique_ptr<FetchedDump>> fetched;
  const auto source = [&](const std::string& name, const char* field,
                          std::string* out) -> absl::Status {
    if (absl::StartsWith(name, "run:")) {
      if (!fetch_) {
        return absl::FailedPreconditionError(
            absl::StrCat(field, ": ", name,
                         ": rankprobe view has no collector: give "
                         "--collector"));
      }
      RP_ASSIGN_OR_RETURN(fetched.emplace_back(),
                          fetch_(name, /*payloads=*/!request.reference.empty(),
                                 [gone] { return gone->load(); }));
      *out = fetched.back()->path();
      roots.push_back(*out);
      return absl::OkStatus();
    }
    if (root_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          field, ": ", name, ": rankprobe view has no directory: give --root"));
    }
    RP_ASSIGN_OR_RETURN(*out, root_->DirectoryOf(name));
    return absl::OkStatus();
  };
  analysis::VisualizeOptions options;
  RP_RETURN_IF_ERROR(source(request.target, "target", &options.target));
  if (!request.reference.empty()) {
    RP_RETURN_IF_ERROR(
        source(request.reference, "reference", &options.reference));
  }
  options.cancelled = [gone] { return gone->load(); };
  options.overflow_check = request.overflow_check;
  options.fuzzy = request.fuzzy;
  if (request.layers) options.layer_mapping = "auto";
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> files,
                      NewConfinedFileSystem(roots));
  RP_ASSIGN_OR_RETURN(
      const analysis::VisualizeResult result,
      analysis::Visualize(files.get(), options, graph, progress));
  Entry entry;
  // The scratch directory is deleted on return; afterwards the file exists only
  // through this descriptor.
  Descriptor file(::open(graph.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) {
    return absl::UnavailableError(
        absl::StrCat(graph, ": ", std::strerror(errno)));
  }
  entry.file = std::make_shared<const Descriptor>(std::move(file));
  std::string warnings;
  const auto warn = [&warnings](absl::string_view text) {
    absl::StrAppend(&warnings, warnings.empty() ? "" : ",", JsonString(text));
  };
  for (const std::string& text : result.warnings) warn(text);
  for (const std::string& place : result.unpaired) {
    warn(absl::StrCat(place,
                      ": not compared, the other side has no such step or "
                      "rank"));
  }
  entry.built.json = absl::StrCat("\"nodes\":", result.nodes, ",\"warnings\":[",
                                  warnings, "]");
  return entry;
}

absl::StatusOr<std::shared_ptr<const Descriptor>> GraphBuilder::Find(
    absl::string_view name) const {
  const absl::MutexLock lock(&mutex_);
  for (const Entry& entry : entries_) {
    if (entry.built.name == name) return entry.file;
  }
  return absl::NotFoundError(
      absl::StrCat("the graph ", name.substr(0, 32),
                   " is not kept any longer: open it again"));
}

}  // namespace rankprobe
