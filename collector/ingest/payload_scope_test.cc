// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/payload_scope.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

const std::string kDigest(16, 'd');

TEST(PayloadScopeTest, EachPrincipalHasItsOwnNameForAPayload) {
  EXPECT_EQ(StoredDigest("", kDigest), kDigest);
  const std::string alice = StoredDigest("alice", kDigest);
  EXPECT_EQ(alice.size(), 16u);
  EXPECT_EQ(alice, StoredDigest("alice", kDigest));
  EXPECT_NE(alice, kDigest);
  EXPECT_NE(alice, StoredDigest("bob", kDigest));
  EXPECT_NE(alice, StoredDigest("alice", std::string(16, 'e')));
  EXPECT_EQ(StoredDigest("alice", ""), "") << "of a payload that was lost";
}

TEST(PayloadScopeTest, AChunkAndWhatRefersToItAreRenamedAlike) {
  v1::UploadFrame chunk;
  chunk.mutable_chunk()->set_digest(kDigest);
  EXPECT_EQ(RenamePayloads("alice", &chunk), kDigest);
  const std::string name = chunk.chunk().digest();
  EXPECT_EQ(name, StoredDigest("alice", kDigest));

  v1::UploadFrame batch;
  v1::CallPhase* const call =
      batch.mutable_batch()->add_records()->mutable_call();
  call->mutable_output()
      ->add_items()
      ->mutable_list()
      ->add_items()
      ->mutable_tensor()
      ->mutable_payload()
      ->set_digest(kDigest);
  call->mutable_input_args()->add_items()->mutable_tensor();
  batch.mutable_batch()->add_records()->mutable_step_end();
  EXPECT_EQ(RenamePayloads("alice", &batch), "");
  const v1::CallPhase& renamed = batch.batch().records(0).call();
  EXPECT_EQ(
      renamed.output().items(0).list().items(0).tensor().payload().digest(),
      name);
  EXPECT_FALSE(renamed.input_args().items(0).tensor().has_payload());
}

TEST(PayloadScopeTest, WithoutAPrincipalNothingChanges) {
  v1::UploadFrame chunk;
  chunk.mutable_chunk()->set_digest(kDigest);
  EXPECT_EQ(RenamePayloads("", &chunk), "");
  EXPECT_EQ(chunk.chunk().digest(), kDigest);
}

}  // namespace
}  // namespace rankprobe
