// SPDX-License-Identifier: Apache-2.0
// Values of a column's cells as msprobe's reader (pandas) infers them: a column
// of numbers alone is one of numbers, also where they stand as text; one of
// True and False is one of truths; in any other each cell is what it is. A
// merged table must say the same. Not thread-safe.
#ifndef RANKPROBE_ANALYSIS_MERGE_RESULT_COLUMN_VALUES_H_
#define RANKPROBE_ANALYSIS_MERGE_RESULT_COLUMN_VALUES_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "analysis/table_reader/table_reader.h"

namespace rankprobe::analysis {

// Texts, each kept once; 0 is the empty one.
class TextPool {
 public:
  TextPool() { Add(""); }
  TextPool(TextPool&&) = default;
  TextPool& operator=(TextPool&&) = default;
  uint32_t Add(absl::string_view text);
  const std::string& at(uint32_t i) const { return texts_[i]; }

 private:
  std::deque<std::string> texts_;
  // Views into `texts_`.
  absl::flat_hash_map<absl::string_view, uint32_t> numbers_;
};

// A cell that is kept: its text lies in a pool.
struct KeptCell {
  TableCell::Kind kind = TableCell::Kind::kEmpty;
  // Of a text; of an integer too large for a double, its digits.
  uint32_t text = 0;
  double number = 0;
};
KeptCell Keep(const TableCell& cell, TextPool* pool);

class ColumnType {
 public:
  // All cells of the column, in their order.
  void Add(const TableCell& cell);
  void AddEmpty();

  // The value of a cell: kEmpty, kNumber, kBool or kText.
  KeptCell Value(const KeptCell& cell, TextPool* pool) const;
  // str() of it in Python.
  std::string Text(const KeptCell& cell, const TextPool& pool) const;

 private:
  enum class Type { kAny, kFloat, kInteger, kBool };
  Type type() const;
  void AddInteger(double value);

  bool first_ = true;
  bool first_is_text_ = false;
  // Is every cell a number or truth? A truth, or a word for one?
  bool numbers_ = true;
  bool truths_ = true;
  bool bools_ = true;
  bool fraction_ = false;
  bool integer_ = false;
  bool negative_ = false;
  // 2^63 and more; what 64 bits do not hold.
  bool wide_ = false;
  bool beyond_ = false;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_MERGE_RESULT_COLUMN_VALUES_H_
