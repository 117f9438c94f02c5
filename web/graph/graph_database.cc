// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_database.h"

#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_check.h"
#include "common/text/json_text.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

constexpr size_t kMostPlaces = 100'000;
constexpr int kJsonDepth = 64;

// Returns the text unchanged if it is JSON; otherwise as a JSON string, or null
// if it is empty.
std::string JsonOr(absl::string_view text) {
  if (text.empty()) return "null";
  if (IsJsonText(text, kJsonDepth)) return std::string(text);
  return JsonString(text);
}

// Returns the last text of a JSON list: the node that a link refers to.
std::optional<std::string> LastOfList(absl::string_view list) {
  if (list.size() < 4 || list[0] != '[') return std::nullopt;
  if (absl::EndsWith(list, "\"]") &&
      list.find('\\') == absl::string_view::npos) {
    const size_t end = list.size() - 2;
    const size_t begin = list.rfind('"', end - 1);
    if (begin == absl::string_view::npos) return std::nullopt;
    return std::string(list.substr(begin + 1, end - begin - 1));
  }
  JsonDocument document;
  if (!document.ParseView(list).ok() || document.root().items().empty()) {
    return std::nullopt;
  }
  const JsonValue& last = document.root().items().back();
  if (!last.is_string()) return std::nullopt;
  return std::string(last.text);
}

// One side of a graph while it is being read.
struct Side {
  std::string source;
  std::vector<std::string> names;
  std::vector<std::string> above;
  std::vector<std::string> partner_names;
  absl::flat_hash_map<absl::string_view, int64_t> places;
  std::string kinds;
  std::string precision;
  std::string overflow;
  std::string micro_steps;
  std::string flags;
  size_t bytes = 0;
  int64_t duplicates = 0;
};

char OverflowLetter(absl::string_view level) {
  return level == "critical" ? 'c'
         : level == "high"   ? 'h'
         : level == "medium" ? 'm'
                             : '.';
}

// Returns the index among the names, or -1.
int64_t PlaceIn(const Side& side, absl::string_view name) {
  const auto it = side.places.find(name);
  return it == side.places.end() ? -1 : it->second;
}

// Returns the index of each node's parent. A parent that does not exist, or
// that would be below its own child, is dropped: the node becomes a root and is
// counted as a fault.
std::vector<int64_t> ParentsOf(const Side& side, int64_t* faults) {
  const size_t count = side.names.size();
  std::vector<int64_t> parents(count, -1);
  for (size_t i = 0; i < count; ++i) {
    if (side.above[i].empty()) continue;
    parents[i] = PlaceIn(side, side.above[i]);
    if (parents[i] < 0) ++*faults;
  }
  // 0 if a node was not visited, otherwise the number of the walk that visited
  // it. A walk that meets itself has found a cycle, which is cut there.
  std::vector<uint32_t> walk(count, 0);
  uint32_t number = 0;
  for (size_t i = 0; i < count; ++i) {
    if (walk[i] != 0) continue;
    ++number;
    size_t at = i;
    for (;;) {
      walk[at] = number;
      const int64_t up = parents[at];
      if (up < 0) break;
      if (walk[static_cast<size_t>(up)] == number) {
        parents[at] = -1;
        ++*faults;
        break;
      }
      if (walk[static_cast<size_t>(up)] != 0) break;
      at = static_cast<size_t>(up);
    }
  }
  return parents;
}

template <typename Numbers>
void AppendNumbers(const Numbers& numbers, std::string* out) {
  out->push_back('[');
  bool first = true;
  for (const auto number : numbers) {
    if (!first) out->push_back(',');
    first = false;
    absl::StrAppend(out, number);
  }
  out->push_back(']');
}

