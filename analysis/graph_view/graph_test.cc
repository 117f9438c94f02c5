// SPDX-License-Identifier: Apache-2.0
// graph_visualize against databases that msprobe 26.0.0 made from the same
// dumps, and the rules of the graph one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/call_tree.h"
#include "analysis/calls/comm_links.h"
#include "analysis/calls/overflow_levels.h"
#include "analysis/compare/layer_mapping.h"
#include "analysis/graph_view/graph_match.h"
#include "analysis/graph_view/graph_visualize.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using testing::AnalysisGolden;
using ::testing::ElementsAre;
using testing::GoldenDump;
using ::testing::HasSubstr;
using testing::TempDir;

using DbRow = std::map<std::string, std::string>;

std::vector<DbRow> Query(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  EXPECT_EQ(sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY, nullptr),
            SQLITE_OK);
  sqlite3_stmt* s = nullptr;
  EXPECT_EQ(sqlite3_prepare_v2(db, sql.c_str(), -1, &s, nullptr), SQLITE_OK)
      << sqlite3_errmsg(db);
  std::vector<DbRow> rows;
  while (s != nullptr && sqlite3_step(s) == SQLITE_ROW) {
    DbRow& row = rows.emplace_back();
    for (int i = 0; i < sqlite3_column_count(s); ++i) {
      const auto* text =
          reinterpret_cast<const char*>(sqlite3_column_text(s, i));
      row[sqlite3_column_name(s, i)] = text == nullptr ? "NULL" : text;
    }
  }
  sqlite3_finalize(s);
  sqlite3_close(db);
  return rows;
}

// msprobe prints N/A against a reference of zero and for values that are not
// numbers.
void ExpectSameValues(const std::string& ours, const std::string& peer,
                      const std::string& where) {
  if (ours == peer) return;
  JsonDocument a;
  JsonDocument b;
  ASSERT_TRUE(a.Parse(ours).ok() && b.Parse(peer).ok());
  ASSERT_EQ(a.root().size, b.root().size) << where;
  for (size_t i = 0; i < a.root().fields().size(); ++i) {
    const JsonMember& x = a.root().fields()[i];
    const JsonMember& y = b.root().fields()[i];
    ASSERT_EQ(x.key, y.key) << where;
    ASSERT_EQ(x.value.size, y.value.size) << where << " " << x.key;
    for (size_t f = 0; f < x.value.fields().size(); ++f) {
      ASSERT_EQ(x.value.fields()[f].key, y.value.fields()[f].key) << where;
      const std::string p(x.value.fields()[f].value.text);
      const std::string q(y.value.fields()[f].value.text);
      const bool listed =
          q == "N/A" && (p == "0" || p == "0.0" || p == "0.0%" || p == "inf");
      EXPECT_TRUE(p == q || listed)
          << where << " " << x.key << " " << x.value.fields()[f].key << ": "
          << p << " != " << q;
    }
  }
}

