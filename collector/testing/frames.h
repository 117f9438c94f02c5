// SPDX-License-Identifier: Apache-2.0
// Builders of frames for tests of the store and its users.
#ifndef RANKPROBE_COLLECTOR_TESTING_FRAMES_H_
#define RANKPROBE_COLLECTOR_TESTING_FRAMES_H_

#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collector/store/store.h"
#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

inline std::string DigestOf(absl::string_view data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  return {reinterpret_cast<const char*>(canonical.digest), 16};
}

// Returns the same bytes for the same seed.
inline std::string RandomBytes(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  std::string data(size, '\0');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

inline v1::Identity MakeIdentity(const std::string& run, int64_t rank,
                                 uint64_t incarnation) {
  v1::Identity identity;
  identity.set_run(run);
  if (rank >= 0) identity.set_rank(rank);
  identity.set_pid(1000 + std::max<int64_t>(rank, 0));
  identity.set_host("host");
  identity.set_incarnation(incarnation);
  return identity;
}

// Reads a payload's bytes from the archive.
inline absl::StatusOr<std::string> ReadBack(ArchiveReader* archive,
                                            const std::string& run,
                                            absl::string_view digest,
                                            uint64_t length_bytes) {
  std::string out;
  const absl::Status status = archive->ReadPayload(
      run, digest, length_bytes, [&](absl::string_view piece) {
        out.append(piece.data(), piece.size());
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return out;
}
inline absl::StatusOr<std::string> ReadBack(ArchiveReader* archive,
                                            const std::string& data,
                                            const std::string& run = "run") {
  return ReadBack(archive, run, DigestOf(data), data.size());
}

// Adds a tensor with these bytes to the output of the record's call.
inline void AddOutput(absl::string_view data, v1::Record* record) {
  v1::PayloadRef* const payload = record->mutable_call()
                                      ->mutable_output()
                                      ->add_items()
                                      ->mutable_tensor()
                                      ->mutable_payload();
  payload->set_digest(DigestOf(data));
  payload->set_length_bytes(data.size());
}

// The frames of one incarnation, numbered from 1.
class Frames {
 public:
  explicit Frames(v1::Identity identity) : identity_(std::move(identity)) {}

  v1::RecordBatch* AddBatch(int64_t step) {
    v1::UploadFrame& frame = frames_.emplace_back();
    frame.set_sequence(frames_.size());
    frame.mutable_batch()->set_step(step);
    return frame.mutable_batch();
  }

  void AddPayload(absl::string_view data, size_t chunk_bytes = 1 << 20) {
    const std::string digest = DigestOf(data);
    for (size_t at = 0; at < data.size(); at += chunk_bytes) {
      v1::UploadFrame& frame = frames_.emplace_back();
      frame.set_sequence(frames_.size());
      v1::PayloadChunk& chunk = *frame.mutable_chunk();
      chunk.set_digest(digest);
      chunk.set_length_bytes(data.size());
      chunk.set_offset_bytes(at);
      const absl::string_view piece = data.substr(at, chunk_bytes);
      chunk.set_data(piece.data(), piece.size());
      chunk.set_crc32c(Crc32c(piece));
    }
  }

  // Adds a finished step: the payload, and one call that refers to it.
  void AddStep(int64_t step, absl::string_view data,
               size_t chunk_bytes = 1 << 20) {
    AddPayload(data, chunk_bytes);
    v1::RecordBatch* const batch = AddBatch(step);
    v1::Record* const record = batch->add_records();
    record->mutable_call()->set_entry(absl::StrCat("e", step));
    AddOutput(data, record);
    v1::Record* const end = batch->add_records();
    end->set_order(1);
    end->mutable_step_end()->set_call_phases(1);
    end->mutable_step_end()->set_payloads(1);
  }

  v1::UploadFrame& frame(size_t i) { return frames_[i]; }
  size_t size() const { return frames_.size(); }
  const v1::Identity& identity() const { return identity_; }

  // Returns frames [first, last) in the form that Commit takes.
  std::vector<FrameToStore> Range(size_t first, size_t last) const {
    std::vector<FrameToStore> out;
    for (size_t i = first; i < last; ++i)
      out.push_back({&identity_, &frames_[i]});
    return out;
  }
  std::vector<FrameToStore> All() const { return Range(0, frames_.size()); }

 private:
  const v1::Identity identity_;
  std::vector<v1::UploadFrame> frames_;
};

// Options without a limit on free disk space.
inline StoreOptions OptionsAt(const std::string& data_dir,
                              uint64_t segment_bytes = 1 << 30) {
  StoreOptions options;
  options.data_dir = data_dir;
  options.min_free_bytes = 0;
  options.segment_bytes = segment_bytes;
  return options;
}

// A temporary directory for each test.
class TempDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "rankprobeXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override {
    EXPECT_TRUE(file_system_->DeleteTree(root_).ok());
  }

  StoreOptions Options(uint64_t segment_bytes = 1 << 30) const {
    return OptionsAt(root_ + "/data", segment_bytes);
  }
  std::unique_ptr<Store> OpenStore() { return OpenStore(Options()); }
  std::unique_ptr<Store> OpenStore(const StoreOptions& options) {
    auto store = Store::Open(options, file_system_.get(), &clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  ManualClock clock_;
  std::string root_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_FRAMES_H_
