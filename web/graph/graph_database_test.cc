// SPDX-License-Identifier: Apache-2.0
// Databases with malicious content.
#include "web/graph/graph_database.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/io/descriptor_walk.h"
#include "common/text/json_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "web/graph/hand_match.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTables[] =
    "CREATE TABLE tb_nodes (id TEXT PRIMARY KEY, graph_id TEXT, node_order "
    "INTEGER, node_name TEXT, node_type TEXT, up_node TEXT, sub_nodes TEXT, "
    "precision_index INTEGER, overflow_level TEXT, micro_step_id INTEGER, "
    "matched_node_link TEXT, stack_id TEXT, parallel_merge_info TEXT, "
    "matched_distributed TEXT, modified INTEGER, input_data TEXT, output_data "
    "TEXT, data_source TEXT, dump_data_dir TEXT, step INTEGER, rank INTEGER, "
    "is_distributed INTEGER);"
    "CREATE TABLE tb_stack (id TEXT PRIMARY KEY, stack_info TEXT);"
    "CREATE TABLE tb_config (id TEXT PRIMARY KEY, graph_type TEXT, task TEXT, "
    "tool_tip TEXT, micro_steps INTEGER, overflow_check INTEGER, node_colors "
    "TEXT, rank_list TEXT, step_list TEXT);"
    "INSERT INTO tb_config VALUES ('1','build','summary',NULL,1,0,'null',"
    "'[0]','[0]');";

class GraphDatabaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(::testing::TempDir(), "graph_", ::getpid(), ".vis.db");
    ::unlink(path_.c_str());
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  void Sql(const std::string& sql) const {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr),
              SQLITE_OK)
        << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
  void Node(absl::string_view name, absl::string_view up, int order,
            absl::string_view precision = "0", absl::string_view side = "NPU",
            absl::string_view link = "[]") {
    Sql(absl::StrCat("INSERT INTO tb_nodes VALUES ('", side, order, "','g',",
                     order, ",'", name, "','1','", up, "','',", precision,
                     ",NULL,0,'", link, "','s','','{}',0,'{}','{}','", side,
                     "','',0,0,0)"));
  }
  absl::StatusOr<std::unique_ptr<GraphDatabase>> Open(
      absl::Duration timeout = absl::Seconds(30)) {
    file_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    return GraphDatabase::Open(file_.get(), "x.vis.db", timeout, nullptr);
  }
  std::string Graph() {
    auto database = Open();
    EXPECT_TRUE(database.ok()) << database.status();
    if (!database.ok()) return "";
    const auto graph = (*database)->GraphJson(0, 0);
    EXPECT_TRUE(graph.ok()) << graph.status();
    if (!graph.ok()) return "";
    EXPECT_TRUE(IsJsonText(*graph, 10)) << *graph;
    return *graph;
  }

  std::string path_;
  Descriptor file_;
};

TEST_F(GraphDatabaseTest, NodesAreColumns) {
  Sql(kTables);
  Node("DefaultModel", "", 1);
  Node("Module.a", "DefaultModel", 2, "1", "NPU", R"(["DefaultModel", "B"])");
  Node("DefaultModel", "", 3, "NULL", "Bench");
  Node("B", "DefaultModel", 4, "NULL", "Bench", R"(["x\"y", "Module.a"])");
  EXPECT_EQ(
      Graph(),
      R"({"sides":[{"source":"NPU","names":["DefaultModel","Module.a"],)"
      R"("parents":[-1,0],"kinds":"11","precision":[0,1],"overflow":"..",)"
      R"("microSteps":[0,0],"flags":"00","partners":[-1,1]},)"
      R"({"source":"Bench","names":["DefaultModel","B"],"parents":[-1,0],)"
      R"("kinds":"11","precision":[-1,-1],"overflow":"..",)"
      R"("microSteps":[0,0],"flags":"00","partners":[-1,1]}],"faults":0})");
}

