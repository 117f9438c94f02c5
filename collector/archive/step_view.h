// One process' step, merged from its records: what one `rank{R}` directory of
// the dump layout says. Built by LoadStep; a plain value afterwards.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_STEP_VIEW_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_STEP_VIEW_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "collector/store/store.h"

namespace rankprobe {

struct StepView {
  struct Stack {
    std::vector<std::string> frames;
    std::vector<std::string> entries;
  };
  v1::StepBegin begin;
  bool has_begin = false;
  std::optional<v1::StepEnd> end;
  // In the order of dump.json.
  std::vector<v1::CallPhase> calls;
  std::vector<Stack> stacks;
  // In order of first insertion; a later edge of the same entry replaces it.
  std::vector<v1::ConstructEdge> edges;
  std::vector<v1::LossEvent> losses;
  std::vector<v1::ErrorEvent> errors;
};

// A call keeps the place of its first phase; a module's or parameters_grad's
// place is that of its latest (docs/formats.md, "Order of entries").
absl::StatusOr<StepView> LoadStep(Store* store, const StepKey& key);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_STEP_VIEW_H_
