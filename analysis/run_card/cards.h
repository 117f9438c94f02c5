// SPDX-License-Identifier: Apache-2.0
// Run cards of the ranks of a run, from any source; internal to this folder.
// Plain values.
#ifndef RANKPROBE_ANALYSIS_RUN_CARD_CARDS_H_
#define RANKPROBE_ANALYSIS_RUN_CARD_CARDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe::analysis {

// Section and name of a fact.
using FactName = std::pair<std::string, std::string>;
using Facts = std::map<FactName, std::string>;

struct Card {
  // The first value recorded for each fact.
  Facts once;
  std::map<int64_t, Facts> steps;
};

struct Cards {
  std::map<int64_t, Card> ranks;
  // One line for each file that could not be read.
  std::vector<std::string> unread;
};

// Compares the cards of ranks of equal number, and of these the steps that both
// have.
v1::RunCardReport CompareCards(const Cards& target, const Cards& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RUN_CARD_CARDS_H_
