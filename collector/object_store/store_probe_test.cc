// SPDX-License-Identifier: Apache-2.0
// Stores with the faults of some real stores: the probe refuses them.
#include "collector/object_store/store_probe.h"

#include <functional>
#include <string>

#include "collector/object_store/directory_object_store.h"
#include "collector/object_store/testing/put_modes.h"
#include "common/testing/fault_file_system.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using PutFn = std::function<absl::Status(
    ObjectStore*, const std::string&, absl::string_view, ObjectStore::PutMode)>;

class OtherPut : public DirectoryObjectStore {
 public:
  OtherPut(FileSystem* files, PutFn put)
      : DirectoryObjectStore(files, "/d"), put_(std::move(put)) {}
  absl::Status Put(const std::string& key, absl::string_view bytes,
                   PutMode mode) override {
    if (inside_) return DirectoryObjectStore::Put(key, bytes, mode);
    inside_ = true;
    const absl::Status status = put_(this, key, bytes, mode);
    inside_ = false;
    return status;
  }

 private:
  const PutFn put_;
  static thread_local bool inside_;
};
thread_local bool OtherPut::inside_ = false;

absl::Status ProbeWith(PutFn put) {
  testing::FaultFileSystem files;
  OtherPut store(&files, std::move(put));
  return ProbeObjectStore(&store, {.sizes = {64, 4096}});
}

using testing::kReplace;

TEST(StoreProbe, TakesAStoreThatKeepsTheCondition) {
  EXPECT_EQ(ProbeWith([](ObjectStore* store, const std::string& key,
                         absl::string_view bytes, ObjectStore::PutMode mode) {
              return store->Put(key, bytes, mode);
            }),
            absl::OkStatus());
}

TEST(StoreProbe, RefusesOneThatIgnoresTheCondition) {
  const absl::Status status = ProbeWith(
      [](ObjectStore* store, const std::string& key, absl::string_view bytes,
         ObjectStore::PutMode) { return store->Put(key, bytes, kReplace); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("directory /d is not fit"),
            std::string::npos);
  EXPECT_NE(status.message().find("8 of 8"), std::string::npos) << status;
}

TEST(StoreProbe, RefusesOneThatTellsTheWrongRacer) {
  const absl::Status status =
      ProbeWith([](ObjectStore* store, const std::string& key,
                   absl::string_view bytes, ObjectStore::PutMode mode) {
        const absl::Status put = store->Put(key, bytes, mode);
        // Keeps the last one's bytes, but answers like the first one.
        if (!put.ok()) store->Put(key, bytes, kReplace).IgnoreError();
        return put;
      });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST(StoreProbe, GivesBackTheStoresOwnError) {
  EXPECT_TRUE(absl::IsPermissionDenied(ProbeWith(
      [](ObjectStore*, const std::string&, absl::string_view,
         ObjectStore::PutMode) { return absl::PermissionDeniedError("no"); })));
}

}  // namespace
}  // namespace rankprobe
