// SPDX-License-Identifier: Apache-2.0
#include "common/io/confined_file_system.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/staged_tree.h"
#include "common/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = FileSystem::OpenMode;

std::string TextOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Each entry below `directory`: its kind, mode and content.
std::map<std::string, std::string> Everything(const fs::path& directory) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    struct stat st;
    EXPECT_EQ(::lstat(entry.path().c_str(), &st), 0);
    all[entry.path().string()] = absl::StrCat(
        st.st_mode, " ",
        S_ISREG(st.st_mode)   ? TextOf(entry.path())
        : S_ISLNK(st.st_mode) ? fs::read_symlink(entry.path()).string()
                              : "");
  }
  return all;
}

class ConfinedFileSystemTest : public ::testing::TestWithParam<PathWalk> {
 protected:
  ConfinedFileSystemTest() {
    fs::create_directory(root_);
    Put(outside_ + "/precious", "precious");
    Put(outside_ + "/rank0/dump.json", "{}");
    ::chmod((outside_ + "/precious").c_str(), 0604);
    auto files = NewConfinedFileSystem({root_}, GetParam());
    EXPECT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }

  absl::Status Write(const std::string& path, const std::string& text,
                     Mode mode = Mode::kTruncate) {
    auto file = files_->OpenForWrite(path, mode);
    if (!file.ok()) return file.status();
    const absl::Status status = (*file)->Append(text);
    return status.ok() ? (*file)->Close() : status;
  }

  const testing::ScratchDirectory scratch_;
  const std::string root_ = scratch_.path() + "/root";
  const std::string outside_ = scratch_.path() + "/outside";
  std::unique_ptr<FileSystem> files_;
};

INSTANTIATE_TEST_SUITE_P(Walks, ConfinedFileSystemTest,
                         ::testing::Values(PathWalk::kBest,
                                           PathWalk::kComponents));