void AppendSide(const Side& side, const Side* other, int64_t* faults,
                std::string* out) {
  absl::StrAppend(out, "{\"source\":", JsonString(side.source), ",\"names\":[");
  for (size_t i = 0; i < side.names.size(); ++i) {
    if (i != 0) out->push_back(',');
    AppendJsonString(side.names[i], out);
  }
  out->append("],\"parents\":");
  AppendNumbers(ParentsOf(side, faults), out);
  absl::StrAppend(out, ",\"kinds\":\"", side.kinds, "\",\"precision\":[",
                  side.precision, "],\"overflow\":\"", side.overflow,
                  "\",\"microSteps\":[", side.micro_steps, "],\"flags\":\"",
                  side.flags, "\"");
  if (other != nullptr) {
    std::vector<int64_t> partners(side.names.size(), -1);
    for (size_t i = 0; i < partners.size(); ++i) {
      if (side.partner_names[i].empty()) continue;
      partners[i] = PlaceIn(*other, side.partner_names[i]);
      if (partners[i] < 0) ++*faults;
    }
    out->append(",\"partners\":");
    AppendNumbers(partners, out);
  }
  *faults += side.duplicates;
  out->push_back('}');
}

// Parses "[0, 1]"; elements that are not numbers are skipped.
std::string NumberList(absl::string_view text) {
  std::vector<int64_t> numbers;
  JsonDocument document;
  if (text.size() < (1 << 20) && document.ParseView(text).ok()) {
    for (const JsonValue& item : document.root().items()) {
      int64_t number = 0;
      if (item.kind == JsonValue::Kind::kInt &&
          absl::SimpleAtoi(item.text, &number)) {
        numbers.push_back(number);
      }
    }
  }
  std::string out;
  AppendNumbers(numbers, &out);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphDatabase>> GraphDatabase::Open(
    int fd, std::string name, absl::Duration timeout,
    const std::atomic<bool>* gone) {
  RP_ASSIGN_OR_RETURN(auto sqlite,
                      ReadOnlySqlite::Open(fd, std::move(name), timeout, gone));
  std::unique_ptr<GraphDatabase> database(new GraphDatabase(std::move(sqlite)));
  RP_RETURN_IF_ERROR(database->CheckTables());
  return database;
}

absl::StatusOr<std::set<std::string>> GraphDatabase::ColumnsOf(
    absl::string_view table) {
  // Accepts only real tables: the sql of a virtual table begins with CREATE
  // VIRTUAL TABLE.
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query("SELECT type, sql FROM sqlite_schema WHERE name = ?"));
  rows.Bind(1, table);
  RP_ASSIGN_OR_RETURN(const bool there, rows.Next());
  const bool is_table =
      there && rows.Text(0) == "table" &&
      absl::StartsWithIgnoreCase(rows.Text(1), "CREATE TABLE");
  if (!is_table) {
    return absl::InvalidArgumentError(absl::StrCat(
        database_->name(), ": unsupported file: a graph database has a table ",
        table, ", this one has none"));
  }
  // The query returns no row, but its columns have names.
  RP_ASSIGN_OR_RETURN(
      const SqliteRows none,
      database_->Query(absl::StrCat("SELECT * FROM ", table, " WHERE 0")));
  return none.ColumnNames();
}

absl::Status GraphDatabase::CheckTables() {
  RP_ASSIGN_OR_RETURN(node_columns_, ColumnsOf("tb_nodes"));
  RP_ASSIGN_OR_RETURN(const std::set<std::string> config,
                      ColumnsOf("tb_config"));
  const auto check = [this](const std::set<std::string>& have,
                            const char* table,
                            std::initializer_list<const char*> wanted) {
    for (const char* const column : wanted) {
      if (have.contains(column)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          database_->name(), ": unsupported file: its table ", table,
          " has no column ", column,
          " (made by an older or a newer program? make it again with rankprobe "
          "graph_visualize)"));
    }
    return absl::OkStatus();
  };
  RP_RETURN_IF_ERROR(
      check(node_columns_, "tb_nodes",
            {"node_name", "node_order", "node_type", "up_node", "input_data",
             "output_data", "data_source", "step", "rank"}));
  return check(config, "tb_config", {"graph_type", "rank_list", "step_list"});
}