TEST_F(GraphDatabaseTest, CirclesAndLostParentsAreCut) {
  Sql(kTables);
  Node("self", "self", 1);
  Node("a", "c", 2);
  Node("b", "a", 3);
  Node("c", "b", 4);
  Node("orphan", "gone", 5);
  Node("twice", "", 6);
  Node("twice", "self", 7);
  const std::string graph = Graph();
  // The cycle a -> c -> b -> a is cut once; a node without a parent is a root.
  EXPECT_THAT(graph, HasSubstr("\"parents\":[-1,3,-1,2,-1,-1,0]"));
  EXPECT_THAT(graph, HasSubstr("\"faults\":4}"));
}

TEST_F(GraphDatabaseTest, ColumnsOfAnyTypeAreText) {
  Sql(kTables);
  Sql("INSERT INTO tb_nodes VALUES (1,2,'x',x'3c00ff',7.5,3,4,'much',9,"
      "'m',5,6,7,8,'h',x'ff',1e999,'NPU',4,0,0,'')");
  Sql("INSERT INTO tb_nodes VALUES (2,2,NULL,NULL,NULL,NULL,NULL,-3,NULL,"
      "-1,'[\"',NULL,NULL,NULL,NULL,NULL,NULL,'NPU',NULL,0,0,NULL)");
  const std::string graph = Graph();
  EXPECT_THAT(graph, HasSubstr("\"precision\":[-1,0]"));
  auto database = Open();
  ASSERT_TRUE(database.ok());
  const auto node = (*database)->NodeJson(0, 0, "NPU", "");
  EXPECT_EQ(node.status().code(), absl::StatusCode::kNotFound);
  const auto summary = (*database)->SummaryJson();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(IsJsonText(*summary, 10));
}

TEST_F(GraphDatabaseTest, ScriptInNamesIsText) {
  Sql(kTables);
  Node("</script><img src=x onerror=alert(1)>", "", 1);
  EXPECT_THAT(Graph(), HasSubstr("<img src=x"));
}

TEST_F(GraphDatabaseTest, ADeepChainIsReadWithoutRecursion) {
  Sql(kTables);
  Sql("WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i "
      "< 50000) INSERT INTO tb_nodes SELECT i,'g',i,'n'||i,'0',CASE i WHEN 0 "
      "THEN '' ELSE 'n'||(i-1) END,'[\"x\"]',0,NULL,0,'[]','','','{}',0,'{}',"
      "'{}','NPU','',0,0,0 FROM n");
  const std::string graph = Graph();
  EXPECT_THAT(graph, HasSubstr(",49998,49999]"));
  EXPECT_THAT(graph, HasSubstr("\"faults\":0}"));
}

TEST_F(GraphDatabaseTest, OtherFilesAreUnsupported) {
  std::ofstream(path_) << std::string(5000, 'x');
  EXPECT_THAT(Open().status().message(), HasSubstr("unsupported file"));
  ::unlink(path_.c_str());
  std::ofstream(path_) << "";
  EXPECT_THAT(Open().status().message(), HasSubstr("unsupported file"));
  ::unlink(path_.c_str());
  Sql("CREATE TABLE other (a)");
  EXPECT_THAT(Open().status().message(), HasSubstr("has a table tb_nodes"));
  ::unlink(path_.c_str());
  Sql(kTables);
  Sql("ALTER TABLE tb_nodes DROP COLUMN up_node");
  EXPECT_THAT(Open().status().message(), HasSubstr("has no column up_node"));
  ::unlink(path_.c_str());
  Sql(kTables);
  Sql("DELETE FROM tb_config");
  auto database = Open();
  ASSERT_TRUE(database.ok());
  EXPECT_THAT((*database)->AboutJson().status().message(),
              HasSubstr("tb_config is empty"));
}

TEST_F(GraphDatabaseTest, AColumnThatAnOlderProgramDidNotWriteIsNotNeeded) {
  Sql(kTables);
  Node("a", "", 1);
  for (const char* column : {"matched_distributed", "is_distributed",
                             "overflow_level", "parallel_merge_info"}) {
    Sql(absl::StrCat("ALTER TABLE tb_nodes DROP COLUMN ", column));
  }
  Sql("DROP TABLE tb_stack");
  EXPECT_THAT(Graph(), HasSubstr("\"names\":[\"a\"]"));
  auto database = Open();
  ASSERT_TRUE(database.ok());
  EXPECT_TRUE((*database)->NodeJson(0, 0, "NPU", "a").ok());
  EXPECT_TRUE((*database)->SummaryJson().ok());
}

