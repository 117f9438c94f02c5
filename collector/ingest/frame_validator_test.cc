// SPDX-License-Identifier: Apache-2.0
#include "collector/ingest/frame_validator.h"

#include <functional>
#include <string>

#include "common/io/crc32c.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

bool Refused(const std::function<void(v1::UploadFrame*)>& change,
             uint64_t expected = 1) {
  v1::UploadFrame frame;
  frame.set_sequence(1);
  change(&frame);
  const bool place = absl::IsInvalidArgument(CheckPlace(frame, expected));
  return place || absl::IsInvalidArgument(
                      CheckContent(frame, SizeOf(frame, frame.ByteSizeLong())));
}

v1::CallPhase* Call(v1::UploadFrame* frame) {
  v1::CallPhase* call = frame->mutable_batch()->add_records()->mutable_call();
  call->set_entry("Torch.add.0.forward");
  call->set_kind(v1::CALL_KIND_API_FORWARD);
  return call;
}

TEST(FrameValidatorTest, GoodFramesPass) {
  EXPECT_FALSE(Refused([](v1::UploadFrame* f) { Call(f); }));
  EXPECT_FALSE(Refused([](v1::UploadFrame*) {})) << "an emptied frame";
  EXPECT_FALSE(Refused([](v1::UploadFrame* f) { Call(f); }, 9)) << "duplicate";
}

TEST(FrameValidatorTest, SequencesHaveNoGaps) {
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) { f->set_sequence(0); }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) { f->set_sequence(3); }, 2));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) { f->mutable_open(); }));
}

TEST(FrameValidatorTest, ContentIsNoFaultOfThePlace) {
  v1::UploadFrame frame;
  frame.set_sequence(1);
  Call(&frame)->set_entry("");
  EXPECT_TRUE(CheckPlace(frame, 1).ok());
  EXPECT_FALSE(CheckContent(frame, SizeOf(frame, frame.ByteSizeLong())).ok());
  frame.set_sequence(5);
  EXPECT_FALSE(CheckPlace(frame, 1).ok());
}

TEST(FrameValidatorTest, ChunksStayInsideTheirPayload) {
  const auto chunk = [](v1::UploadFrame* f) {
    v1::PayloadChunk* c = f->mutable_chunk();
    c->set_digest(std::string(16, 'd'));
    c->set_length_bytes(10);
    c->set_data("0123456789");
    c->set_crc32c(Crc32c("0123456789"));
    return c;
  };
  EXPECT_FALSE(Refused([&](v1::UploadFrame* f) { chunk(f); }));
  EXPECT_TRUE(Refused([&](v1::UploadFrame* f) { chunk(f)->set_data(""); }));
  EXPECT_TRUE(Refused([&](v1::UploadFrame* f) { chunk(f)->set_crc32c(1); }));
  EXPECT_TRUE(Refused([&](v1::UploadFrame* f) { chunk(f)->set_digest("x"); }));
  EXPECT_TRUE(
      Refused([&](v1::UploadFrame* f) { chunk(f)->set_offset_bytes(1); }));
  EXPECT_TRUE(Refused(
      [&](v1::UploadFrame* f) { chunk(f)->set_offset_bytes(UINT64_MAX); }));
  EXPECT_TRUE(Refused(
      [&](v1::UploadFrame* f) { chunk(f)->set_length_bytes(UINT64_MAX); }));
}

TEST(FrameValidatorTest, StatisticsAreBounded) {
  const auto tensor = [](int count) {
    return [count](v1::UploadFrame* f) {
      v1::Value* value = Call(f)->mutable_output()->add_items();
      for (int i = 0; i < count; ++i) value->mutable_tensor()->add_extra();
    };
  };
  EXPECT_FALSE(Refused(tensor(32)));
  EXPECT_TRUE(Refused(tensor(33)));
  const auto step = [](int count) {
    return [count](v1::UploadFrame* f) {
      v1::Record* record = f->mutable_batch()->add_records();
      for (int i = 0; i < count; ++i) {
        record->mutable_step_begin()->add_extra_statistics(
            v1::STATISTIC_ID_NAN_COUNT);
      }
    };
  };
  EXPECT_FALSE(Refused(step(32)));
  EXPECT_TRUE(Refused(step(33)));
}

