// SPDX-License-Identifier: Apache-2.0
// Every control message an agent or an operator can send, in any order, against
// a control plane over a real store.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/control/control_plane.h"
#include "collector/store/store.h"
#include "common/filter/record_filter.h"
#include "tests/fuzz/pieces.h"

namespace rankprobe {
namespace {

// Opened once; plans of one input are there for the next.
Store* TheStore() {
  static const std::unique_ptr<FileSystem>& files =
      *new std::unique_ptr<FileSystem>(NewPosixFileSystem());
  static const ManualClock& clock = *new ManualClock();
  static Store* const store = [] {
    StoreOptions options;
    options.data_dir =
        absl::StrCat(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
                     "/rankprobe_fuzz_", ::getpid());
    files->DeleteTree(options.data_dir).IgnoreError();
    std::atexit([] {
      files
          ->DeleteTree(absl::StrCat(
              ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
              "/rankprobe_fuzz_", ::getpid()))
          .IgnoreError();
    });
    auto opened = Store::Open(options, files.get(), &clock);
    if (!opened.ok()) std::abort();
    return opened->release();
  }();
  return store;
}

template <typename Message>
bool Parse(const std::string& bytes, Message* message) {
  return message->ParseFromString(bytes);
}

class Play {
 public:
  Play() : events_(*EventLog::Open({}, nullptr, &clock_)) {
    ControlPlane::Options options;
    options.events = events_.get();
    options.max_sessions = 8;
    control_ = std::make_unique<ControlPlane>(options, TheStore(), TheStore(),
                                              &clock_);
  }
  ~Play() { control_->agents().Shutdown(); }

  void Piece(uint8_t kind, const std::string& bytes) {
    switch (kind % 12) {
      case 0: {
        v1::Hello hello;
        if (!Parse(bytes, &hello)) return;
        auto admission =
            control_->agents().Admit(hello, [](const v1::Directive&) {});
        if (admission.ok())
          sessions_.push_back(admission->welcome.session_id());
        break;
      }
      case 1: {
        v1::AgentEvent event;
        if (Parse(bytes, &event) && !sessions_.empty())
          control_->agents().OnEvent(sessions_[kind / 12 % sessions_.size()],
                                     event);
        break;
      }
      case 2: {
        v1::SetConfigRequest request;
        if (Parse(bytes, &request))
          control_->plans().SetConfig(request, [](const auto&) {});
        break;
      }
      case 3: {
        v1::SetDumpEnableRequest request;
        if (Parse(bytes, &request))
          control_->plans().SetDumpEnable(request, [](const auto&) {});
        break;
      }
      case 4: {
        v1::SetTriggersRequest request;
        if (Parse(bytes, &request))
          control_->triggers().Set(request).status().IgnoreError();
        break;
      }
      case 5: {
        v1::ShipFlightRequest request;
        if (Parse(bytes, &request))
          control_->triggers().ShipFlight(request).status().IgnoreError();
        break;
      }
      case 6: {
        v1::ExplainRequest request;
        if (Parse(bytes, &request))
          control_->explanations().Explain(request, [](const auto&) {});
        break;
      }
      case 7: {
        v1::ListEventsRequest request;
        if (Parse(bytes, &request)) control_->ListEvents(request);
        control_->agents().List("");
        control_->plans().GetConfig(bytes).status().IgnoreError();
        break;
      }
      case 8:
        clock_.Advance(absl::Milliseconds(100) * (kind / 12 + 1));
        control_->Tick();
        break;
      case 9:
        if (!sessions_.empty())
          control_->agents().Disconnected(
              sessions_[kind / 12 % sessions_.size()], "");
        break;
      case 10: {
        v1::RecordBatch batch;
        if (Parse(bytes, &batch)) CheckRecords(batch);
        break;
      }
      default:
        if (!sessions_.empty()) {
          control_->gate().NoteReceived(sessions_.back(), bytes.size() * 1000,
                                        0);
          control_->gate().Admits({}, 0, kind);
        }
        break;
    }
  }

 private:
  static void CheckRecords(const v1::RecordBatch& batch) {
    auto plan = std::make_shared<Plan>();
    plan->level = Level::kMix;
    plan->list = {"a"};
    RecordFilter gate(plan);
    for (const v1::Record& record : batch.records()) {
      if (record.has_trace()) gate.Replay(record.trace());
      if (record.has_call()) gate.Check(record.call());
    }
  }

  ManualClock clock_;
  const std::unique_ptr<EventLog> events_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::string> sessions_;
};

}  // namespace
}  // namespace rankprobe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rankprobe::Play play;
  rankprobe::ForEachPiece(data, size,
                          [&play](uint8_t kind, const std::string& bytes) {
                            play.Piece(kind, bytes);
                          });
  return 0;
}
