// SPDX-License-Identifier: Apache-2.0
// The config.json of a running job as a switch: each start() checks the file
// and passes an edit to the session.
//
// Ownership: of the debugger. Not thread-safe: the training thread's.
// Failure: a missing file changes nothing (editors move files), nor does a file
// that the system cannot read now (no descriptors, no memory, a disk error):
// the last configuration stays in force, and the next check tries again. A file
// that cannot be read for another reason, or is invalid, is a fault of the edit
// and keeps dumping off.
#ifndef RANKPROBE_AGENT_RUNTIME_SESSION_CONFIG_FILE_H_
#define RANKPROBE_AGENT_RUNTIME_SESSION_CONFIG_FILE_H_

#include <sys/stat.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/runtime/session/session.h"
#include "common/config/plan.h"

namespace rankprobe {

class ConfigFile {
 public:
  // Takes the current contents as known: Look() does not return them.
  explicit ConfigFile(std::string path);

  // Returns the contents if they differ from the last time, or an error if the
  // file cannot be read and a retry will not help. While nothing has changed it
  // costs an open and an fstat. A text that is not JSON is read again for some
  // 100 ms, because it may be half written.
  std::optional<absl::StatusOr<std::string>> Look();

  const std::string& path() const { return path_; }

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = -1;
    timespec modified = {};
    timespec changed = {};
    bool operator==(const Stamp& other) const;
  };

  // Returns nullopt if the file is missing or unchanged, UNAVAILABLE if it
  // cannot be read at present.
  std::optional<absl::StatusOr<std::string>> Read(bool force);

  const std::string path_;
  Stamp stamp_;
  // The file was modified so recently that another edit may leave the stamp
  // unchanged.
  bool young_ = false;
  // The last result of Look(): the text, or the message of the fault.
  std::string said_;
  bool fault_ = false;
};

// Returns the text of a config with the constructor arguments applied. A text
// that is not a JSON object is returned unchanged; the parser reports it.
std::string MergeOverrides(const std::string& json,
                           const ConfigOverrides& overrides);

// Result of checking an edit and passing it to the session: warnings, or the
// fault that keeps dumping off.
struct EditReport {
  std::vector<std::string> warnings;
  std::string fault;
};
EditReport SubmitEdit(const std::string& path,
                      const absl::StatusOr<std::string>& json, bool at_once,
                      Session* session);

// Formats the line for stderr about a fault.
std::string FaultLine(absl::string_view path, absl::string_view fault);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_SESSION_CONFIG_FILE_H_