class GraphTest : public ::testing::Test {
 protected:
  void ExpectPeer(const VisualizeOptions& options, const std::string& peer) {
    const std::string path = dir_.path() + "/out.vis.db";
    auto result = Visualize(file_system_.get(), options, path, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::string reference = AnalysisGolden("graph/" + peer);
    for (const char* const sql :
         {"select * from tb_nodes", "select * from tb_stack order by id",
          "select id, graph_type, task, micro_steps, overflow_check, "
          "rank_list, step_list from tb_config",
          "select sql from sqlite_master where type='index' order by name"}) {
      const auto ours = Query(path, sql);
      const auto want = Query(reference, sql);
      ASSERT_EQ(ours.size(), want.size()) << sql;
      ASSERT_FALSE(want.empty());
      for (size_t i = 0; i < ours.size(); ++i) {
        for (const auto& [column, value] : want[i]) {
          const std::string& mine = ours[i].at(column);
          if (column == "input_data" || column == "output_data") {
            ExpectSameValues(mine, value, ours[i].at("id"));
          } else if (column == "sql") {
            std::string a;
            std::string b;
            for (const char c : mine)
              a += absl::ascii_isspace(c) ? "" : std::string(1, c);
            for (const char c : value)
              b += absl::ascii_isspace(c) ? "" : std::string(1, c);
            EXPECT_EQ(a, b);
          } else if (column == "matched_distributed" && value == "{}") {
            // Only rankprobe links batches, and roots given by keyword.
          } else {
            EXPECT_EQ(mine, value) << ours[i].at("id") << " " << column;
          }
        }
      }
    }
  }
  Graph Build(const std::string& construct, const std::string& data = "",
              const std::string& stack = "") {
    dir_.Write("dump.json", R"({"task":"statistics","data":{)" + data + "}}");
    dir_.Write("construct.json", construct);
    dir_.Write("stack.json", stack.empty() ? "{}" : stack);
    DumpReader::Options options;
    options.construct = true;
    auto reader = DumpReader::Open(file_system_.get(), dir_.path(), options);
    EXPECT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
    auto graph = Graph::Build(*reader_);
    status_ = graph.status();
    return graph.ok() ? *std::move(graph) : Graph();
  }
  static std::string ParentOf(const Graph& graph, const std::string& id) {
    const int32_t node = graph.Find(id);
    EXPECT_GE(node, 0) << id;
    if (node < 0) return "";
    return graph
        .nodes()[static_cast<size_t>(
            graph.nodes()[static_cast<size_t>(node)].parent)]
        .id;
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
  std::unique_ptr<DumpReader> reader_;
  absl::Status status_;
};

TEST_F(GraphTest, BuildOfOneRank) {
  VisualizeOptions options;
  options.target = GoldenDump("cnn_stat_mix");
  ExpectPeer(options, "build_cnn_mix.vis.db");
}

TEST_F(GraphTest, BuildOfRanks) {
  VisualizeOptions options;
  options.target =
      std::filesystem::path(GoldenDump("ddp_stat_mix")).parent_path();
  ExpectPeer(options, "build_ddp_step.vis.db");
}

TEST_F(GraphTest, Compare) {
  VisualizeOptions options;
  options.target = AnalysisGolden("dumps/cnn_stat_perturbed");
  options.reference = GoldenDump("cnn_stat_mix");
  ExpectPeer(options, "cmp_cnn.vis.db");
}

TEST_F(GraphTest, BadInputLeavesNothing) {
  for (const std::string& construct :
       std::vector<std::string>{"{}", R"({"a":"b","b":"a"})", "{", ""}) {
    TempDir dump;
    dump.Write("dump.json", R"({"task":"statistics","data":{}})");
    if (!construct.empty()) dump.Write("construct.json", construct);
    VisualizeOptions options;
    options.target = dump.path();
    const auto result = Visualize(file_system_.get(), options,
                                  dir_.path() + "/out.vis.db", nullptr);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr(dump.path() + "/construct.json"));
    EXPECT_TRUE(file_system_->List(dir_.path())->empty());
  }
}

TEST_F(GraphTest, CyclesAreNamed) {
  Build(R"({"Module.a.A.forward.0":"Module.b.B.forward.0",
            "Module.b.B.forward.0":"Module.a.A.forward.0"})");
  EXPECT_THAT(std::string(status_.message()), HasSubstr("its own ancestor"));
}

TEST_F(GraphTest, BackwardParents) {
  const Graph graph = Build(R"({
    "Module.a.A.forward.0":null,
    "Torch.mul.0.forward":"Module.a.A.forward.0",
    "Module.a.A.backward.0":null,
    "Torch.mul.0.backward":null,
    "Module.l.1.Block.forward.0":null,
    "Module.l.1.conv.Conv.forward.0":"Module.l.1.Block.forward.0",
    "Module.l.1.relu.ReLU.backward.1":null,
    "Module.l.1.Block.backward.0":null,
    "Module.l.1.conv.Conv.backward.0":"Module.l.1.relu.ReLU.backward.1"})");
  // The node has no parent of its own and gets that of the forward call.
  EXPECT_EQ(ParentOf(graph, "Torch.mul.0.backward"), "Module.a.A.backward.0");
  // A parent that an in-place layer left open.
  EXPECT_EQ(ParentOf(graph, "Module.l.1.conv.Conv.backward.0"),
            "Module.l.1.Block.backward.0");
}

