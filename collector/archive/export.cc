// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/export.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "collector/archive/choose_steps.h"
#include "collector/archive/directory_sink.h"
#include "collector/archive/ledger.h"
#include "collector/archive/link_table.h"
#include "collector/archive/load_step.h"
#include "collector/archive/request_cut.h"
#include "common/base/monotonic_time.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"
#include "common/config/plan.h"
#include "common/io/content_hash.h"
#include "common/tensor/dtype.h"
#include "common/text/visible_text.h"
#include "dump_format/dump_json.h"
#include "dump_format/manifest.h"
#include "dump_format/npy_writer.h"
#include "dump_format/pt_writer.h"
#include "dump_format/tensor_notes_json.h"

namespace rankprobe {
namespace {

// Progress of the export; shared by its threads.
class ProgressMeter {
 public:
  explicit ProgressMeter(const ExportOptions* options) : options_(options) {}

  void Expect(uint64_t files) {
    absl::MutexLock lock(&mutex_);
    progress_.set_files_total(progress_.files_total() + files);
  }
  absl::Status Done(const std::string& path, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    progress_.set_files_done(progress_.files_done() + 1);
    progress_.set_bytes_done(progress_.bytes_done() + bytes);
    // Often enough for display, rarely enough not to slow the exporter down.
    if (!options_->progress || progress_.files_done() % 64 != 0)
      return absl::OkStatus();
    progress_.set_current(path);
    return options_->progress(progress_);
  }
  absl::Status Finish(v1::ExportDone* done) {
    absl::MutexLock lock(&mutex_);
    done->set_files(progress_.files_done());
    done->set_bytes(progress_.bytes_done());
    progress_.set_files_total(progress_.files_done());
    progress_.set_current("done");
    return options_->progress ? options_->progress(progress_)
                              : absl::OkStatus();
  }

