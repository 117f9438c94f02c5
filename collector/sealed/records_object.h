// SPDX-License-Identifier: Apache-2.0
// Records of finished steps in one sealed object: each step of a process has
// its own sequence of frames, so that one range of the object contains all of
// it. A frame holds complete records, each preceded by its length as a varint.
// Not thread-safe, except ReadSealedRecords. Failure: DATA_LOSS for damage.
#ifndef RANKPROBE_COLLECTOR_SEALED_RECORDS_OBJECT_H_
#define RANKPROBE_COLLECTOR_SEALED_RECORDS_OBJECT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/sealed_object.h"
#include "rankprobe/v1/sealed.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class RecordsObjectWriter {
 public:
  static absl::StatusOr<std::unique_ptr<RecordsObjectWriter>> Create(
      FileSystem* file_system, const std::string& path);
  // Sets what makes the object's name differ from any of another collector
  // (SealedRecordsIndex.origin).
  void SetOrigin(const std::string& origin) { index_.set_origin(origin); }

  // Begins a step; the records added next belong to it.
  absl::Status BeginMember(int64_t step, uint64_t incarnation);
  // Adds a record, in the order of the step.
  absl::Status Add(const v1::Record& record);
  uint64_t bytes() const { return object_->bytes() + raw_.size(); }
  absl::StatusOr<v1::SealedObject> Finish();

 private:
  explicit RecordsObjectWriter(std::unique_ptr<SealedObjectWriter> object)
      : object_(std::move(object)) {}
  absl::Status EndFrame();

  const std::unique_ptr<SealedObjectWriter> object_;
  v1::SealedRecordsIndex index_;
  std::string raw_;
};

// Reads and checks the index of an object of records: frames lie within it.
absl::StatusOr<v1::SealedRecordsIndex> ReadRecordsIndex(ObjectStore* store,
                                                        const std::string& key,
                                                        uint64_t object_bytes);

// Reads the records of one member in order; stops at the callback's error.
absl::Status ReadSealedRecords(
    ObjectStore* store, const std::string& key, const v1::SealedMember& member,
    const std::function<absl::Status(const v1::Record&)>& callback);

// Returns whether the frames lie within an object of this size, and have a size
// that a writer makes.
bool FramesFit(
    uint64_t offset_bytes,
    const google::protobuf::RepeatedPtrField<v1::SealedFrame>& frames,
    uint64_t object_bytes);

// Returns these bytes of an object.
using ReadRange =
    std::function<absl::StatusOr<std::string>(uint64_t offset, uint64_t bytes)>;

// Decodes the frames in order; several are read with one range. `key` is for
// messages.
absl::Status ForEachSealedFrame(
    const ReadRange& read, const std::string& key, uint64_t offset_bytes,
    const google::protobuf::RepeatedPtrField<v1::SealedFrame>& frames,
    const std::function<absl::Status(absl::string_view raw)>& callback);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_RECORDS_OBJECT_H_