TEST_F(GraphTest, ApisBetweenModulesAndGradients) {
  const Graph graph = Build(
      R"({"Torch.a.0.forward":null,"Torch.b.0.forward":null,
          "Module.m.M.forward.0":null,"Torch.c.0.forward":null,
          "Module.m.M.backward.0":null,"Module.m.M.backward.1":null,
          "Torch.d.0.forward":"Module.lost.L.forward.0"})",
      R"("Module.m.M.parameters_grad.0":{"weight":[null]},
         "Module.x.X.parameters_grad":{"weight":[null]})");
  EXPECT_EQ(ParentOf(graph, "Torch.b.0.forward"), "Apis_Between_Modules.0");
  EXPECT_EQ(ParentOf(graph, "Torch.c.0.forward"), "DefaultModel");
  EXPECT_EQ(ParentOf(graph, "Module.m.M.parameters_grad.0"),
            "Module.m.M.backward.1");
  EXPECT_LT(graph.Find("Module.x.X.parameters_grad"), 0);
  // A parent that is not listed itself is a child of the root.
  EXPECT_EQ(ParentOf(graph, "Module.lost.L.forward.0"), "DefaultModel");
}

TEST_F(GraphTest, RecomputedLayersMoveIntoTheBackward) {
  const std::string stack =
      R"x({"0":[["Module.m.layers.0.sub.L.forward.1"],
         ["File /x/torch/utils/checkpoint.py, line 9, in recompute_fn, \n f()"]]})x";
  const std::string construct =
      R"({"Module.m.layers.M.forward.0":null,
          "Module.m.layers.0.sub.L.forward.0":"Module.m.layers.M.forward.0",
          "Module.m.layers.M.backward.0":null,
          "Module.m.layers.0.sub.L.forward.1":null,
          "Module.m.layers.0.sub.L.backward.1":null})";
  const Graph graph = Build(construct, "", stack);
  EXPECT_EQ(ParentOf(graph, "Module.m.layers.0.sub.L.forward.1"),
            "Module.m.layers.M.backward.0");
  EXPECT_EQ(ParentOf(graph, "Module.m.layers.0.sub.L.backward.1"),
            "Module.m.layers.M.backward.0");
  EXPECT_EQ(ParentOf(Build(construct), "Module.m.layers.0.sub.L.forward.1"),
            "DefaultModel");
}

TEST_F(GraphTest, MicroSteps) {
  Graph graph = Build(R"({"Module.m.M.forward.0":null,
      "Module.m.M.backward.0":null,"Torch.a.0.forward":null,
      "Module.m.M.forward.1":null,"Torch.b.0.forward":"Module.m.M.forward.1",
      "Module.m.M.backward.1":null})");
  EXPECT_EQ(graph.AssignMicroSteps(nullptr), 2);
  const auto micro = [&](const std::string& id) {
    return *graph.nodes()[static_cast<size_t>(graph.Find(id))].micro_step;
  };
  EXPECT_EQ(micro("Torch.a.0.forward"), 0);
  EXPECT_EQ(micro("Torch.b.0.forward"), 1);
  Graph megatron = Build(R"({"Module.m.M.forward.0":[null,3],
                             "megatron_micro_step_number":4})");
  EXPECT_EQ(megatron.AssignMicroSteps(nullptr), 5);
  EXPECT_EQ(megatron.nodes()[1].micro_step, 3);
}

