// SPDX-License-Identifier: Apache-2.0
#include "common/text/nearest.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxTyped = 100;

std::string Letters(absl::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (c != '-' && c != '_') letters.push_back(absl::ascii_tolower(c));
  }
  return letters;
}

// Optimal string alignment distance.
size_t Slips(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1),
      next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1,
                          row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

}  // namespace

std::string NearestWord(absl::string_view typed,
                        const std::vector<std::string>& known) {
  if (typed.size() > kMaxTyped) return "";
  const std::string letters = Letters(typed);
  const std::string* best = nullptr;
  size_t fewest = 0;
  for (const std::string& word : known) {
    if (word.size() > kMaxTyped) continue;
    const std::string other = Letters(word);
    const size_t slips = Slips(letters, other);
    if (3 * slips > std::max(letters.size(), other.size())) continue;
    if (best != nullptr && slips >= fewest) continue;
    best = &word;
    fewest = slips;
  }
  return best == nullptr ? "" : *best;
}

std::string DidYouMean(absl::string_view typed,
                       const std::vector<std::string>& known) {
  const std::string word = NearestWord(typed, known);
  return word.empty() ? "" : absl::StrCat("; did you mean ", word, "?");
}

}  // namespace rankprobe