std::string GraphDatabase::Column(absl::string_view name,
                                  absl::string_view instead) const {
  return std::string(node_columns_.contains(std::string(name)) ? name
                                                               : instead);
}

absl::StatusOr<std::string> GraphDatabase::AboutJson() {
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query("SELECT * FROM tb_config ORDER BY rowid LIMIT 1"));
  RP_ASSIGN_OR_RETURN(const bool there, rows.Next());
  if (!there) {
    return absl::InvalidArgumentError(absl::StrCat(
        database_->name(), ": unsupported file: its tb_config is empty"));
  }
  const auto text = [&rows](const char* column) {
    const int i = rows.ColumnOf(column);
    return i < 0 ? absl::string_view() : rows.Text(i);
  };
  const auto number = [&rows](const char* column) {
    const int i = rows.ColumnOf(column);
    return i < 0 ? int64_t{0} : rows.Int(i);
  };
  std::string out = absl::StrCat(
      "{\"compare\":", text("graph_type") == "compare" ? "true" : "false",
      ",\"task\":", JsonString(text("task")));
  absl::StrAppend(&out, ",\"toolTip\":", JsonOr(text("tool_tip")));
  absl::StrAppend(&out, ",\"microSteps\":", number("micro_steps"));
  absl::StrAppend(&out, ",\"overflowCheck\":",
                  number("overflow_check") != 0 ? "true" : "false");
  absl::StrAppend(&out, ",\"steps\":", NumberList(text("step_list")));
  absl::StrAppend(&out, ",\"ranks\":", NumberList(text("rank_list")), "}");
  return out;
}

absl::StatusOr<std::string> GraphDatabase::Task() {
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query("SELECT * FROM tb_config ORDER BY rowid LIMIT 1"));
  RP_ASSIGN_OR_RETURN(const bool there, rows.Next());
  const int column = there ? rows.ColumnOf("task") : -1;
  return column < 0 ? std::string() : std::string(rows.Text(column));
}

absl::StatusOr<std::string> GraphDatabase::GraphJson(int64_t step,
                                                     int64_t rank) {
  std::array<Side, 2> sides;
  sides[0].source = "NPU";
  sides[1].source = "Bench";
  const std::string sql = absl::StrCat(
      "SELECT node_name, node_type, up_node, ",
      Column("precision_index", "NULL"), ", ", Column("overflow_level", "NULL"),
      ", ", Column("micro_step_id", "0"), ", ",
      Column("matched_node_link", "NULL"), ", ",
      Column("parallel_merge_info", "NULL"), ", ",
      Column("matched_distributed", "NULL"), ", ", Column("modified", "0"),
      " FROM tb_nodes WHERE step = ? AND rank = ? AND data_source = ? ORDER BY "
      "node_order");
  for (Side& side : sides) {
    RP_ASSIGN_OR_RETURN(SqliteRows rows, database_->Query(sql));
    rows.Bind(1, step).Bind(2, rank).Bind(3, side.source);
    for (;;) {
      RP_ASSIGN_OR_RETURN(const bool more, rows.Next());
      if (!more) break;
      if (side.names.size() >= limits_.nodes || side.bytes > limits_.bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            database_->name(), ": step ", step, ", rank ", rank, ": more than ",
            limits_.nodes, " nodes or ", limits_.bytes >> 20,
            " MiB of names are not drawn here"));
      }
      const bool first = side.names.empty();
      side.names.emplace_back(rows.Text(0));
      const absl::string_view kind = rows.Text(1);
      side.kinds.push_back(kind == "1" || kind == "9" ? kind[0] : '0');
      side.above.emplace_back(rows.Text(2));
      if (!first) {
        side.precision.push_back(',');
        side.micro_steps.push_back(',');
      }
      const double precision = rows.IsNull(3) ? -1 : rows.Real(3);
      // A number outside of this scale counts as not compared.
      absl::StrAppend(&side.precision,
                      precision >= 0 && precision <= 1 ? precision : -1);
      side.overflow.push_back(OverflowLetter(rows.Text(4)));
      absl::StrAppend(&side.micro_steps, rows.Int(5));
      side.partner_names.push_back(LastOfList(rows.Text(6)).value_or(""));
      const bool merged = rows.Text(7).size() > 2;
      const bool linked = rows.Text(8).size() > 2;
      const bool by_hand = rows.Int(9) != 0;
      side.flags.push_back(static_cast<char>(
          '0' + (merged ? 1 : 0) + (linked ? 2 : 0) + (by_hand ? 4 : 0)));
      side.bytes += side.names.back().size() + side.above.back().size() +
                    side.partner_names.back().size() + 16;
    }
    for (size_t i = 0; i < side.names.size(); ++i) {
      if (!side.places.try_emplace(side.names[i], static_cast<int64_t>(i))
               .second) {
        ++side.duplicates;
      }
    }
  }
  if (sides[0].names.empty() && sides[1].names.empty()) {
    return absl::NotFoundError(absl::StrCat(
        database_->name(), ": there is no step ", step, " of rank ", rank));
  }
  const bool compare = !sides[1].names.empty();
  int64_t faults = 0;
  std::string out = "{\"sides\":[";
  AppendSide(sides[0], compare ? &sides[1] : nullptr, &faults, &out);
  if (compare) {
    out.push_back(',');
    AppendSide(sides[1], &sides[0], &faults, &out);
  }
  absl::StrAppend(&out, "],\"faults\":", faults, "}");
  return out;
}

