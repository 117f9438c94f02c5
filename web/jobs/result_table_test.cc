// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/testing/scratch_directory.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResultTableTest : public ::testing::Test {
 protected:
  void Read(const std::string& text) {
    const std::string path = scratch_.path() + "/t.csv";
    std::ofstream(path) << text;
    auto table = ResultTable::Read(file_system_.get(), path);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
  }
  // Returns the names in a window.
  std::vector<std::string> Names(const v1::JobRowsRequest& request) {
    const auto rows = table_->Rows(request);
    EXPECT_TRUE(rows.ok()) << rows.status();
    std::vector<std::string> names;
    if (!rows.ok()) return names;
    for (const v1::JobRow& row : rows->rows()) names.push_back(row.cells(0));
    return names;
  }

  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  testing::ScratchDirectory scratch_;
  std::shared_ptr<ResultTable> table_;
};

constexpr char kText[] =
    "NPU Name,Bench Name,Max diff,Result\n"
    "a.input.0,a.input.0,0.5,pass\n"
    "b.output.0,B2,nan,error\n"
    "c.output.0,N/A,N/A,warning\n"
    "d.output.0,d,12%,error\n"
    "e.output.0,e,-3,warning\n";

TEST_F(ResultTableTest, AWindow) {
  Read(kText);
  v1::JobRowsRequest request;
  request.set_offset(1);
  request.set_count(2);
  const auto rows = table_->Rows(request);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->total(), 5u);
  EXPECT_EQ(rows->matching(), 5u);
  ASSERT_EQ(rows->rows_size(), 2);
  EXPECT_EQ(rows->rows(1).row(), 2u);
  EXPECT_THAT(rows->rows(0).cells(),
              ElementsAre("b.output.0", "B2", "nan", "error"));
  EXPECT_EQ(rows->results().at("error"), 2u);
  EXPECT_EQ(rows->results().at("no partner"), 1u);
  EXPECT_EQ(rows->results().at("warning"), 1u);
  request.set_offset(100);
  EXPECT_THAT(Names(request), IsEmpty());
}

TEST_F(ResultTableTest, NumbersAreSortedAsNumbersAndWhatIsNotFiniteIsAbove) {
  Read(kText);
  v1::JobRowsRequest request;
  request.set_count(10);
  request.set_sort("Max diff");
  request.set_descending(true);
  EXPECT_THAT(Names(request),
              ElementsAre("b.output.0", "d.output.0", "a.input.0", "e.output.0",
                          "c.output.0"));
  request.set_descending(false);
  EXPECT_THAT(Names(request),
              ElementsAre("e.output.0", "a.input.0", "d.output.0", "b.output.0",
                          "c.output.0"));
}

TEST_F(ResultTableTest, FoundAndFiltered) {
  Read(kText);
  v1::JobRowsRequest request;
  request.set_count(10);
  request.set_find("OUTPUT");
  request.add_results("error");
  const auto rows = table_->Rows(request);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->matching(), 2u);
  // Counts of the rows that the filter would match, whether selected or not.
  EXPECT_EQ(rows->results().at("warning"), 1u);
  EXPECT_EQ(rows->results().count("pass"), 0u);
  request.set_results(0, "no partner");
  EXPECT_THAT(Names(request), ElementsAre("c.output.0"));
  // The partner's name is searched, too.
  request.clear_results();
  request.set_find("b2");
  EXPECT_THAT(Names(request), ElementsAre("b.output.0"));
}

TEST_F(ResultTableTest, WhatCannotBeAskedIsSaid) {
  Read(kText);
  v1::JobRowsRequest request;
  request.set_sort("nonsense");
  EXPECT_THAT(table_->Rows(request).status().message(),
              HasSubstr("no such column"));
  request.clear_sort();
  request.set_count(1001);
  EXPECT_THAT(table_->Rows(request).status().message(), HasSubstr("1000"));
}

TEST_F(ResultTableTest, StrangeFiles) {
  const auto why = [this](const std::string& text) {
    const std::string path = scratch_.path() + "/s.csv";
    std::ofstream(path) << text;
    return std::string(
        ResultTable::Read(file_system_.get(), path).status().message());
  };
  EXPECT_THAT(why(""), HasSubstr("no head"));
  EXPECT_THAT(why("a\n1,2\n"), HasSubstr("longer than its head"));
  EXPECT_THAT(why("a\n\"b"), HasSubstr("quotation mark"));
  EXPECT_THAT(
      ResultTable::Read(file_system_.get(), "/etc/passwd").status().message(),
      HasSubstr("only csv"));
  // Missing cells of a short row are empty; without a column Result there are
  // no counts.
  Read("a,b\n1\n");
  v1::JobRowsRequest request;
  request.set_count(5);
  const auto rows = table_->Rows(request);
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(rows->rows(0).cells(), ElementsAre("1", ""));
  EXPECT_TRUE(rows->results().empty());
}

}  // namespace
}  // namespace rankprobe
