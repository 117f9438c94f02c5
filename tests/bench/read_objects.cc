// SPDX-License-Identifier: Apache-2.0
// Read throughput of an object store; prints one JSON object.
//   bench_objects URL             all objects, one after the other, by 8 MiB
//   bench_objects URL DIRECTORY   the same into files there
// The credentials are those of the environment (docs/scale.md).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "collector/object_store/open_object_store.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint64_t kRangeBytes = 8 << 20;

absl::Status ReadAll(ObjectStore* store, const std::string& directory,
                     uint64_t* objects, uint64_t* bytes) {
  std::string last;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list, store->List("v1/", last, 1000));
    for (const ObjectInfo& object : list.objects) {
      last = object.key;
      ++*objects;
      *bytes += object.bytes;
      std::ofstream file;
      if (!directory.empty()) {
        file.open(absl::StrCat(directory, "/",
                               absl::StrReplaceAll(object.key, {{"/", "+"}})));
      }
      for (uint64_t at = 0; at < object.bytes; at += kRangeBytes) {
        RP_ASSIGN_OR_RETURN(
            const std::string got,
            store->Get(object.key, at,
                       std::min(kRangeBytes, object.bytes - at)));
        if (!directory.empty()) file << got;
      }
      if (!directory.empty() && !file.flush())
        return absl::UnknownError(absl::StrCat("cannot write ", object.key));
    }
    if (!list.more) return absl::OkStatus();
  }
}

int Main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: bench_objects URL [DIRECTORY]\n");
    return 2;
  }
  const SystemClock clock;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  ObjectStoreOptions options;
  options.url = argv[1];
  const auto store =
      OpenObjectStore(options, ProcessEnvironment(), files.get(), &clock);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  uint64_t objects = 0, bytes = 0;
  const auto began = std::chrono::steady_clock::now();
  const absl::Status status =
      ReadAll(store->get(), argc == 3 ? argv[2] : "", &objects, &bytes);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - began;
  std::printf("{\"seconds\": %.6f, \"objects\": %llu, \"bytes\": %llu}\n",
              seconds.count(), static_cast<unsigned long long>(objects),
              static_cast<unsigned long long>(bytes));
  return 0;
}

}  // namespace
}  // namespace rankprobe

int main(int argc, char** argv) { return rankprobe::Main(argc, argv); }