TEST(FrameValidatorTest, RequestsOfAStepAreBounded) {
  const auto step = [](int count, size_t id_bytes, int64_t begin, int64_t end) {
    return [=](v1::UploadFrame* f) {
      v1::StepRequests* requests = f->mutable_batch()
                                       ->add_records()
                                       ->mutable_step_begin()
                                       ->mutable_requests();
      requests->set_rows(8);
      for (int i = 0; i < count; ++i) {
        v1::RequestRows* request = requests->add_requests();
        request->set_id(std::string(id_bytes, 'x'));
        request->set_begin(begin);
        request->set_end(end);
      }
    };
  };
  EXPECT_FALSE(Refused(step(1024, 256, 0, 8)));
  EXPECT_TRUE(Refused(step(1025, 256, 0, 8)));
  EXPECT_TRUE(Refused(step(1, 257, 0, 8)));
  EXPECT_TRUE(Refused(step(1, 1, -1, 8)));
  EXPECT_TRUE(Refused(step(1, 1, 5, 4)));
  EXPECT_TRUE(Refused(step(1, 1, 0, 9)));
}

TEST(FrameValidatorTest, ARunCardIsBounded) {
  const auto card = [](int count, size_t section, size_t name, size_t value) {
    return [=](v1::UploadFrame* f) {
      v1::RunCard* out = f->mutable_batch()->add_records()->mutable_run_card();
      for (int i = 0; i < count; ++i) {
        v1::RunFact* fact = out->add_facts();
        fact->set_section(std::string(section, 's'));
        fact->set_name(std::string(name, 'n'));
        fact->set_value(std::string(value, 'v'));
      }
    };
  };
  EXPECT_FALSE(Refused(card(1024, 1, 1, 0)));
  EXPECT_FALSE(Refused(card(1, 64, 1024, 4096)));
  EXPECT_TRUE(Refused(card(1025, 1, 1, 0)));
  EXPECT_TRUE(Refused(card(1, 0, 1, 1)));
  EXPECT_TRUE(Refused(card(1, 65, 1, 1)));
  EXPECT_TRUE(Refused(card(1, 1, 0, 1)));
  EXPECT_TRUE(Refused(card(1, 1, 1025, 1)));
  EXPECT_TRUE(Refused(card(1, 1, 1, 4097)));
}

// E01, D02
TEST(FrameValidatorTest, TextsThatGoFurtherAreChecked) {
  const auto mesh = [](const std::string& text) {
    return [text](v1::UploadFrame* f) {
      v1::Value* value = Call(f)->mutable_output()->add_items();
      value->mutable_tensor()->set_device_mesh_json(text);
    };
  };
  EXPECT_FALSE(Refused(mesh("[[0, 1], [2, 3]]")));
  EXPECT_TRUE(Refused(mesh("[0], \"placements\": []}, \"forged\": {")));
  EXPECT_TRUE(Refused(mesh("[0")));
  EXPECT_TRUE(Refused(mesh(std::string(17, '[') + std::string(17, ']'))));
  EXPECT_TRUE(Refused(mesh("\"" + std::string(64 << 10, 'x') + "\"")));
  const auto path = [](size_t bytes) {
    return [bytes](v1::UploadFrame* f) {
      Call(f)->set_debug_path(std::string(bytes, '0'));
    };
  };
  EXPECT_FALSE(Refused(path(4096)));
  EXPECT_TRUE(Refused(path(4097)));
}

TEST(FrameValidatorTest, RecordsAreSane) {
  EXPECT_TRUE(
      Refused([](v1::UploadFrame* f) { f->mutable_batch()->set_step(-1); }));
  EXPECT_TRUE(Refused(
      [](v1::UploadFrame* f) { f->mutable_batch()->set_step(INT64_MAX); }));
  EXPECT_TRUE(
      Refused([](v1::UploadFrame* f) { f->mutable_batch()->add_records(); }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) { Call(f)->set_entry(""); }));
  EXPECT_TRUE(Refused(
      [](v1::UploadFrame* f) { Call(f)->set_entry(std::string(5000, 'x')); }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) {
    Call(f)->set_kind(v1::CALL_KIND_UNSPECIFIED);
  }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) {
    Call(f)->mutable_output()->add_items()->mutable_tensor()->add_shape(-4);
  }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) {
    v1::TensorSummary* t =
        Call(f)->mutable_output()->add_items()->mutable_tensor();
    for (int i = 0; i < 65; ++i) t->add_shape(1);
  }));
  EXPECT_TRUE(Refused([](v1::UploadFrame* f) {
    Call(f)
        ->mutable_output()
        ->add_items()
        ->mutable_tensor()
        ->mutable_payload()
        ->set_digest("short");
  }));
}

TEST(FrameValidatorTest, NestingIsBounded) {
  const auto nested = [](int lists) {
    return [lists](v1::UploadFrame* f) {
      v1::Value* value = Call(f)->mutable_output()->add_items();
      for (int i = 0; i < lists; ++i) {
        value = value->mutable_list()->add_items();
      }
    };
  };
  EXPECT_FALSE(Refused(nested(45)));
  EXPECT_TRUE(Refused(nested(46)));
}

}  // namespace
}  // namespace rankprobe
