// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of sealed archives: an object store that fails at a chosen
// call and checks the rules of the log, and comparison of trees.
#ifndef RANKPROBE_COLLECTOR_SEALED_TESTING_SEALED_FIXTURE_H_
#define RANKPROBE_COLLECTOR_SEALED_TESTING_SEALED_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "collector/object_store/object_store.h"
#include "collector/sealed/sealed_keys.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

// Objects in memory. From a chosen call on nothing is done any more, as if the
// collector had died or the store were unreachable.
class FaultObjectStore : public ObjectStore {
 public:
  enum class Fault {
    // The call is not done.
    kBefore,
    // The call is done, and its answer is lost.
    kAfter,
  };

  std::string name() const override { return "objects in memory"; }

  uint64_t calls() const { return calls_; }
  // Counts calls from now, beginning with 1. 0: none fails.
  void FailFrom(uint64_t call, Fault fault) {
    fail_at_ = call == 0 ? 0 : calls_ + call;
    fault_ = fault;
  }
  // Only that call returns `answer` and is not done; later calls are.
  void FailOnce(uint64_t call, absl::Status answer) {
    fail_once_at_ = calls_ + call;
    answer_ = std::move(answer);
  }
  const std::map<std::string, std::string>& objects() const { return objects_; }
  std::map<std::string, std::string>* mutable_objects() { return &objects_; }
  // Called before each call is done, with its number; not for calls made by the
  // callback.
  std::function<void(uint64_t number)> before_call;
  // Called before an entry of a log is put.
  std::function<void(const std::string& key)> before_commit;

  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override {
    return Do([&]() -> absl::Status {
      if (absl::StrContains(key, "/log/")) {
        if (before_commit && !std::exchange(committing_, true)) {
          before_commit(key);
          committing_ = false;
        }
      }
      if (mode == PutMode::kIfAbsent && objects_.count(key) > 0)
        return absl::AlreadyExistsError(key);
      // No entry of a log is ever changed.
      if (absl::StrContains(key, "/log/")) {
        CheckEntry(key, bytes);
        EXPECT_EQ(objects_.count(key), 0u) << key;
      }
      objects_[key] = std::string(bytes);
      return absl::OkStatus();
    });
  }
  absl::Status PutFile(const std::string& key, FileSystem* file_system,
                       const std::string& path) override {
    return Do([&]() -> absl::Status {
      const auto size = file_system->FileSize(path);
      if (!size.ok()) return size.status();
      auto file = file_system->OpenForRead(path);
      if (!file.ok()) return file.status();
      std::string bytes(*size, '\0');
      const absl::Status read = (*file)->Read(0, absl::MakeSpan(bytes));
      if (!read.ok()) return read;
      const auto there = objects_.find(key);
      // The name of an object is its content's, so equal names mean equal
      // bytes.
      EXPECT_TRUE(there == objects_.end() || there->second == bytes) << key;
      objects_[key] = std::move(bytes);
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::string> Get(const std::string& key, uint64_t offset,
                                  uint64_t bytes) override {
    std::string out;
    const absl::Status status = Do([&]() -> absl::Status {
      const auto it = objects_.find(key);
      if (it == objects_.end()) return absl::NotFoundError(key);
      if (offset > it->second.size() || bytes > it->second.size() - offset)
        return absl::OutOfRangeError(key);
      out = it->second.substr(offset, bytes);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return out;
  }
  absl::StatusOr<ObjectTail> GetTail(const std::string& key,
                                     uint64_t bytes) override {
    ObjectTail tail;
    const absl::Status status = Do([&]() -> absl::Status {
      const auto it = objects_.find(key);
      if (it == objects_.end()) return absl::NotFoundError(key);
      tail.object_bytes = it->second.size();
      tail.bytes = it->second.substr(
          it->second.size() - std::min<uint64_t>(bytes, it->second.size()));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return tail;
  }
  absl::StatusOr<ObjectList> List(const std::string& prefix,
                                  const std::string& start_after,
                                  size_t most) override {
    ObjectList list;
    const absl::Status status = Do([&]() -> absl::Status {
      for (auto it = objects_.upper_bound(std::max(prefix, start_after));
           it != objects_.end() && absl::StartsWith(it->first, prefix); ++it) {
        if (list.objects.size() == most) {
          list.more = true;
          break;
        }
        list.objects.push_back({it->first, it->second.size()});
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return list;
  }
  absl::Status Delete(const std::string& key) override {
    return Do([&]() -> absl::Status {
      objects_.erase(key);
      return absl::OkStatus();
    });
  }

 private:
  template <typename Call>
  absl::Status Do(Call call) {
    if (++calls_ == fail_once_at_) return answer_;
    if (before_call && !std::exchange(calling_, true)) {
      before_call(calls_);
      calling_ = false;
    }
    const bool dead = fail_at_ != 0 && calls_ >= fail_at_;
    absl::Status status;
    if (!dead || (calls_ == fail_at_ && fault_ == Fault::kAfter))
      status = call();
    return dead ? absl::UnavailableError("the store does not answer") : status;
  }

  // Expects that the objects that an entry names exist completely before it is
  // put.
  void CheckEntry(const std::string& key, absl::string_view bytes) {
    const auto entry = sealed::DecodeEntry(bytes);
    ASSERT_TRUE(entry.ok()) << key << " " << entry.status();
    const std::string run = sealed::RunKey(entry->run());
    const auto check = [&](const std::string& name_key,
                           const v1::SealedObject& object) {
      const auto it = objects_.find(name_key);
      ASSERT_TRUE(it != objects_.end())
          << key << " is committed before " << name_key;
      EXPECT_EQ(it->second.size(), object.bytes());
      EXPECT_EQ(absl::BytesToHexString(DigestOf(it->second)), object.name());
    };
    if (entry->has_records())
      check(sealed::RecordsKey(run, entry->records().name()), entry->records());
    for (const v1::SealedObject& pack : entry->packs())
      check(sealed::PackKey(run, pack.name()), pack);
    EXPECT_TRUE(objects_.count(sealed::NameKey(run)) == 1);
  }

  std::map<std::string, std::string> objects_;
  uint64_t calls_ = 0;
  bool calling_ = false, committing_ = false;
  uint64_t fail_at_ = 0, fail_once_at_ = 0;
  absl::Status answer_;
  Fault fault_ = Fault::kBefore;
};

// Returns every file below the directory, by its path.
inline std::map<std::string, std::string> TreeOf(const std::string& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    files[entry.path().string().substr(root.size())] = text.str();
  }
  return files;
}

// Expects the same files with the same bytes; reports which differ.
inline void ExpectSameTree(const std::string& a, const std::string& b) {
  const auto left = TreeOf(a), right = TreeOf(b);
  EXPECT_EQ(left.size(), right.size());
  for (const auto& [path, bytes] : left) {
    const auto it = right.find(path);
    ASSERT_TRUE(it != right.end()) << path << " is missing";
    EXPECT_TRUE(it->second == bytes) << path << " differs";
  }
}

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_SEALED_TESTING_SEALED_FIXTURE_H_
