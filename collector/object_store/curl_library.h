// SPDX-License-Identifier: Apache-2.0
// The functions of libcurl that the transport calls, from the library that is
// installed on the machine. Loaded for the life of the process: libcurl and its
// dependencies keep state of their own and are never unloaded. Thread-safe once
// it is open.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_LIBRARY_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_LIBRARY_H_

#include <curl/curl.h>
// Calls go through pointers, which libcurl's type-checking macros do not
// support.
#undef curl_easy_setopt
#undef curl_easy_getinfo

#include "absl/status/statusor.h"

namespace rankprobe {

struct CurlLibrary {
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;

  // FAILED_PRECONDITION if it is not installed, or too old (before 7.62).
  static absl::StatusOr<CurlLibrary> Open();
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_CURL_LIBRARY_H_