TEST_F(GraphTest, Matching) {
  const Graph n = Build(R"({"Module.m.M.forward.0":null,
      "Torch.mul.4.forward":"Module.m.M.forward.0",
      "Torch.mul.5.forward":"Module.m.M.forward.0",
      "Torch.add.0.forward":"Module.m.M.forward.0"})");
  const Graph b = Build(R"({"Module.m.M.forward.0":null,
      "Torch.mul.0.forward":"Module.m.M.forward.0",
      "Torch.add.0.forward":null})");
  const auto partner = [](const Graph& from, const std::string& id,
                          const Graph& to) -> std::string {
    const int32_t match =
        from.nodes()[static_cast<size_t>(from.Find(id))].match;
    return match < 0 ? "" : to.nodes()[static_cast<size_t>(match)].id;
  };
  Graph n1 = n;
  Graph b1 = b;
  MatchExact(&n1, &b1);
  EXPECT_EQ(partner(n1, "Module.m.M.forward.0", b1), "Module.m.M.forward.0");
  EXPECT_EQ(partner(n1, "Torch.mul.4.forward", b1), "");
  // Equal ids with different ancestors.
  EXPECT_EQ(partner(n1, "Torch.add.0.forward", b1), "");
  Graph n2 = n;
  Graph b2 = b;
  MatchFuzzyGraphs(&n2, &b2);
  EXPECT_EQ(partner(n2, "Torch.mul.4.forward", b2), "Torch.mul.0.forward");
  EXPECT_EQ(partner(n2, "Torch.mul.5.forward", b2), "");
  Graph n3 = n;
  Graph b3 = b;
  MatchMapped({{"Torch.mul.5.forward", "Torch.mul.0.forward"}}, &n3, &b3);
  EXPECT_EQ(partner(n3, "Torch.mul.5.forward", b3), "Torch.mul.0.forward");
  EXPECT_EQ(partner(n3, "Torch.add.0.forward", b3), "Torch.add.0.forward");
}

TEST_F(GraphTest, LayerMapping) {
  const auto make = [&](const std::string& construct) {
    Build(construct);
    return std::move(reader_);
  };
  const auto n = make(R"({
    "Module.enc.Encoder.forward.0":null,
    "Module.enc.att.core.Core.forward.0":"Module.enc.Encoder.forward.0",
    "Torch.mul.7.forward":"Module.enc.att.core.Core.forward.0",
    "Torch.mul.7.backward":"Module.enc.att.core.Core.backward.0"})");
  const auto b = make(R"({
    "Module.encoder.Enc.forward.0":null,
    "Module.encoder.sa.Core.forward.0":"Module.encoder.Enc.forward.0",
    "Torch.mul.0.forward":"Module.encoder.sa.Core.forward.0",
    "Torch.mul.0.backward":null})");
  const std::string path = dir_.Write(
      "map.yaml",
      "TopLayer:\n  enc: encoder\nEncoder:\n  att.core: sa(x)\n  att: wrong\n");
  const auto rules = ReadLayerRules(file_system_.get(), path);
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto map = MapLayers(*rules, *n, *b);
  EXPECT_EQ(map.at("Module.enc.att.core.Core.forward.0"),
            "Module.encoder.sa.Core.forward.0");
  EXPECT_EQ(map.at("Torch.mul.7.forward"), "Torch.mul.0.forward");
  EXPECT_EQ(map.at("Torch.mul.7.backward"), "Torch.mul.0.backward");
  for (const std::string& text :
       std::vector<std::string>{"- a\n", "A: 3\n", "A: {b: [1]}\n", "{"}) {
    const std::string bad = dir_.Write("bad.yaml", text);
    const absl::Status status =
        ReadLayerRules(file_system_.get(), bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
    EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
  }
}

std::string Level(const std::string& entry, const std::string& record) {
  JsonDocument document;
  EXPECT_TRUE(document.Parse(record).ok());
  return std::string(OverflowLevel(entry, document.root(), {}));
}

