// SPDX-License-Identifier: Apache-2.0
#include "web/graph/graph_builder.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A dump of some steps with one call each.
class OnDisk final : public FetchedDump {
 public:
  explicit OnDisk(std::string path) : path_(std::move(path)) {}
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
};

class GraphBuilderTest : public ::testing::Test {
 protected:
  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  GraphBuilderTest() {
    for (int step = 0; step < 3; ++step) {
      const std::string place =
          absl::StrCat(directory_.path(), "/step", step, "/rank0/");
      std::filesystem::create_directories(place);
      Write(
          place + "dump.json",
          R"({"task":"statistics","level":"mix","framework":"pytorch","data":{"Module.a.Linear.forward.0":{"input_args":[],"input_kwargs":{},"output":[]}}})");
      Write(place + "construct.json", R"({"Module.a.Linear.forward.0":null})");
      Write(place + "stack.json", "{}");
    }
  }
  absl::StatusOr<GraphBuilder::Built> Build(const std::string& reference = "") {
    GraphRequest request;
    request.target = "run:a";
    request.reference = reference;
    return builder_.Build(
        request, /*again=*/true,
        [this](size_t done, size_t) {
          if (done == 1 && goes_after_one_) gone_ = true;
        },
        &gone_);
  }

  const testing::ScratchDirectory directory_;
  std::vector<std::string> fetched_;
  std::atomic<bool> gone_ = false;
  bool goes_after_one_ = false;
  bool goes_while_fetched_ = false;
  GraphBuilder builder_{
      nullptr,
      [this](const std::string& name, bool payloads,
             const std::function<bool()>& cancelled)
          -> absl::StatusOr<std::unique_ptr<FetchedDump>> {
        fetched_.push_back(absl::StrCat(name, payloads ? " with" : " without"));
        if (goes_while_fetched_) gone_ = true;
        if (cancelled()) return absl::CancelledError("fetching");
        return std::make_unique<OnDisk>(directory_.path());
      }};
};

TEST_F(GraphBuilderTest, TensorsComeWhereTheyAreCompared) {
  const auto built = Build();
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(built->json, HasSubstr("\"nodes\":"));
  EXPECT_TRUE(Build("run:b").ok());
  EXPECT_THAT(fetched_,
              ElementsAre("run:a without", "run:a with", "run:b with"));
}

TEST_F(GraphBuilderTest, NothingIsMadeForOneWhoHasGone) {
  goes_after_one_ = true;
  EXPECT_EQ(Build().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Build().status().code(), absl::StatusCode::kCancelled)
      << "gone before it began";
  EXPECT_EQ(fetched_.size(), 1u);
  gone_ = false;
  goes_while_fetched_ = true;
  EXPECT_EQ(Build().status().message(), "fetching");
  gone_ = goes_after_one_ = goes_while_fetched_ = false;
  EXPECT_TRUE(Build().ok());
}

}  // namespace
}  // namespace rankprobe
