// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/open_object_store.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/object_store/curl_transport.h"
#include "collector/object_store/directory_object_store.h"
#include "collector/object_store/s3_credentials.h"
#include "collector/object_store/s3_object_store.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"
#include "common/io/confined_file_system.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

// A bucket that owns its transport.
class OwningS3Store : public S3ObjectStore {
 public:
  OwningS3Store(S3Options options, std::unique_ptr<HttpTransport> transport,
                const Clock* clock)
      : S3ObjectStore(std::move(options), transport.get(), clock),
        transport_(std::move(transport)) {}

 private:
  const std::unique_ptr<HttpTransport> transport_;
};

// A directory that owns its confined file system.
class OwningDirectoryStore : public DirectoryObjectStore {
 public:
  OwningDirectoryStore(std::unique_ptr<FileSystem> confined,
                       std::string directory)
      : DirectoryObjectStore(confined.get(), std::move(directory)),
        confined_(std::move(confined)) {}

 private:
  const std::unique_ptr<FileSystem> confined_;
};

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenDirectory(
    std::string directory, bool make, FileSystem* file_system) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  if (make && !file_system->Exists(directory)) {
    RP_RETURN_IF_ERROR(file_system->CreateDirectories(directory));
    const size_t slash = directory.rfind('/');
    RP_RETURN_IF_ERROR(file_system->SyncDirectory(
        slash == 0 ? "/" : directory.substr(0, slash)));
  }
  absl::StatusOr<std::unique_ptr<FileSystem>> confined = NewConfinedFileSystem(
      {directory}, PathWalk::kBest, RootLookup::kEachCall);
  if (absl::IsNotFound(confined.status()) && file_system->Exists(directory)) {
    return absl::NotFoundError(absl::StrCat(
        "object store ", VisibleText(directory), " is not a directory"));
  }
  if (absl::IsNotFound(confined.status())) {
    return absl::NotFoundError(
        absl::StrCat("object store ", VisibleText(directory),
                     ": there is no such directory; a collector that stores "
                     "there makes it"));
  }
  RP_RETURN_IF_ERROR(confined.status());
  return std::make_unique<OwningDirectoryStore>(*std::move(confined),
                                                std::move(directory));
}

double RandomShare() {
  uint64_t bits = 0;
  const std::string bytes = RandomBytes(sizeof(bits));
  std::memcpy(&bits, bytes.data(), sizeof(bits));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

absl::Status CheckObjectStoreUrl(const std::string& url,
                                 const EnvironmentFn& environment) {
  if (absl::StartsWith(url, "s3://"))
    return ParseS3Location(url, environment).status();
  if (absl::StartsWith(url, "/")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("object store \"", VisibleText(url),
                   "\" is neither s3://BUCKET/PREFIX nor the absolute path "
                   "of a directory"));
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(
    const ObjectStoreOptions& options, const EnvironmentFn& environment,
    FileSystem* file_system, const Clock* clock) {
  RP_RETURN_IF_ERROR(CheckObjectStoreUrl(options.url, environment));
  if (!absl::StartsWith(options.url, "s3://"))
    return OpenDirectory(options.url, options.make_directory, file_system);
  S3Options s3;
  RP_ASSIGN_OR_RETURN(s3.location, ParseS3Location(options.url, environment));
  s3.request_timeout = options.request_timeout;
  s3.call_timeout = options.call_timeout;
  s3.pacing.random = &RandomShare;
  s3.credentials = [profile = s3.location.profile, environment, file_system] {
    return LoadS3Credentials(profile, environment, file_system);
  };
  s3.sleep = options.sleep ? options.sleep : [](absl::Duration wait) {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(wait));
    return true;
  };
  // Reported at the start instead of at the first upload.
  RP_RETURN_IF_ERROR(s3.credentials().status());
  CurlOptions curl;
  curl.ca_file = s3.location.ca_file;
  RP_ASSIGN_OR_RETURN(std::unique_ptr<HttpTransport> transport,
                      NewCurlTransport(curl));
  return std::make_unique<OwningS3Store>(std::move(s3), std::move(transport),
                                         clock);
}

}  // namespace rankprobe
