// SPDX-License-Identifier: Apache-2.0
#include "common/records/entry_names.h"

#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(NamesTest, BuildsAndClassifies) {
  EXPECT_EQ(ApiEntry("Functional", "relu", 3, true),
            "Functional.relu.3.forward");
  EXPECT_EQ(ModuleEntry("Module.conv1.Conv2d", 0, false),
            "Module.conv1.Conv2d.backward.0");
  EXPECT_EQ(ParametersGradEntry("Module.conv1.Conv2d", 1),
            "Module.conv1.Conv2d.parameters_grad.1");
  EXPECT_EQ(ClassifyEntry("Functional.relu.3.forward"), EntryKind::kApi);
  EXPECT_EQ(ClassifyEntry("my.module.compute.0.backward"), EntryKind::kApi);
  EXPECT_EQ(ClassifyEntry("Module.a.b.Conv2d.forward.12"), EntryKind::kModule);
  EXPECT_EQ(ClassifyEntry("Module.a.Conv2d.parameters_grad"),
            EntryKind::kParametersGrad);
  EXPECT_EQ(ClassifyEntry("Module.a.Conv2d.parameters_grad.2"),
            EntryKind::kParametersGrad);
  EXPECT_EQ(ClassifyEntry("y.1.debug"), EntryKind::kDebug);
  for (const char* bad :
       {"", ".", "relu", "Functional.relu.forward", "Functional.relu.x.forward",
        "Module.forward.0", "Functional.relu.0.sideways", "0.forward"}) {
    EXPECT_EQ(ClassifyEntry(bad), EntryKind::kOther) << bad;
  }
}

TEST(NamesTest, TakesApart) {
  EXPECT_EQ(ModuleOfEntry("Module.a.b.Conv2d.forward.12"), "Module.a.b.Conv2d");
  EXPECT_EQ(ModuleOfEntry("Module.a.Conv2d.parameters_grad"),
            "Module.a.Conv2d");
  EXPECT_EQ(ModuleOfEntry("Module.a.Conv2d.parameters_grad.2"),
            "Module.a.Conv2d");
  EXPECT_EQ(ModuleOfEntry("Functional.relu.3.forward"), "");
  EXPECT_EQ(OpOfEntry("Tensor.__add__.0.backward"), "__add__");
  EXPECT_TRUE(IsBackwardEntry("Module.a.C.backward.0"));
  EXPECT_TRUE(IsBackwardEntry("Torch.add.0.backward"));
  EXPECT_FALSE(IsBackwardEntry("Module.backward.C.forward.0"));
}

TEST(NamesTest, HarmlessFileNamesStay) {
  EXPECT_EQ(EscapeFileName("Functional.relu.0.forward.input.0", ".pt"),
            "Functional.relu.0.forward.input.0.pt");
}

TEST(NamesTest, HostileNamesAreSafeAndStayDifferent) {
  std::mt19937 random(1);
  std::set<std::string> names = {"",
                                 ".",
                                 "..",
                                 "../../etc/passwd",
                                 "/abs",
                                 "a/b",
                                 "a_b",
                                 std::string("a\0b", 3),
                                 "a\nb",
                                 std::string(251, 'x'),
                                 std::string(252, 'x'),
                                 std::string(253, 'x'),
                                 std::string(5000, 'x'),
                                 std::string(5001, 'x'),
                                 "a%b"};
  const std::string alphabet = "ab./\\%_\n\x01\xc3\xa9";
  while (names.size() < 4000) {
    std::string name(random() % 300, '\0');
    for (char& c : name) c = alphabet[random() % alphabet.size()];
    names.insert(name);
  }
  std::set<std::string> files;
  for (const std::string& name : names) {
    const std::string file = EscapeFileName(name, ".pt");
    EXPECT_LE(file.size(), 255u);
    EXPECT_EQ(file.find('/'), std::string::npos);
    EXPECT_EQ(file.find('\\'), std::string::npos);
    EXPECT_EQ(file.find('\0'), std::string::npos);
    EXPECT_NE(file, ".");
    EXPECT_NE(file, "..");
    files.insert(file);
  }
  EXPECT_EQ(files.size(), names.size());
}

}  // namespace
}  // namespace rankprobe
