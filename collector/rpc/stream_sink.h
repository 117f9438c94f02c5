// SPDX-License-Identifier: Apache-2.0
// An ExportSink whose files are sent to the caller of an export. Small files
// are sent several per message, if the caller supports such messages.
//
// Not thread-safe. Failure: the status of `send`. Call Flush at the end.
#ifndef RANKPROBE_COLLECTOR_RPC_STREAM_SINK_H_
#define RANKPROBE_COLLECTOR_RPC_STREAM_SINK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collector/archive/export.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

class StreamSink : public ExportSink {
 public:
  using Send = std::function<absl::Status(v1::ExportEvent)>;

  StreamSink(const v1::ExportRequest& request, Send send);

  absl::Status BeginFile(const std::string& path,
                         uint64_t length_bytes) override;
  absl::Status Write(absl::string_view data) override;
  absl::Status EndFile() override { return absl::OkStatus(); }
  absl::Status AbortFile() override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status LinkFile(const std::string& path,
                        const std::string& existing) override;
  std::optional<uint64_t> FindKept(const std::string& path,
                                   uint64_t length_bytes) override;
  absl::Status UseKept(const std::string& path) override;
  // Sends the collected files.
  absl::Status Flush();

 private:
  // Sends the event after the collected files, because it may refer to them.
  absl::Status SendInOrder(v1::ExportEvent event);

  const Send send_;
  const bool takes_files_;
  // By path and length.
  absl::flat_hash_map<std::pair<std::string, uint64_t>, uint64_t> kept_;
  // Small files that are sent together; `open_` is the one being written.
  v1::ExportEvent batch_;
  v1::ExportFile* open_ = nullptr;
  uint64_t batch_bytes_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_STREAM_SINK_H_