TEST_F(GraphDatabaseTest, AViewInPlaceOfATableRunsNothing) {
  Sql(kTables);
  Sql("ALTER TABLE tb_nodes RENAME TO hidden; CREATE VIEW tb_nodes AS SELECT "
      "* FROM hidden");
  EXPECT_THAT(Open().status().message(), HasSubstr("unsupported file"));
}

TEST_F(GraphDatabaseTest, WhatTakesTooLongEnds) {
  Sql(kTables);
  Sql("WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i "
      "< 20000) INSERT INTO tb_nodes SELECT i,'g',i,'n'||i,'0','','',0,NULL,0,"
      "'[]','','','{}',0,'{}','{}','NPU','',0,0,0 FROM n");
  auto database = Open();
  ASSERT_TRUE(database.ok());
  const std::atomic<bool> gone = true;
  auto left =
      GraphDatabase::Open(file_.get(), "x.vis.db", absl::Seconds(30), &gone);
  if (left.ok()) {
    EXPECT_EQ((*left)->GraphJson(0, 0).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(GraphDatabaseTest, ATornFileIsAnErrorAndNoCrash) {
  Sql(kTables);
  for (int i = 0; i < 200; ++i) Node(absl::StrCat("n", i), "", i);
  std::string bytes;
  {
    std::ifstream in(path_, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (size_t cut = 0; cut < bytes.size(); cut += 977) {
    std::string torn = bytes.substr(0, cut);
    // Another file, with a hole.
    for (size_t i = 0; i < 2; ++i) {
      std::ofstream(path_, std::ios::binary | std::ios::trunc) << torn;
      auto database = Open();
      if (database.ok()) {
        const auto graph = (*database)->GraphJson(0, 0);
        if (graph.ok()) {
          EXPECT_TRUE(IsJsonText(*graph, 10));
        }
      }
      torn = bytes;
      for (size_t at = cut; at < std::min(cut + 300, torn.size()); ++at)
        torn[at] = '\xff';
    }
  }
}

TEST_F(GraphDatabaseTest, NothingIsWritten) {
  Sql(kTables);
  Node("a", "", 1);
  // A database of a program that keeps a journal next to it.
  Sql("PRAGMA journal_mode = WAL");
  EXPECT_THAT(Graph(), HasSubstr("\"names\":[\"a\"]"));
  for (const char* end : {"-wal", "-shm", "-journal"}) {
    EXPECT_NE(::access(absl::StrCat(path_, end).c_str(), F_OK), 0) << end;
  }
}

TEST(HandMatchTest, IsJudgedAsEveryOtherPair) {
  const auto values = [](const char* max, const char* norm) {
    GraphDatabase::Values out;
    out.kind = 1;
    out.output = absl::StrCat(
        R"({"x.output.0": {"type": "torch.Tensor", "dtype": "torch.float32",)",
        R"( "shape": "[2]", "Max": ")", max, R"(", "Min": "0.0", "Mean": )",
        R"("0.5", "Norm": ")", norm, R"(", "requires_grad": "False"}})");
    return out;
  };
  const auto same = MatchByHand("summary", "Torch.x.0.forward",
                                values("1.0", "1.0"), values("1.0", "1.0"));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->precision, 0);
  EXPECT_THAT(same->output, HasSubstr("\"Result\":\"pass\""));
  const auto nan = MatchByHand("summary", "Torch.x.0.forward",
                               values("nan", "nan"), values("1.0", "1.0"));
  ASSERT_TRUE(nan.ok()) << nan.status();
  EXPECT_EQ(nan->precision, 1);
  EXPECT_TRUE(IsJsonText(nan->output, 4)) << nan->output;
  GraphDatabase::Values module = values("1.0", "1.0");
  module.kind = 0;
  EXPECT_FALSE(MatchByHand("summary", "x", module, values("1.0", "1.0")).ok());
  GraphDatabase::Values broken = values("1.0", "1.0");
  broken.output = "{\"x\":";
  EXPECT_FALSE(MatchByHand("summary", "x", broken, values("1.0", "1.0")).ok());
  const auto shape =
      MatchByHand("structure", "x", values("1", "1"), values("2", "2"));
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->precision, -1);
}

}  // namespace
}  // namespace rankprobe
