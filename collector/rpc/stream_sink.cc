// SPDX-License-Identifier: Apache-2.0
#include "collector/rpc/stream_sink.h"

#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Bytes of file data in one message.
constexpr size_t kMessageBytes = 256 << 10;
// Files up to this size are sent in one piece.
constexpr uint64_t kMaxWholeFileBytes = 64 << 10;

}  // namespace

StreamSink::StreamSink(const v1::ExportRequest& request, Send send)
    : send_(std::move(send)), takes_files_(request.takes_files()) {
  for (const v1::ExportKeptFile& file : request.kept())
    kept_[{file.path(), file.length_bytes()}] = file.xxh3();
}

absl::Status StreamSink::BeginFile(const std::string& path,
                                   uint64_t length_bytes) {
  open_ = nullptr;
  if (takes_files_ && length_bytes <= kMaxWholeFileBytes) {
    const uint64_t bytes = path.size() + length_bytes;
    if (batch_bytes_ + bytes > kMessageBytes) RP_RETURN_IF_ERROR(Flush());
    batch_bytes_ += bytes;
    open_ = batch_.mutable_files()->add_files();
    open_->set_path(path);
    open_->mutable_data()->reserve(length_bytes);
    return absl::OkStatus();
  }
  v1::ExportEvent event;
  event.mutable_file_begin()->set_path(path);
  event.mutable_file_begin()->set_length_bytes(length_bytes);
  return SendInOrder(std::move(event));
}

absl::Status StreamSink::Write(absl::string_view data) {
  if (open_ != nullptr) {
    open_->mutable_data()->append(data.data(), data.size());
    return absl::OkStatus();
  }
  while (!data.empty()) {
    v1::ExportEvent event;
    const absl::string_view piece = data.substr(0, kMessageBytes);
    event.mutable_file_data()->set_data(piece.data(), piece.size());
    RP_RETURN_IF_ERROR(SendInOrder(std::move(event)));
    data.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::Status StreamSink::AbortFile() {
  if (open_ != nullptr) {
    batch_.mutable_files()->mutable_files()->RemoveLast();
    open_ = nullptr;
    return absl::OkStatus();
  }
  v1::ExportEvent event;
  event.set_file_abort(true);
  return SendInOrder(std::move(event));
}

absl::Status StreamSink::MakeDirectory(const std::string& path) {
  v1::ExportEvent event;
  event.set_directory(path);
  return SendInOrder(std::move(event));
}

absl::Status StreamSink::LinkFile(const std::string& path,
                                  const std::string& existing) {
  v1::ExportEvent event;
  event.mutable_file_link()->set_path(path);
  event.mutable_file_link()->set_existing(existing);
  return SendInOrder(std::move(event));
}

std::optional<uint64_t> StreamSink::FindKept(const std::string& path,
                                             uint64_t length_bytes) {
  const auto it = kept_.find({path, length_bytes});
  if (it == kept_.end()) return std::nullopt;
  return it->second;
}

absl::Status StreamSink::UseKept(const std::string& path) {
  v1::ExportEvent event;
  event.set_file_kept(path);
  return SendInOrder(std::move(event));
}

absl::Status StreamSink::Flush() {
  batch_bytes_ = 0;
  open_ = nullptr;
  if (batch_.files().files().empty()) return absl::OkStatus();
  return send_(std::exchange(batch_, v1::ExportEvent()));
}

absl::Status StreamSink::SendInOrder(v1::ExportEvent event) {
  RP_RETURN_IF_ERROR(Flush());
  return send_(std::move(event));
}

}  // namespace rankprobe
