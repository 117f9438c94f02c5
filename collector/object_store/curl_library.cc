// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/curl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr unsigned kOldestVersion = 0x073e00;

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the libcurl of this machine has no ", name));
  }
  *function = reinterpret_cast<Function>(symbol);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CurlLibrary> CurlLibrary::Open() {
  void* library = nullptr;
  for (const char* const name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        "an s3:// store needs libcurl, which is not on this machine: install "
        "it (Debian: apt-get install libcurl4)");
  }
  CurlLibrary curl;
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_version_info) version_info = nullptr;
  RP_RETURN_IF_ERROR(Find(library, "curl_global_init", &global_init));
  RP_RETURN_IF_ERROR(Find(library, "curl_version_info", &version_info));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_init", &curl.easy_init));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_reset", &curl.easy_reset));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_cleanup", &curl.easy_cleanup));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_setopt", &curl.easy_setopt));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_perform", &curl.easy_perform));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_getinfo", &curl.easy_getinfo));
  RP_RETURN_IF_ERROR(Find(library, "curl_easy_strerror", &curl.easy_strerror));
  RP_RETURN_IF_ERROR(Find(library, "curl_slist_append", &curl.slist_append));
  RP_RETURN_IF_ERROR(
      Find(library, "curl_slist_free_all", &curl.slist_free_all));
  const curl_version_info_data* const version = version_info(CURLVERSION_NOW);
  if (version->version_num < kOldestVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("libcurl ", version->version,
                     " is too old for an s3:// store: 7.62 or later"));
  }
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return absl::FailedPreconditionError("libcurl cannot be initialized");
  return curl;
}

}  // namespace rankprobe
