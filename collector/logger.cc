#include "collector/logger.h"

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {

void Logger::Log(Severity severity, absl::string_view event,
                 std::initializer_list<Field> fields) const {
  if (severity < least_) return;
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  std::string line = absl::StrCat("time=", absl::FormatTime(clock_->Now()),
                                  " level=", kNames[static_cast<int>(severity)],
                                  " event=", event);
  for (const Field& field : fields)
    absl::StrAppend(&line, " ", field.first, "=\"", absl::CEscape(field.second),
                    "\"");
  line.push_back('\n');
  // Nobody could be told if this failed.
  (void)!::write(fd_, line.data(), line.size());
}

}  // namespace rankprobe
