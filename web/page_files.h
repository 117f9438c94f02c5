// SPDX-License-Identifier: Apache-2.0
// The files of the page, embedded in the program (web/bundle.cmake). Immutable.
#ifndef RANKPROBE_WEB_PAGE_FILES_H_
#define RANKPROBE_WEB_PAGE_FILES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

struct PageFile {
  absl::string_view path;  // "/assets/app.js"
  absl::string_view type;
  absl::string_view content;
};

const std::vector<PageFile>& PageFiles();

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_PAGE_FILES_H_
