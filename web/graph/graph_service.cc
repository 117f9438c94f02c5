// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_service.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "web/graph/hand_match.h"

namespace rankprobe {
namespace {

// Becomes true when the client disconnects, as long as this object exists.
class GoneFlag {
 public:
  explicit GoneFlag(HttpReply* reply) : reply_(reply) {
    reply_->OnGone([this] { gone_ = true; });
  }
  GoneFlag(const GoneFlag&) = delete;
  GoneFlag& operator=(const GoneFlag&) = delete;
  ~GoneFlag() { reply_->OnGone(nullptr); }
  const std::atomic<bool>* get() const { return &gone_; }

 private:
  HttpReply* const reply_;
  std::atomic<bool> gone_ = false;
};

constexpr size_t kPiece = 256 << 10;

absl::Status NoRoot() {
  return absl::FailedPreconditionError(
      "this server shows no directory: `rankprobe view --root DIR` does, and "
      "rankprobed --web-root DIR");
}

}  // namespace

// A database together with the descriptor it is read from.
struct GraphService::Opened {
  std::shared_ptr<const Descriptor> file;
  std::unique_ptr<GraphDatabase> database;
};

GraphService::GraphService(GraphOptions options,
                           std::unique_ptr<GraphRoot> root)
    : options_(std::move(options)),
      root_(std::move(root)),
      builder_(std::make_unique<GraphBuilder>(root_.get(), options_.fetch_run)),
      maker_(options_.one_at_a_time ? std::make_unique<OneThread>() : nullptr) {
}

absl::StatusOr<std::unique_ptr<GraphService>> GraphService::Make(
    GraphOptions options) {
  std::unique_ptr<GraphRoot> root;
  if (!options.root.empty()) {
    RP_ASSIGN_OR_RETURN(root, GraphRoot::Open(options.root));
  }
  return std::unique_ptr<GraphService>(
      new GraphService(std::move(options), std::move(root)));
}

void GraphService::Answer(absl::string_view method, absl::string_view body,
                          HttpReply* reply) const {
  const absl::StatusOr<GraphRequest> request = ParseGraphRequest(body);
  if (!request.ok()) {
    SendError(request.status(), reply);
    return;
  }
  if (options_.read_only && (method == "Build" || method == "SaveMapping")) {
    SendError(absl::FailedPreconditionError(
                  method == "Build"
                      ? "this server makes graphs as jobs (graph_visualize)"
                      : "this server writes nothing below its directory: keep "
                        "the mapping in your own file"),
              reply);
    return;
  }
  if (method == "Build") {
    Build(*request, reply);
    return;
  }
  const GoneFlag gone(reply);
  absl::StatusOr<std::string> answer;
  const auto make = [&] {
    // The client may have disconnected while its request waited for its turn.
    if (*gone.get()) {
      answer = absl::CancelledError("the client has disconnected");
      return;
    }
    answer = AnswerOf(method, *request, gone.get());
  };
  if (maker_ != nullptr) {
    maker_->Run(make);
  } else {
    make();
  }
  if (!answer.ok()) {
    SendError(answer.status(), reply);
  } else if (options_.one_at_a_time && answer->size() > kPiece) {
    SendLarge(*answer, reply);
  } else {
    reply->Send(200, kJsonType, *std::move(answer));
  }
}

void GraphService::SendLarge(const std::string& answer,
                             HttpReply* reply) const {
  // An answer that is the only one may exceed the limit; otherwise a graph
  // larger than the limit could never be sent.
  const uint64_t before = untaken_bytes_.fetch_add(answer.size());
  if (before > 0 && before + answer.size() > options_.max_untaken_bytes) {
    SendError(absl::ResourceExhaustedError(
                  "too many graphs are being sent: try again later"),
              reply);
  } else {
    reply->Begin(200, kJsonType);
    absl::string_view rest = answer;
    while (!rest.empty() && reply->Write(rest.substr(0, kPiece)))
      rest.remove_prefix(std::min(rest.size(), kPiece));
  }
  untaken_bytes_ -= answer.size();
}

absl::StatusOr<std::string> GraphService::AnswerOf(
    absl::string_view method, const GraphRequest& request,
    const std::atomic<bool>* gone) const {
  if (method == "List") return ListJson();
  if (method == "LoadMapping") return LoadMapping(request);
  if (method == "SaveMapping") return SaveMapping(request);
  const bool known = method == "Open" || method == "Graph" ||
                     method == "Children" || method == "Node" ||
                     method == "Summary" || method == "Match";
  if (!known) return absl::NotFoundError("there is nothing here");
  RP_ASSIGN_OR_RETURN(const Opened opened, OpenDatabase(request, gone));
  GraphDatabase& database = *opened.database;
  if (method == "Open") return database.AboutJson();
  if (method == "Graph") return database.GraphJson(request.step, request.rank);
  if (method == "Children") {
    return database.ChildrenJson(request.step, request.rank, request.side,
                                 request.node);
  }
  if (method == "Node") {
    return database.NodeJson(request.step, request.rank, request.side,
                             request.node);
  }
  if (method == "Summary") return database.SummaryJson();
  return MatchJson(request, &database);
}

absl::StatusOr<GraphService::Opened> GraphService::OpenDatabase(
    const GraphRequest& request, const std::atomic<bool>* gone) const {
  Opened opened;
  std::string name = request.db;
  if (absl::StartsWith(request.db, "@")) {
    RP_ASSIGN_OR_RETURN(opened.file, builder_->Find(request.db));
    name = "graph";
  } else if (absl::string_view job = request.db;
             open_job_file_ && absl::ConsumePrefix(&job, "job:")) {
    RP_ASSIGN_OR_RETURN(Descriptor file, open_job_file_(job));
    opened.file = std::make_shared<const Descriptor>(std::move(file));
  } else {
    if (root_ == nullptr) return NoRoot();
    if (!absl::EndsWith(request.db, ".vis.db")) {
      return absl::InvalidArgumentError(
          "db: unsupported file: a graph database ends in .vis.db");
    }
    RP_ASSIGN_OR_RETURN(Descriptor file, root_->OpenFile(request.db));
    opened.file = std::make_shared<const Descriptor>(std::move(file));
  }
  RP_ASSIGN_OR_RETURN(opened.database,
                      GraphDatabase::Open(opened.file->get(), name,
                                          options_.query_timeout, gone));
  opened.database->SetLimits(options_.limits);
  return opened;
}

absl::StatusOr<std::string> GraphService::FindDirectory(
    absl::string_view path) const {
  if (root_ == nullptr) return NoRoot();
  return root_->FindDirectory(path);
}

absl::StatusOr<std::string> GraphService::ListJson() const {
  if (root_ == nullptr) {
    return std::string(
        "{\"root\":\"\",\"databases\":[],\"dumps\":[],\"truncated\":false}");
  }
  const Found found = root_->List();
  std::string out = absl::StrCat("{\"root\":", JsonString(root_->directory()),
                                 ",\"databases\":[");
  bool first = true;
  const auto comma = [&first] {
    return std::exchange(first, false) ? "" : ",";
  };
  for (const FoundFile& file : found.databases) {
    absl::StrAppend(&out, comma(), "{\"path\":", JsonString(file.path),
                    ",\"bytes\":", file.size_bytes,
                    ",\"modified\":", file.modified_unix_s, "}");
  }
  out.append("],\"dumps\":[");
  first = true;
  for (const FoundDump& dump : found.dumps) {
    absl::StrAppend(&out, comma(), "{\"path\":", JsonString(dump.path),
                    ",\"steps\":", dump.steps, ",\"ranks\":", dump.ranks, "}");
  }
  absl::StrAppend(&out, "],\"truncated\":", found.truncated ? "true" : "false",
                  "}");
  return out;
}

absl::StatusOr<std::string> GraphService::MatchJson(const GraphRequest& request,
                                                    GraphDatabase* database) {
  RP_ASSIGN_OR_RETURN(const std::string task, database->Task());
  std::string out = "{\"results\":[";
  bool first = true;
  for (const auto& [target, reference] : request.pairs) {
    const auto judge = [&, &target = target,
                        &reference = reference]() -> absl::StatusOr<HandMatch> {
      RP_ASSIGN_OR_RETURN(
          const GraphDatabase::Values ours,
          database->ValuesOf(request.step, request.rank, "NPU", target));
      RP_ASSIGN_OR_RETURN(
          const GraphDatabase::Values theirs,
          database->ValuesOf(request.step, request.rank, "Bench", reference));
      return MatchByHand(task, target, ours, theirs);
    };
    const absl::StatusOr<HandMatch> match = judge();
    // An invalid pair does not invalidate the others.
    if (!match.ok() && !absl::IsInvalidArgument(match.status()) &&
        !absl::IsNotFound(match.status())) {
      return match.status();
    }
    out.append(std::exchange(first, false) ? "" : ",");
    if (match.ok()) {
      absl::StrAppend(&out, "{\"precision\":", match->precision,
                      ",\"input\":", match->input,
                      ",\"output\":", match->output, "}");
    } else {
      absl::StrAppend(
          &out, "{\"refused\":", JsonString(match.status().message()), "}");
    }
  }
  out.append("]}");
  return out;
}

absl::StatusOr<std::string> GraphService::LoadMapping(
    const GraphRequest& request) const {
  if (root_ == nullptr) return NoRoot();
  if (!absl::EndsWith(request.path, ".vis.config")) {
    return absl::InvalidArgumentError(
        "path: the file of a mapping ends in .vis.config");
  }
  RP_ASSIGN_OR_RETURN(const std::string text,
                      root_->ReadText(request.path, kMostMappingBytes));
  RP_ASSIGN_OR_RETURN(const auto pairs, ParseMapping(text));
  std::string out = "{\"pairs\":[";
  bool first = true;
  for (const auto& [target, reference] : pairs) {
    absl::StrAppend(&out, std::exchange(first, false) ? "" : ",", "[",
                    JsonString(target), ",", JsonString(reference), "]");
  }
  out.append("]}");
  return out;
}

absl::StatusOr<std::string> GraphService::SaveMapping(
    const GraphRequest& request) const {
  if (root_ == nullptr) return NoRoot();
  absl::string_view stem = request.db;
  if (!absl::ConsumeSuffix(&stem, ".vis.db")) {
    return absl::InvalidArgumentError(
        "a mapping is saved beside a database, and this graph has none");
  }
  // A mapping is only written next to an existing database.
  RP_RETURN_IF_ERROR(root_->OpenFile(request.db).status());
  RP_ASSIGN_OR_RETURN(const auto pairs,
                      ParseMapping(MappingText(request.pairs)));
  const std::string path =
      absl::StrCat(stem, "_", request.step, "_", request.rank, ".vis.config");
  RP_RETURN_IF_ERROR(root_->WriteText(path, MappingText(pairs)));
  return absl::StrCat("{\"path\":", JsonString(path), "}");
}

void GraphService::Build(const GraphRequest& request, HttpReply* reply) const {
  bool begun = false;
  const auto progress = [&](size_t done, size_t all) {
    if (!std::exchange(begun, true)) reply->Begin(200, kJsonLinesType);
    (void)reply->Write(
        absl::StrCat("{\"done\":", done, ",\"all\":", all, "}\n"));
  };
  const GoneFlag gone(reply);
  const auto built =
      builder_->Build(request, request.again, progress, gone.get());
  if (!built.ok() && !begun) {
    SendError(built.status(), reply);
    return;
  }
  if (!begun) reply->Begin(200, kJsonLinesType);
  (void)reply->Write(
      absl::StrCat(built.ok() ? built->json : ErrorJson(built.status()), "\n"));
}

}  // namespace rankprobe
