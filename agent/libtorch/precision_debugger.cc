// SPDX-License-Identifier: Apache-2.0
#include "agent/libtorch/precision_debugger.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Lives as long as the process, because sessions keep pointers to it.
const SystemClock& ProcessClock() {
  static const SystemClock clock;
  return clock;
}

absl::StatusOr<std::string> ReadConfig(const DebuggerOptions& options) {
  if (options.config_path.empty()) return options.config_json;
  std::ifstream file(options.config_path, std::ios::binary);
  if (!file.good())
    return absl::NotFoundError(
        absl::StrCat("cannot read ", options.config_path));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool IsSingleProcess() {
  const char* const world_size = std::getenv("WORLD_SIZE");
  return world_size == nullptr || absl::string_view(world_size).empty() ||
         absl::string_view(world_size) == "1";
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrecisionDebugger>> PrecisionDebugger::Create(
    const DebuggerOptions& options) {
  // Created before the file is read, so that no edit in between is missed.
  std::unique_ptr<ConfigFile> file;
  if (!options.config_path.empty())
    file = std::make_unique<ConfigFile>(options.config_path);
  RP_ASSIGN_OR_RETURN(const std::string read, ReadConfig(options));
  const std::string config =
      MergeOverrides(read.empty() ? std::string(DefaultConfigJson()) : read,
                     options.overrides);
  RecorderOptions recorder_options;
  recorder_options.config_json = config;
  recorder_options.overrides = options.overrides;
  RP_ASSIGN_OR_RETURN(
      SessionOptions session_options,
      MakeSessionOptions(
          options.agent, [](const char* name) { return std::getenv(name); },
          ProcessClock()));
  recorder_options.stop_deadline = session_options.block_deadline;
  recorder_options.silence_deadline = session_options.silence_deadline;
  session_options.config_json = config;
  session_options.config_path = options.config_path;
  session_options.framework_version = absl::StrCat("libtorch ", TORCH_VERSION);
  if (session_options.identity.has_rank())
    recorder_options.rank = session_options.identity.rank();
  std::unique_ptr<Session> session;
  if (session_options.collector.empty() &&
      session_options.on_missing != MissingCollector::kIgnore) {
    return absl::InvalidArgumentError(
        "no collector is named, and on_collector_missing is not ignore");
  }
  if (!session_options.collector.empty()) {
    RP_ASSIGN_OR_RETURN(
        session, Session::Create(std::move(session_options), &ProcessClock()));
  }
  RP_ASSIGN_OR_RETURN(std::unique_ptr<Recorder> recorder,
                      Recorder::Create(std::move(recorder_options),
                                       std::move(session), &ProcessClock()));
  std::unique_ptr<PrecisionDebugger> debugger = Over(std::move(recorder));
  if (file != nullptr &&
      debugger->recorder()->plan()->dump_enable.has_value()) {
    debugger->file_ = std::move(file);
    debugger->overrides_ = options.overrides;
  }
  return debugger;
}

PrecisionDebugger::PrecisionDebugger(std::shared_ptr<Recorder> recorder)
    : context_([&] {
        auto context = std::make_shared<HookContext>();
        context->recorder = std::move(recorder);
        return context;
      }()),
      observer_(context_),
      parameters_(context_) {}

PrecisionDebugger::~PrecisionDebugger() {
  observer_.Remove();
  context_->recorder->Stop();
}

void PrecisionDebugger::Say(const std::optional<std::string>& notice) {
  if (notice.has_value())
    std::fputs(absl::StrCat("rankprobe: ", *notice, "\n").c_str(), stderr);
}

void PrecisionDebugger::FollowFile() {
  if (file_ == nullptr) return;
  std::optional<absl::StatusOr<std::string>> text = file_->Look();
  if (!text.has_value()) return;
  if (text->ok()) text = MergeOverrides(**text, overrides_);
  const EditReport report = SubmitEdit(file_->path(), *text, /*at_once=*/false,
                                       recorder()->session());
  for (const std::string& warning : report.warnings) {
    std::fprintf(stderr, "rankprobe: %s: %s\n", file_->path().c_str(),
                 warning.c_str());
  }
  if (!report.fault.empty())
    std::fputs(FaultLine(file_->path(), report.fault).c_str(), stderr);
}

void PrecisionDebugger::Start() {
  FollowFile();
  context_->recorder->Start();
  const std::shared_ptr<const Plan> plan = context_->recorder->plan();
  if (!recording())
    Say(notices_.Started(plan, context_->recorder->rank(), IsSingleProcess()));
  if (recording() && plan->RecordsApis()) {
    observer_.Install();
  } else {
    observer_.Remove();
  }
}

void PrecisionDebugger::Stop() {
  observer_.Remove();
  // Also for the flight recorder, whose plan has the same filters.
  if (recording()) {
    const StepRecords::Forwards forwards = context_->recorder->forwards();
    Say(notices_.Stopped(context_->recorder->plan(), forwards.seen,
                         forwards.matched, context_->recorder->current_step()));
  }
  context_->recorder->Stop();
}

void PrecisionDebugger::Step() {
  observer_.Remove();
  context_->recorder->Step();
  context_->adapter.EndStep();
  context_->leaf_hooks.RemoveAll();
}

void PrecisionDebugger::Save(const at::Tensor& tensor, const std::string& name,
                             bool save_backward) {
  try {
    const SuppressObserver suppress;
    const std::optional<SavedValue> saved = context_->recorder->saved().Save(
        name,
        [&](CallBuilder& builder, v1::Value* out) {
          context_->adapter.Add(builder, tensor, out);
        },
        save_backward ? [](CallBuilder&, v1::Value*) {} : BuildValue());
    if (!saved.has_value() || saved->gradient_entry.empty() ||
        !tensor.defined() || !tensor.requires_grad())
      return;
    tensor.register_hook([context = context_,
                          saved = *saved](const at::Tensor& gradient) -> void {
      RecordSavedGradient(context->recorder.get(), saved, gradient);
    });
  } catch (const std::exception& e) {
    context_->recorder->ReportFault(
        absl::StrCat("save ", name, ": ", e.what()));
  }
}

void PrecisionDebugger::ReportReplica(const std::vector<at::Tensor>& tensors) {
  try {
    if (!context_->recorder->reports().WantsReplica()) return;
    const SuppressObserver suppress;
    std::vector<std::unique_ptr<HostTensor>> held;
    std::vector<TensorInfo> infos;
    for (const at::Tensor& tensor : tensors) {
      held.push_back(std::make_unique<HostTensor>(tensor));
      if (held.back()->valid()) infos.push_back(held.back()->info());
    }
    context_->recorder->reports().ReportReplica(infos);
  } catch (const std::exception& e) {
    context_->recorder->ReportFault(absl::StrCat("replica: ", e.what()));
  }
}

}  // namespace rankprobe