absl::StatusOr<std::string> GraphDatabase::ChildrenJson(
    int64_t step, int64_t rank, absl::string_view side,
    absl::string_view parent) {
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query(absl::StrCat(
          "SELECT node_name, node_type, ", Column("precision_index", "NULL"),
          ", ", Column("sub_nodes", "NULL"), ", ",
          Column("matched_node_link", "NULL"), ", ",
          Column("overflow_level", "NULL"), ", ", Column("micro_step_id", "0"),
          " FROM tb_nodes WHERE step = ? AND rank = ? AND data_source = ? AND "
          "up_node = ? ORDER BY node_order LIMIT 100000")));
  rows.Bind(1, step).Bind(2, rank).Bind(3, side).Bind(4, parent);
  std::string out = "{\"children\":[";
  for (bool first = true;; first = false) {
    RP_ASSIGN_OR_RETURN(const bool more, rows.Next());
    if (!more) break;
    absl::StrAppend(&out, first ? "" : ",",
                    "{\"name\":", JsonString(rows.Text(0)), ",\"kind\":",
                    rows.Text(1) == "1"   ? 1
                    : rows.Text(1) == "9" ? 9
                                          : 0);
    const double precision = rows.IsNull(2) ? -1 : rows.Real(2);
    absl::StrAppend(
        &out,
        ",\"precision\":", precision >= 0 && precision <= 1 ? precision : -1,
        ",\"leaf\":", rows.Text(3).size() > 2 ? "false" : "true",
        ",\"partner\":", JsonString(LastOfList(rows.Text(4)).value_or("")),
        ",\"overflow\":\"", std::string(1, OverflowLetter(rows.Text(5))),
        "\",\"microStep\":", rows.Int(6), "}");
  }
  out.append("]}");
  return out;
}

absl::StatusOr<GraphDatabase::Values> GraphDatabase::ValuesOf(
    int64_t step, int64_t rank, absl::string_view side,
    absl::string_view node) {
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query("SELECT node_type, input_data, output_data FROM "
                       "tb_nodes WHERE step = ? AND rank = ? AND data_source = "
                       "? AND node_name = ? LIMIT 1"));
  rows.Bind(1, step).Bind(2, rank).Bind(3, side).Bind(4, node);
  RP_ASSIGN_OR_RETURN(const bool there, rows.Next());
  if (!there) {
    return absl::NotFoundError(absl::StrCat(
        database_->name(), ": step ", step, ", rank ", rank,
        ": there is no node ", OneLine(node), " on the side ", OneLine(side)));
  }
  Values values;
  values.kind = rows.Text(0) == "1" ? 1 : rows.Text(0) == "9" ? 9 : 0;
  values.input = std::string(rows.Text(1));
  values.output = std::string(rows.Text(2));
  return values;
}