TEST_P(ConfinedFileSystemTest, DoesWhatAFileSystemDoes) {
  const std::string a = root_ + "/x/y", b = root_ + "/x/z";
  ASSERT_TRUE(files_->CreateDirectories(a).ok());
  ASSERT_TRUE(files_->CreateDirectories(a).ok());
  ASSERT_TRUE(files_->CreateDirectories(root_).ok());
  ASSERT_TRUE(Write(a + "/f", "one").ok());
  ASSERT_TRUE(Write(a + "/f", "two!").ok());
  EXPECT_EQ(TextOf(a + "/f"), "two!");
  ASSERT_TRUE(Write(a + "/f", "3", Mode::kAppend).ok());
  EXPECT_EQ(*files_->FileSize(a + "/f"), 5u);
  EXPECT_EQ(Write(a + "/f", "4", Mode::kCreateNew).code(),
            absl::StatusCode::kAlreadyExists);
  std::string text(5, '\0');
  ASSERT_TRUE(
      (*files_->OpenForRead(a + "/f"))->Read(0, absl::MakeSpan(text)).ok());
  EXPECT_EQ(text, "two!3");
  ASSERT_TRUE(files_->Truncate(a + "/f", 2).ok());
  ASSERT_TRUE(files_->SyncFile(a + "/f").ok());
  ASSERT_TRUE(files_->SyncDirectory(root_).ok());
  ASSERT_TRUE(files_->Link(a + "/f", a + "/g").ok());
  ASSERT_TRUE(files_->Rename(a, b).ok());
  EXPECT_THAT(*files_->List(root_ + "/x"), ElementsAre("z"));
  EXPECT_THAT(*files_->List(b), ElementsAre("f", "g"));
  EXPECT_EQ(TextOf(b + "/g"), "tw");
  EXPECT_FALSE(files_->Exists(a));
  EXPECT_FALSE(files_->Exists(a + "/f"));
  EXPECT_TRUE(files_->Exists(b + "//./f"));
  EXPECT_GT(*files_->FreeBytes(b), 0u);
  {
    const auto lock = files_->Lock(b + "/LOCK");
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ(files_->Lock(b + "/LOCK").status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  ASSERT_TRUE(files_->Delete(b + "/f").ok());
  ASSERT_TRUE(files_->DeleteTree(root_ + "/x").ok());
  ASSERT_TRUE(files_->DeleteTree(root_ + "/x").ok());
  ASSERT_TRUE(files_->DeleteTree(root_ + "/x/y/z").ok());
  EXPECT_THAT(*files_->List(root_), ElementsAre());
  EXPECT_EQ(files_->OpenForRead(root_ + "/x").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      files_->OpenForRead(root_ + "/" + std::string(5000, 'x')).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_P(ConfinedFileSystemTest, ARootMayGoAndComeBack) {
  testing::ScratchDirectory scratch;
  const std::string root = scratch.path() + "/root";
  fs::create_directory(root);
  Put(root + "/a", "one");
  const auto each =
      NewConfinedFileSystem({root}, GetParam(), RootLookup::kEachCall);
  const auto once = NewConfinedFileSystem({root}, GetParam());
  ASSERT_TRUE(each.ok() && once.ok());
  ASSERT_TRUE((*each)->OpenForRead(root + "/a").ok());

  fs::rename(root, root + ".away");
  EXPECT_TRUE(absl::IsUnavailable((*each)->OpenForRead(root + "/a").status()));
  EXPECT_TRUE(absl::IsUnavailable((*each)->List(root).status()));
  EXPECT_TRUE(absl::IsUnavailable((*each)->CreateDirectories(root + "/b/c")));
  EXPECT_FALSE(fs::exists(root));
  EXPECT_TRUE((*once)->OpenForRead(root + "/a").ok());

  fs::create_directory(root);
  Put(root + "/d", "two");
  EXPECT_THAT(*(*each)->List(root), ElementsAre("d"));
  EXPECT_THAT(*(*once)->List(root), ElementsAre("a"));
  fs::create_symlink(root + ".away/a", root + "/link");
  EXPECT_TRUE(IsLinkInTheWay((*each)->OpenForRead(root + "/link").status()));
}

TEST_P(ConfinedFileSystemTest, FilesAndDirectoriesAreTheGroupsToReadAtMost) {
  const mode_t before = ::umask(0);
  EXPECT_TRUE(files_->CreateDirectories(root_ + "/d/e").ok());
  EXPECT_TRUE(Write(root_ + "/d/f", "x").ok());
  ::umask(before);
  EXPECT_EQ(fs::status(root_ + "/d/e").permissions(), fs::perms(0750));
  EXPECT_EQ(fs::status(root_ + "/d/f").permissions(), fs::perms(0640));
}

// All operations with a path, each an attempt to escape through it.
std::map<std::string, std::function<absl::Status(FileSystem*, std::string)>>
Operations(const std::string& root) {
  const std::string mine = root + "/mine";
  return {
      {"create file",
       [](FileSystem* files, const std::string& path) {
         return files->OpenForWrite(path, Mode::kCreateNew).status();
       }},
      {"write",
       [](FileSystem* files, const std::string& path) {
         return files->OpenForWrite(path, Mode::kTruncate).status();
       }},
      {"append",
       [](FileSystem* files, const std::string& path) {
         return files->OpenForWrite(path, Mode::kAppend).status();
       }},
      {"read",
       [](FileSystem* files, const std::string& path) {
         return files->OpenForRead(path).status();
       }},
      {"size",
       [](FileSystem* files, const std::string& path) {
         return files->FileSize(path).status();
       }},
      {"list",
       [](FileSystem* files, const std::string& path) {
         return files->List(path).status();
       }},
      {"create directory",
       [](FileSystem* files, const std::string& path) {
         return files->CreateDirectories(path);
       }},
      {"create directories",
       [](FileSystem* files, const std::string& path) {
         return files->CreateDirectories(path + "/new/er");
       }},
      {"rename to",
       [mine](FileSystem* files, const std::string& path) {
         return files->Rename(mine, path + "/stolen");
       }},
      {"rename from",
       [root](FileSystem* files, const std::string& path) {
         return files->Rename(path + "/precious", root + "/stolen");
       }},
      {"link to",
       [mine](FileSystem* files, const std::string& path) {
         return files->Link(mine, path + "/stolen");
       }},
      {"link from",
       [root](FileSystem* files, const std::string& path) {
         return files->Link(path + "/precious", root + "/stolen");
       }},
      {"sync file",
       [](FileSystem* files, const std::string& path) {
         return files->SyncFile(path);
       }},
      {"sync directory",
       [](FileSystem* files, const std::string& path) {
         return files->SyncDirectory(path);
       }},
      {"delete",
       [](FileSystem* files, const std::string& path) {
         return files->Delete(path + "/precious");
       }},
      {"delete tree",
       [](FileSystem* files, const std::string& path) {
         return files->DeleteTree(path + "/rank0");
       }},
      {"truncate",
       [](FileSystem* files, const std::string& path) {
         return files->Truncate(path, 0);
       }},
      {"lock",
       [](FileSystem* files, const std::string& path) {
         return files->Lock(path).status();
       }},
  };
}

TEST_P(ConfinedFileSystemTest, NoOperationGoesThroughALink) {
  fs::create_symlink(outside_, root_ + "/away");
  fs::create_symlink("../outside", root_ + "/relative");
  fs::create_symlink(outside_ + "/precious", root_ + "/file");
  fs::create_symlink(outside_ + "/none", root_ + "/dangling");
  const int fd = ::open(outside_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  fs::create_symlink(absl::StrCat("/proc/self/fd/", fd), root_ + "/magic");
  fs::create_directory(root_ + "/deep");
  Put(root_ + "/deep/precious", "x");
  fs::create_symlink("deep", root_ + "/inside");
  fs::create_symlink(outside_, root_ + "/deep/away");
  Put(root_ + "/mine", "mine");
  const auto before = Everything(scratch_.path());
  for (const auto& [name, operate] : Operations(root_)) {
    for (const char* const link :
         {"/away", "/relative", "/inside", "/file", "/dangling", "/magic",
          "/deep/away", "/away/rank0", "/away/precious", "/away/new",
          "/magic/x"}) {
      const absl::Status status = operate(files_.get(), root_ + link);
      EXPECT_FALSE(status.ok()) << name << link;
      if (status.code() == absl::StatusCode::kPermissionDenied)
        EXPECT_THAT(std::string(status.message()), HasSubstr("symbolic link"));
      EXPECT_TRUE(files_->Exists(root_ + link)) << "nothing is free there";
    }
    EXPECT_EQ(Everything(scratch_.path()), before) << name;
  }
  const absl::Status status = Write(root_ + "/deep/away/x", "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(root_ + "/deep/away is a symbolic link"));
  ::close(fd);
}

TEST_P(ConfinedFileSystemTest, NoPathLeavesTheRoots) {
  Put(root_ + "/mine", "mine");
  Put(scratch_.path() + "/root-sibling/precious", "x");
  const auto before = Everything(scratch_.path());
  for (const auto& [name, operate] : Operations(root_)) {
    if (name == "link from") continue;  // the caller vouches for that one
    for (const std::string& path :
         {outside_, root_ + "/../outside", root_ + "/x/../../outside",
          root_ + "-sibling", std::string("mine"), std::string("/"),
          std::string(), root_ + std::string("/a\0b", 4), root_ + "/.."}) {
      EXPECT_EQ(operate(files_.get(), path).code(),
                absl::StatusCode::kPermissionDenied)
          << name << " " << path;
    }
    EXPECT_EQ(Everything(scratch_.path()), before) << name;
  }
  EXPECT_FALSE(files_->Rename(root_, root_ + "/x").ok());
  EXPECT_FALSE(files_->DeleteTree(root_).ok());
  EXPECT_FALSE(files_->DeleteTree(root_ + "/").ok());
  EXPECT_EQ(Everything(scratch_.path()), before);
}

TEST_P(ConfinedFileSystemTest, ALinkItselfIsMovedAndDeleted) {
  fs::create_symlink(outside_, root_ + "/away");
  fs::create_directory(root_ + "/old");
  const auto before = Everything(outside_);
  ASSERT_TRUE(files_->Rename(root_ + "/away", root_ + "/old/away").ok());
  fs::create_symlink(outside_ + "/precious", root_ + "/old/file");
  ASSERT_TRUE(files_->Delete(root_ + "/old/file").ok());
  ASSERT_TRUE(files_->DeleteTree(root_ + "/old").ok());
  fs::create_symlink(outside_, root_ + "/away");
  ASSERT_TRUE(files_->DeleteTree(root_ + "/away").ok());
  EXPECT_THAT(*files_->List(root_), ElementsAre());
  EXPECT_EQ(Everything(outside_), before);
}

TEST_P(ConfinedFileSystemTest, AHardLinkIsNotWrittenOver) {
  fs::create_hard_link(outside_ + "/precious", root_ + "/f");
  EXPECT_EQ(Write(root_ + "/f", "x").code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Write(root_ + "/f", "x", Mode::kAppend).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(files_->Lock(root_ + "/f").ok());
  EXPECT_FALSE(files_->Truncate(root_ + "/f", 0).ok());
  EXPECT_EQ(TextOf(outside_ + "/precious"), "precious");
}

TEST_P(ConfinedFileSystemTest, AFifoIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  // With a reader, because otherwise the open itself fails.
  const int reader = ::open((root_ + "/fifo").c_str(), O_RDONLY | O_NONBLOCK);
  EXPECT_FALSE(Write(root_ + "/fifo", "x").ok());
  EXPECT_FALSE(files_->OpenForRead(root_ + "/fifo").ok());
  EXPECT_FALSE(files_->FileSize(root_ + "/fifo").ok());
  EXPECT_FALSE(files_->Lock(root_ + "/fifo").ok());
  ::close(reader);
  EXPECT_FALSE(Write(root_ + "/fifo", "x").ok());
}

TEST_P(ConfinedFileSystemTest, ATreeNestedWithoutEndIsLeft) {
  std::string path = root_ + "/deep";
  for (int i = 0; i < 80; ++i) path += "/d";
  ASSERT_TRUE(files_->CreateDirectories(path).ok());
  EXPECT_EQ(files_->DeleteTree(root_ + "/deep").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(files_
                  ->DeleteTree(root_ + "/deep" + std::string("/d/d/d/d") +
                               "/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d")
                  .ok());
  EXPECT_TRUE(files_->DeleteTree(root_ + "/deep").ok());
}

TEST_P(ConfinedFileSystemTest, SeveralRoots) {
  fs::create_directory(scratch_.path() + "/second");
  auto both =
      NewConfinedFileSystem({root_, scratch_.path() + "/second/"}, GetParam());
  ASSERT_TRUE(both.ok());
  Put(root_ + "/f", "f");
  EXPECT_TRUE(
      (*both)->Rename(root_ + "/f", scratch_.path() + "/second/f").ok());
  EXPECT_EQ(TextOf(scratch_.path() + "/second/f"), "f");
  EXPECT_FALSE((*both)->OpenForRead(outside_ + "/precious").ok());
  EXPECT_FALSE(NewConfinedFileSystem({root_ + "/none"}, GetParam()).ok());
  EXPECT_FALSE(
      NewConfinedFileSystem({outside_ + "/precious"}, GetParam()).ok());
}

// Backups link segments of the archive.
TEST_P(ConfinedFileSystemTest, AFileFromElsewhereCanBeLinkedIn) {
  EXPECT_TRUE(files_->Link(outside_ + "/precious", root_ + "/f").ok());
  EXPECT_EQ(TextOf(root_ + "/f"), "precious");
}

TEST_P(ConfinedFileSystemTest, AStagedTreeIsTheSame) {
  const std::unique_ptr<FileSystem> posix = NewPosixFileSystem();
  const auto build = [](FileSystem* files, const std::string& directory) {
    auto tree =
        StagedTree::Open(files, directory, StagedTree::Leftovers::kDelete);
    ASSERT_TRUE(tree.ok()) << tree.status();
    ASSERT_TRUE((*tree)->MakeDirectory("step0/rank0").ok());
    for (const auto& [name, text] :
         {std::pair("step0/rank0/a.pt", "a"),
          std::pair("manifest.json",
                    "{\"format\": \"rankprobe-manifest-1\",\n"
                    " \"path\": \"step0/rank0/a.pt\"}")}) {
      auto file = files->OpenForWrite((*tree)->PathOf(name), Mode::kTruncate);
      ASSERT_TRUE(file.ok() && (*file)->Append(text).ok());
      ASSERT_TRUE((*file)->Close().ok());
    }
    ASSERT_TRUE((*tree)->Link("step0/rank0/b.pt", "step0/rank0/a.pt").ok());
    ASSERT_TRUE((*tree)->Publish().ok());
  };
  for (int round = 0; round < 2; ++round) {
    build(files_.get(), root_ + "/tree");
    build(posix.get(), scratch_.path() + "/posix/tree");
  }
  std::map<std::string, std::string> theirs;
  for (const auto& [path, what] : Everything(scratch_.path() + "/posix"))
    theirs[root_ + path.substr((scratch_.path() + "/posix").size())] = what;
  EXPECT_EQ(Everything(root_), theirs);
  EXPECT_GE(theirs.size(), 6u);
}

// E07, E08, E09 as a race: a path that was a directory when it was checked is a
// link when it is used, and vice versa.
TEST_P(ConfinedFileSystemTest, NothingEscapesWhileADirectoryIsSwapped) {
  fs::create_symlink(outside_, root_ + "/link");
  const auto before = Everything(outside_);
  std::atomic<bool> done{false};
  fs::create_directories(root_ + "/step0");
  std::thread attacker([&] {
    const std::string step = root_ + "/step0", link = root_ + "/link";
    while (!done) {
      ::syscall(SYS_renameat2, AT_FDCWD, step.c_str(), AT_FDCWD, link.c_str(),
                2 /* RENAME_EXCHANGE */);
    }
  });
  int through = 0, refused = 0;
  const auto count = [&](const absl::Status& status) {
    ++(status.ok() ? through : refused);
  };
  const std::string rank = root_ + "/step0/rank0";
  // Until both results have occurred, and often.
  for (int i = 0; i < 200000 && (i < 2000 || !through || !refused); ++i) {
    count(files_->CreateDirectories(rank));
    count(Write(rank + "/f", "x"));
    count(files_->Rename(rank, root_ + "/step0/old"));
    count(files_->DeleteTree(root_ + "/step0/old"));
    count(files_->Delete(root_ + "/step0/precious"));
    count(files_->Link(root_ + "/step0/rank0/f", root_ + "/step0/g"));
  }
  done = true;
  attacker.join();
  EXPECT_GT(through, 0);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(Everything(outside_), before);
}

// In a sandbox that does not know openat2 (Docker before 20.10, old kernels).
void ForbidOpenat2(int error) {
  const std::array<sock_filter, 4> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{filter.size(),
                           const_cast<sock_filter*>(filter.data())};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(77);
}

TEST(ConfinedFileSystemSandboxTest, WithoutOpenat2) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const int error : {ENOSYS, EPERM}) {
    EXPECT_EXIT(
        {
          ForbidOpenat2(error);
          const testing::ScratchDirectory scratch;
          fs::create_directory(scratch.path() + "/root");
          fs::create_symlink(scratch.path(), scratch.path() + "/root/up");
          const auto files = NewConfinedFileSystem({scratch.path() + "/root"});
          const auto write = [&](const std::string& path) {
            return (*files)->OpenForWrite(scratch.path() + path,
                                          Mode::kCreateNew);
          };
          const bool right =
              files.ok() && write("/root/f").ok() &&
              absl::IsPermissionDenied(write("/root/up/f").status()) &&
              !fs::exists(scratch.path() + "/f");
          ::_exit(right ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace rankprobe