 private:
  const ExportOptions* const options_;
  absl::Mutex mutex_;
  v1::ExportProgress progress_ ABSL_GUARDED_BY(mutex_);
};

// Returns the bytes of a dense tensor of this dtype and shape; nothing if there
// can be no such tensor.
std::optional<uint64_t> DenseBytes(const v1::TensorSummary& tensor) {
  uint64_t bytes =
      NumpyTextElementBytes(tensor).value_or(ElementSize(tensor.dtype()));
  for (const int64_t size : tensor.shape()) {
    if (size < 0 ||
        (size > 0 && bytes > (uint64_t{1} << 62) / static_cast<uint64_t>(size)))
      return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

// Returns the chosen steps; the manifest gets those that are left out.
absl::StatusOr<std::vector<v1::StepInfo>> Select(ArchiveReader* store,
                                                 const ExportOptions& options,
                                                 Manifest* manifest) {
  RP_ASSIGN_OR_RETURN(const std::vector<v1::StepInfo> all,
                      store->ListSteps(options.run, options.steps));
  ChosenSteps chosen = ChooseSteps(all, options.ranks);
  for (const v1::StepInfo& step : chosen.deleted)
    manifest->AddLedger(ProcessDirectory(step), SummarizeStep(step));
  for (const auto& [other, best] : chosen.passed_over) {
    manifest->AddConflict(
        {other.step(), ProcessDirectory(other),
         absl::StrCat("process ", other.pid(), " on ", other.host(),
                      " recorded ", other.records(), " records; process ",
                      best.pid(), " on ", best.host(), " is exported")});
  }
  return std::move(chosen.steps);
}

// Adds missing frames of processes of the run that may belong to the chosen
// steps and ranks. `began` is a time before the first request to the archive.
absl::Status AddLostFrames(ArchiveReader* store, const ExportOptions& options,
                           MonotonicTime began, Manifest* manifest) {
  RP_RETURN_IF_ERROR(store->ForEachIncarnation(
      options.run, [&](const v1::IncarnationRow& row) {
        const v1::Identity& identity = row.identity();
        if (!options.ranks.all() &&
            (!identity.has_rank() || !options.ranks.Contains(identity.rank())))
          return;
        if (auto frames = AccountFrames(row, options.steps);
            frames.has_value()) {
          manifest->AddLedger(identity.has_rank()
                                  ? absl::StrCat("rank", identity.rank())
                                  : absl::StrCat("proc", identity.pid()),
                              *std::move(frames));
        }
      }));
  for (const std::string& why : store->Unavailable(options.run, began))
    manifest->AddLedger("", AccountAway(why));
  for (const std::string& why : store->Faults(options.run))
    manifest->AddLedger("", AccountFault(why));
  return absl::OkStatus();
}

// Writes steps, one after another, to one sink. Used by one thread.
class StepExporter {
 public:
  StepExporter(ArchiveReader* store, const ExportOptions& options,
               ExportSink* sink, const RefusedPayloads* refused,
               const std::string& request, ProgressMeter* progress,
               LinkTable* links)
      : store_(store),
        options_(options),
        sink_(sink),
        request_(request),
        refused_(refused),
        progress_(progress),
        links_(links) {}

  // Returns what the steps so far have written and lack; then begins a new
  // manifest.
  Manifest TakeManifest() {
    return std::exchange(manifest_, Manifest(options_.run));
  }

  absl::Status ExportStep(const v1::StepInfo& info) {
    absl::StatusOr<StepView> loaded =
        LoadStep(store_, KeyOf(options_.run, info));
    if (IsDamage(loaded.status())) {
      manifest_.AddLedger(ProcessDirectory(info),
                          AccountUnreadable(info, loaded.status()));
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(loaded.status());
    StepView& view = *loaded;
    cut_ = RequestCut();
    if (!request_.empty()) {
      cut_ = CutToRequest(store_, options_.run, request_, &view);
      whole_batch_steps_ += cut_.whole_batch ? 1 : 0;
      whole_batch_tensors_ += cut_.whole_tensors;
    }
    const std::string rank_directory = ProcessDirectory(info);
    const std::string directory =
        absl::StrCat("step", info.step(), "/", rank_directory);
    RP_RETURN_IF_ERROR(sink_->MakeDirectory(directory));
    const std::string data_directory = directory + "/dump_tensor_data";
    const std::string& root = view.begin.dump_path();
    const std::string dump_data_dir =
        absl::StrCat(root, root.empty() || absl::EndsWith(root, "/") ? "" : "/",
                     data_directory);
    absl::flat_hash_set<const v1::TensorSummary*> unreadable;
    const HasPayloadFn has_payload = [&](const v1::TensorSummary& tensor) {
      return !unreadable.contains(&tensor) &&
             store_->HasPayload(options_.run, tensor.payload().digest(),
                                tensor.payload().length_bytes());
    };
    std::vector<PayloadFile> files, missing;
    std::string dump =
        DumpJson(view, dump_data_dir, has_payload, &files, &missing);
    // The record of the step's begin may be wrong or lost; if records refer to
    // payloads, the step has some.
    if (!view.begin.has_payloads() && !(files.empty() && missing.empty())) {
      view.begin.set_has_payloads(true);
      files.clear();
      missing.clear();
      dump = DumpJson(view, dump_data_dir, has_payload, &files, &missing);
    }
    if (view.begin.has_payloads() && !options_.without_payloads)
      RP_RETURN_IF_ERROR(sink_->MakeDirectory(data_directory));
    if (options_.without_payloads) files.clear();
    for (const PayloadFile& file : files) {
      RP_ASSIGN_OR_RETURN(
          const bool written,
          WritePayload(data_directory + "/" + file.file_name, file));
      if (!written) unreadable.insert(file.tensor);
    }
    if (!unreadable.empty()) {
      files.clear();
      missing.clear();
      dump = DumpJson(view, dump_data_dir, has_payload, &files, &missing);
    }
    if (view.begin.task() == TaskName(Task::kMonitor)) {
      MonitoredStep parts = SplitMonitored(view);
      dump =
          DumpJson(parts.modules, dump_data_dir, has_payload, &files, &missing);
      RP_RETURN_IF_ERROR(WriteText(directory + "/debug.json",
                                   DumpJson(parts.others, dump_data_dir,
                                            has_payload, &files, &missing)));
    }
    const bool debug = view.begin.level() == "debug";
    RP_RETURN_IF_ERROR(
        WriteText(directory + (debug ? "/debug.json" : "/dump.json"), dump));
    if (!debug && view.begin.extra_info()) {
      RP_RETURN_IF_ERROR(WriteText(directory + "/stack.json", StackJson(view)));
      RP_RETURN_IF_ERROR(
          WriteText(directory + "/construct.json", ConstructJson(view)));
    }
    if (!view.requests.empty()) {
      RP_RETURN_IF_ERROR(
          WriteText(directory + "/requests.json", RequestsJson(view)));
    }
    if (const std::string notes = TensorNotesJson(view); !notes.empty()) {
      RP_RETURN_IF_ERROR(WriteText(directory + "/tensor_notes.json", notes));
    }
    if (!view.facts.empty()) {
      RP_RETURN_IF_ERROR(
          WriteText(directory + "/run_card.json", RunCardJson(view)));
    }
    const v1::StepLedger ledger =
        AccountStep(info, view, missing, unreadable,
                    DamageOf(store_, options_.run), *refused_);
    if (!view.errors.empty() || !ledger.gaps().empty()) {
      RP_RETURN_IF_ERROR(WriteText(directory + "/dump_error_info.log",
                                   ErrorLog(view, ledger)));
    }
    manifest_.AddLedger(rank_directory, ledger);
    if (!info.complete()) {
      manifest_.AddIncomplete(
          {info.step(), rank_directory,
           !view.has_begin         ? "the beginning of the step is missing"
           : !view.end.has_value() ? "the rank has not finished the step"
                                   : "fewer records than the rank sent"});
    }
    return absl::OkStatus();
  }

  // Adds the counts of all steps so far.
  void AddWholeBatches(v1::ExportDone* done) const {
    done->set_whole_batch_steps(done->whole_batch_steps() + whole_batch_steps_);
    done->set_whole_batch_tensors(done->whole_batch_tensors() +
                                  whole_batch_tensors_);
  }

  static std::string ErrorLog(const StepView& view,
                              const v1::StepLedger& ledger) {
    std::string log;
    for (const v1::ErrorEvent& error : view.errors) {
      absl::StrAppend(
          &log, absl::FormatTime(absl::FromUnixNanos(error.time_unix_ns())),
          " ", VisibleText(error.message()), "\n");
    }
    for (const v1::LedgerGap& gap : ledger.gaps())
      absl::StrAppend(&log, VisibleText(GapText(gap)), "\n");
    return log;
  }

  absl::Status WriteText(const std::string& path, const std::string& text) {
    RP_RETURN_IF_ERROR(sink_->BeginFile(path, text.size()));
    RP_RETURN_IF_ERROR(sink_->Write(text));
    RP_RETURN_IF_ERROR(sink_->EndFile());
    return Add({path, text.size(), XXH3_64bits(text.data(), text.size())});
  }

  // Returns false if the payload cannot be read; the file is then removed.
  absl::StatusOr<bool> WritePayload(const std::string& path,
                                    const PayloadFile& file) {
    const v1::TensorSummary& tensor = *file.tensor;
    const uint64_t bytes = BytesOf(tensor).size();
    if (DenseBytes(tensor) != bytes) return false;
    const std::vector<int64_t> shape(tensor.shape().begin(),
                                     tensor.shape().end());
    if (NumpyTextElementBytes(tensor).has_value()) {
      return WriteFile(path, tensor, "",
                       [&] { return NpyWriter(tensor, bytes); });
    }
    const std::string content =
        options_.link ? LinkTable::ContentOf(tensor, BytesOf(tensor))
                      : std::string();
    if (options_.link) {
      if (const auto first = links_->Find(content); first.has_value()) {
        RP_RETURN_IF_ERROR(sink_->LinkFile(path, first->path));
        RP_RETURN_IF_ERROR(Add({path, first->bytes, first->xxh3}));
        return true;
      }
    }
    if (absl::EndsWith(file.file_name, ".npy")) {
      return WriteFile(path, tensor, content,
                       [&] { return NpyWriter(tensor.dtype(), shape, bytes); });
    }
    // The archive name inside the file is the file's own, unless it has several
    // names.
    const absl::string_view stem =
        options_.link ? "archive" : absl::StripSuffix(file.file_name, ".pt");
    return WriteFile(path, tensor, content, [&] {
      return PtWriter(stem, tensor.dtype(), shape, bytes);
    });
  }

  // Returns the range of the payload that is written.
  ByteRange BytesOf(const v1::TensorSummary& tensor) const {
    const auto it = cut_.bytes.find(&tensor);
    return it != cut_.bytes.end()
               ? it->second
               : ByteRange{0, tensor.payload().length_bytes()};
  }

  // Like WritePayload, in the format of the writer. `content` is the key for
  // links of later files; empty: none.
  template <typename NewWriter>
  absl::StatusOr<bool> WriteFile(const std::string& path,
                                 const v1::TensorSummary& tensor,
                                 const std::string& content,
                                 NewWriter new_writer) {
    auto writer = new_writer();
    Manifest::File entry{path, writer.FileBytes(), 0};
    const std::optional<uint64_t> kept = sink_->FindKept(path, entry.bytes);
    if (kept.has_value()) {
      auto checker = new_writer();
      const absl::StatusOr<uint64_t> sum = Produce(
          tensor, &checker, [](absl::string_view) { return absl::OkStatus(); });
      if (absl::IsDataLoss(sum.status())) return false;
      RP_RETURN_IF_ERROR(sum.status());
      if (*sum == *kept) {
        RP_RETURN_IF_ERROR(sink_->UseKept(path));
        entry.xxh3 = *sum;
        if (!content.empty()) links_->Add(content, entry);
        RP_RETURN_IF_ERROR(Add(std::move(entry)));
        return true;
      }
    }
    RP_RETURN_IF_ERROR(sink_->BeginFile(path, entry.bytes));
    const absl::StatusOr<uint64_t> sum =
        Produce(tensor, &writer,
                [this](absl::string_view data) { return sink_->Write(data); });
    if (absl::IsDataLoss(sum.status())) {
      RP_RETURN_IF_ERROR(sink_->AbortFile());
      return false;
    }
    RP_RETURN_IF_ERROR(sum.status());
    RP_RETURN_IF_ERROR(sink_->EndFile());
    entry.xxh3 = *sum;
    if (!content.empty()) links_->Add(content, entry);
    RP_RETURN_IF_ERROR(Add(std::move(entry)));
    return true;
  }

  // Passes the bytes of the file to `write`. Returns their XXH3, or DATA_LOSS
  // if the archive cannot provide them.
  template <typename Writer, typename Write>
  absl::StatusOr<uint64_t> Produce(const v1::TensorSummary& tensor,
                                   Writer* writer, Write write) {
    FileHash hash;
    absl::Status write_status;
    const auto put = [&](absl::string_view data) {
      hash.Add(data);
      return write_status = write(data);
    };
    RP_RETURN_IF_ERROR(put(writer->prefix()));
    const ByteRange wanted = BytesOf(tensor);
    uint64_t at = 0;
    std::optional<PayloadHash> content;
    if (!options_.unchecked) content.emplace();
    const absl::Status read = store_->ReadPayload(
        options_.run, tensor.payload().digest(),
        tensor.payload().length_bytes(), [&](absl::string_view data) {
          const absl::string_view part = PartWithin(data, at, wanted);
          at += data.size();
          if (content.has_value()) content->Add(data);
          writer->AddData(part);
          return put(writer->Encode(part));
        });
    // An error of the sink is returned as it is.
    RP_RETURN_IF_ERROR(write_status);
    // An archive that does not answer has not lost the data.
    if (absl::IsUnavailable(read) || absl::IsDeadlineExceeded(read) ||
        absl::IsPermissionDenied(read))
      return read;
    if (!read.ok()) return absl::DataLossError(read.message());
    if (content.has_value() && !IsContentOf(tensor, content->Digest()))
      return absl::DataLossError("its bytes are not of the record's digest");
    RP_RETURN_IF_ERROR(put(writer->Suffix()));
    return hash.Digest();
  }

  bool IsContentOf(const v1::TensorSummary& tensor,
                   const std::string& digest) const {
    const v1::PayloadRef& payload = tensor.payload();
    if (payload.digest() == digest) return true;
    const std::optional<std::string> wanted = store_->ContentDigest(
        options_.run, payload.digest(), payload.length_bytes());
    return !wanted.has_value() || *wanted == digest;
  }

  absl::Status Add(Manifest::File file) {
    const absl::Status status = progress_->Done(file.path, file.bytes);
    manifest_.AddFile(std::move(file));
    return status;
  }

  ArchiveReader* const store_;
  const ExportOptions& options_;
  ExportSink* const sink_;
  const std::string& request_;
  const RefusedPayloads* const refused_;
  ProgressMeter* const progress_;
  LinkTable* const links_;
  // State of the step that is being written.
  RequestCut cut_;
  uint64_t whole_batch_steps_ = 0, whole_batch_tensors_ = 0;
  Manifest manifest_{options_.run};
};

absl::StatusOr<v1::ExportDone> ExportTo(ArchiveReader* store,
                                        const ExportOptions& options,
                                        const std::vector<ExportSink*>& sinks) {
  const MonotonicTime began = MonotonicNow();
  Manifest manifest(options.run);
  RP_ASSIGN_OR_RETURN(std::vector<v1::StepInfo> steps,
                      Select(store, options, &manifest));
  // If a run has no steps, the lost frames are all there is to report.
  Manifest lost(options.run);
  RP_RETURN_IF_ERROR(AddLostFrames(store, options, began, &lost));
  if (steps.empty() && lost.gap_count() == 0) {
    return absl::NotFoundError(absl::StrCat(
        "run \"", options.run,
        "\" has nothing in the chosen steps and ranks; `rankprobe status "
        "--steps` lists those that are recorded"));
  }
  v1::ExportDone done;
  if (!options.request.empty()) {
    RP_ASSIGN_OR_RETURN(
        *done.mutable_request(),
        KeepStepsOfRequest(store, options.run, options.request, &steps));
    done.set_request_steps(steps.size());
    manifest.set_request(done.request());
  }
  RP_ASSIGN_OR_RETURN(const RefusedPayloads refused,
                      RefusedPayloadsOf(store, options.run));
  ProgressMeter progress(&options);
  LinkTable links;
  absl::flat_hash_set<int64_t> numbers;
  for (const v1::StepInfo& step : steps) {
    numbers.insert(step.step());
    progress.Expect(3 + (options.without_payloads ? 0 : step.payloads()));
  }
  // In the order of the steps, whichever thread wrote them.
  std::vector<Manifest> written(steps.size(), Manifest(options.run));
  std::vector<std::unique_ptr<StepExporter>> exporters;
  exporters.reserve(sinks.size());
  for (ExportSink* const sink : sinks) {
    exporters.push_back(std::make_unique<StepExporter>(
        store, options, sink, &refused, done.request(), &progress, &links));
  }
  RP_RETURN_IF_ERROR(
      ParallelFor(steps.size(), sinks.size(), [&](size_t i, size_t worker) {
        const absl::Status status = exporters[worker]->ExportStep(steps[i]);
        written[i] = exporters[worker]->TakeManifest();
        return status;
      }));
  for (const Manifest& part : written) manifest.Append(part);
  manifest.Append(lost);
  for (const auto& exporter : exporters) exporter->AddWholeBatches(&done);
  if (options.manifest_in_reply) {
    done.set_manifest_json(manifest.ToJson());
  } else {
    RP_RETURN_IF_ERROR(
        exporters[0]->WriteText("manifest.json", manifest.ToJson()));
  }
  done.set_steps(numbers.size());
  done.set_gaps(manifest.gap_count());
  done.set_conflicts(manifest.conflict_count());
  done.set_incomplete_steps(manifest.incomplete_count());
  RP_RETURN_IF_ERROR(progress.Finish(&done));
  return done;
}

}  // namespace

absl::StatusOr<v1::ExportDone> ExportRun(ArchiveReader* store,
                                         const ExportOptions& options,
                                         ExportSink* sink) {
  return ExportTo(store, options, {sink});
}

absl::StatusOr<v1::ExportDone> ExportRunToDirectory(
    ArchiveReader* store, const ExportOptions& options, FileSystem* file_system,
    const std::string& directory) {
  RP_ASSIGN_OR_RETURN(
      const std::unique_ptr<StagedTree> tree,
      StagedTree::Open(file_system, directory,
                       options.resume ? StagedTree::Leftovers::kReuse
                                      : StagedTree::Leftovers::kDelete,
                       options.staging_directory));
  std::vector<std::unique_ptr<DirectorySink>> owned;
  std::vector<ExportSink*> sinks;
  for (int i = 0; i < std::max(options.threads, 1); ++i) {
    owned.push_back(std::make_unique<DirectorySink>(file_system, tree.get()));
    sinks.push_back(owned.back().get());
  }
  absl::StatusOr<v1::ExportDone> done = ExportTo(store, options, sinks);
  if (!done.ok()) {
    // After a cancellation or a full disk the written files are valid and can
    // be resumed.
    if (absl::IsCancelled(done.status()) ||
        absl::IsResourceExhausted(done.status()))
      tree->Keep();
    return done;
  }
  RP_RETURN_IF_ERROR(tree->Publish(options.run));
  for (const std::string& place : tree->moved_to()) done->add_moved_to(place);
  done->set_directory(directory);
  return done;
}

}  // namespace rankprobe
