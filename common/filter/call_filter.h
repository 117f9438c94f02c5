// SPDX-License-Identifier: Apache-2.0
// Filter of the calls that a Plan keeps. The same class runs in the agent (to
// save work) and in the collector (because it decides). Not thread-safe: one
// instance per (session, thread of execution order), or guarded by its owner's
// lock.
//
// Order of tests: scope/list if set, otherwise risk level (APIs only). A call's
// verdict is fixed at its begin and holds for all its phases, so entries are
// complete; both ends of a scope are inclusive and complete.
#ifndef RANKPROBE_COMMON_FILTER_CALL_FILTER_H_
#define RANKPROBE_COMMON_FILTER_CALL_FILTER_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/config/plan.h"

namespace rankprobe {

enum class Verdict {
  kKeep,
  kLevel,      // an API at L0, a module at L1
  kScope,      // outside the scope window
  kList,       // no list element matches
  kRiskLevel,  // below the plan's risk level
  kDataMode,   // this entry is empty
};

absl::string_view VerdictName(Verdict verdict);

class CallFilter {
 public:
  // `plan` must outlive the filter.
  explicit CallFilter(const Plan* plan);

  // Forgets windows and open modules. Counters are kept elsewhere.
  void BeginStep();

  // An API's forward or backward entry, by its full name.
  Verdict Api(absl::string_view entry);

  // A module's forward or backward. Begin and End nest; every Begin requires an
  // End with the same name. End returns the verdict of its Begin.
  Verdict ModuleBegin(absl::string_view entry);
  Verdict ModuleEnd(absl::string_view entry);

  // The parameters_grad of a module: `module_prefix` is
  // "Module.{path}.{Class}".
  Verdict ParametersGrad(absl::string_view module_prefix);

  // The verdict if every window were open. An entry that this rejects is not
  // kept in any order of calls.
  Verdict CouldKeep(absl::string_view entry, bool is_module) const;
  Verdict CouldKeepParametersGrad() const;

  // Whether the payloads of this entry are recorded: always for task tensor;
  // for statistics, if tensor_list matches.
  bool WantsPayload(absl::string_view entry) const;

 private:
  struct OpenModule {
    std::string entry;
    Verdict verdict = Verdict::kKeep;
    bool opened_list_window = false;
    bool closes_scope = false;
  };

  Verdict Decide(absl::string_view entry, bool is_module, bool scope_open,
                 bool in_list_window) const;
  // For an API call in task monitor, which records only communication.
  Verdict DecideCommunication(absl::string_view entry, bool scope_open) const;
  Verdict Decide(absl::string_view entry, bool is_module) const {
    return Decide(entry, is_module, scope_open_, list_windows_ > 0);
  }

  const Plan* const plan_;
  bool scope_open_ = false;
  // Number of open modules whose name matches the list, at level mix.
  int list_windows_ = 0;
  std::vector<OpenModule> open_modules_;
  // Modules whose backward was kept in this step.
  absl::flat_hash_set<std::string> backward_kept_;
};

// Whether `level` keeps the API of an entry name ("Functional.relu.0.forward").
bool RiskLevelKeeps(RiskLevel level, absl::string_view entry);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_FILTER_CALL_FILTER_H_