absl::StatusOr<std::string> GraphDatabase::NodeJson(int64_t step, int64_t rank,
                                                    absl::string_view side,
                                                    absl::string_view node) {
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query(absl::StrCat(
          "SELECT input_data, output_data, ", Column("stack_id", "NULL"), ", ",
          Column("parallel_merge_info", "NULL"), ", ",
          Column("matched_distributed", "NULL"), ", ",
          Column("matched_node_link", "NULL"),
          " FROM tb_nodes WHERE step = ? AND rank = ? AND data_source = ? AND "
          "node_name = ? LIMIT 1")));
  rows.Bind(1, step).Bind(2, rank).Bind(3, side).Bind(4, node);
  RP_ASSIGN_OR_RETURN(const bool there, rows.Next());
  if (!there) {
    return absl::NotFoundError(absl::StrCat(
        database_->name(), ": step ", step, ", rank ", rank,
        ": there is no node ", OneLine(node), " on the side ", OneLine(side)));
  }
  const std::string stack_id(rows.Text(2));
  std::string out = absl::StrCat("{\"input\":", JsonOr(rows.Text(0)));
  absl::StrAppend(&out, ",\"output\":", JsonOr(rows.Text(1)));
  absl::StrAppend(&out, ",\"merged\":", JsonOr(rows.Text(3)));
  absl::StrAppend(&out, ",\"links\":", JsonOr(rows.Text(4)));
  absl::StrAppend(&out, ",\"partner\":", JsonOr(rows.Text(5)));
  std::string stack = "null";
  if (!stack_id.empty()) {
    absl::StatusOr<SqliteRows> frames =
        database_->Query("SELECT stack_info FROM tb_stack WHERE id = ?");
    // A database without stacks is valid.
    if (frames.ok()) {
      frames->Bind(1, stack_id);
      RP_ASSIGN_OR_RETURN(const bool known, frames->Next());
      if (known) stack = JsonOr(frames->Text(0));
    }
  }
  absl::StrAppend(&out, ",\"stack\":", stack, "}");
  return out;
}

absl::StatusOr<std::string> GraphDatabase::SummaryJson() {
  const std::string leaf =
      absl::StrCat("(", Column("sub_nodes", "''"), " IS NULL OR length(",
                   Column("sub_nodes", "''"), ") <= 2)");
  const std::string precision = Column("precision_index", "NULL");
  const std::string overflow = Column("overflow_level", "NULL");
  const std::string link = Column("matched_node_link", "NULL");
  RP_ASSIGN_OR_RETURN(
      SqliteRows rows,
      database_->Query(absl::StrCat(
          "SELECT step, rank, count(*), total(", leaf, " AND ", precision,
          " >= 0.6), total(", leaf, " AND ", precision, " >= 0.3 AND ",
          precision, " < 0.6), total(", link, " IS NULL OR ", link,
          " IN ('', '[]')), total(", overflow, " = 'critical'), total(",
          overflow,
          " IN ('high', 'medium')) FROM tb_nodes WHERE data_source = "
          "'NPU' GROUP BY step, rank ORDER BY step, rank")));
  std::string out = "{\"places\":[";
  for (size_t count = 0;; ++count) {
    RP_ASSIGN_OR_RETURN(const bool more, rows.Next());
    if (!more) break;
    if (count == kMostPlaces) {
      return absl::ResourceExhaustedError(absl::StrCat(
          database_->name(), ": more than ", kMostPlaces, " steps of ranks"));
    }
    out.append(count == 0 ? "[" : ",[");
    for (int i = 0; i < 8; ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ",", rows.Int(i));
    }
    out.push_back(']');
  }
  out.append("]}");
  return out;
}

}  // namespace rankprobe