TEST(OverflowLevelTest, Rules) {
  const std::string good =
      R"({"type":"torch.Tensor","Max":1.0,"Min":0.0,"Mean":0.5,"Norm":2.0})";
  const std::string bad =
      R"({"type":"torch.Tensor","Max":NaN,"Min":0.0,"Mean":0.5,"Norm":NaN})";
  const std::string huge =
      R"({"type":"torch.Tensor","Max":1.0,"Min":0.0,"Mean":0.5,"Norm":201.0})";
  const auto record = [](const std::string& in, const std::string& out) {
    return absl::StrCat(R"({"input_args":[)", in, R"(],"input_kwargs":{},)",
                        R"("output":[)", out, "]}");
  };
  EXPECT_EQ(Level("Torch.mul.0.forward", record(good, bad)), "critical");
  EXPECT_EQ(Level("Torch.mul.0.forward", record(bad, bad)), "high");
  EXPECT_EQ(Level("Torch.mul.0.forward", record(bad, good)), "medium");
  EXPECT_EQ(Level("Torch.mul.0.forward", record(good, huge)), "high");
  EXPECT_EQ(Level("Torch.mul.0.forward", record(good, good)), "");
  EXPECT_EQ(
      Level("Torch.mul.0.forward", record("[" + good + "]", "[[" + bad + "]]")),
      "critical");
  EXPECT_EQ(Level("Torch.empty.0.forward", record("", bad)), "");
  EXPECT_EQ(Level("Distributed.recv.0.forward", record(bad, good)), "");
  EXPECT_EQ(Level("Distributed.recv.0.forward", record(good + "," + bad, good)),
            "medium");
  EXPECT_EQ(Level("Tensor.masked_fill_.0.forward", record(bad, good)), "");
  EXPECT_EQ(
      Level("Tensor.masked_fill_.0.forward", record(bad + "," + bad, good)),
      "medium");
  EXPECT_EQ(Level("Tensor.masked_fill.0.forward", record(bad, good)), "medium");
  // Memory that is overwritten, and values computed from it.
  EXPECT_EQ(Level("Tensor.bernoulli_.0.forward", record(bad, good)), "");
  EXPECT_EQ(Level("Tensor.bernoulli_.0.forward", record(bad, bad)), "critical");
  EXPECT_EQ(Level("Tensor.zero_.0.forward", record(huge, good)), "");
  EXPECT_EQ(Level("Tensor.fill_.0.forward", record(good, huge)), "");
  EXPECT_EQ(Level("Torch.mul.0.forward",
                  absl::StrCat(R"({"input_args":[)", good,
                               R"(],"input_kwargs":{"out":)", bad,
                               R"(},"output":[)", good, "]}")),
            "");
}

TEST(CommLinksTest, PositionalPeersAndRoots) {
  CommLinks links;
  const auto add = [&](int64_t rank, const std::string& node,
                       const std::string& record) {
    JsonDocument document;
    EXPECT_TRUE(document.Parse(record).ok());
    links.Add(rank, node, document.root());
  };
  const std::string group =
      R"("group":{"type":"torch.ProcessGroup","group_ranks":[0,1],"group_id":"g"})";
  add(0, "Distributed.send.0.forward",
      R"({"input_args":[null,{"type":"int","value":1}]})");
  add(0, "Distributed.broadcast.0.forward",
      R"({"input_args":[null],"input_kwargs":{"src":{"type":"int","value":0},)" +
          group + "}}");
  add(1, "Distributed.recv.0.forward",
      R"({"input_args":[null],"input_kwargs":{"src":{"type":"int","value":0}}})");
  add(1, "Distributed.broadcast.0.forward",
      R"({"input_args":[null],"input_kwargs":{"src":{"type":"int","value":0},)" +
          group + "}}");
  add(1, "Distributed.recv.1.forward",
      R"({"input_args":[null],"input_kwargs":{"src":{"type":"int","value":0}}})");
  links.Match();
  const auto* recv = links.Find(1, "Distributed.recv.0.forward");
  ASSERT_EQ(recv->size(), 1);
  EXPECT_EQ((*recv)[0].kind, CommKind::kReceive);
  EXPECT_EQ((*recv)[0].peers[0].node, "Distributed.send.0.forward");
  EXPECT_TRUE(links.Find(1, "Distributed.recv.1.forward")->empty());
  const auto* root = links.Find(0, "Distributed.broadcast.0.forward");
  ASSERT_EQ(root->size(), 1);
  EXPECT_EQ((*root)[0].kind, CommKind::kSend);
  const auto* member = links.Find(1, "Distributed.broadcast.0.forward");
  ASSERT_EQ(member->size(), 1);
  EXPECT_EQ((*member)[0].kind, CommKind::kReceive);
}

}  // namespace
}  // namespace rankprobe::analysis
