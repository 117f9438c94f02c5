// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/run_facts.h"

#include <string>

#include "common/base/limits.h"
#include "common/records/cut_value.h"

namespace rankprobe {

bool AddFacts(absl::Span<const v1::RunFact> facts,
              absl::FunctionRef<v1::RunCard*()> add_card) {
  // A record of the longest texts still fits in a frame.
  constexpr int kFactsPerRecord = 128;
  v1::RunCard* card = nullptr;
  for (const v1::RunFact& fact : facts) {
    if (fact.section().empty() || fact.name().empty()) continue;
    if (card == nullptr || card->facts_size() == kFactsPerRecord)
      card = add_card();
    v1::RunFact* added = card->add_facts();
    added->set_section(
        std::string(Utf8Prefix(fact.section(), kMaxFactSectionBytes)));
    added->set_name(std::string(Utf8Prefix(fact.name(), kMaxFactNameBytes)));
    added->set_value(std::string(Utf8Prefix(fact.value(), kMaxFactValueBytes)));
  }
  return card != nullptr;
}

}  // namespace rankprobe
