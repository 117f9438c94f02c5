// SPDX-License-Identifier: Apache-2.0
// The answer to a query over steps (QueryGrid, QuerySeries): one head, then
// rows with the columns that the head names.
#ifndef RANKPROBE_CLI_CLIENT_GRID_REPLY_H_
#define RANKPROBE_CLI_CLIENT_GRID_REPLY_H_

#include "absl/status/status.h"
#include "cli/client/answer_stream.h"
#include "common/base/status_macros.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Calls `take_head(head)`, then `take_row(row, columns)` for each row.
// `take_row` returns false if a row does not have that many columns. Returns
// DATA_LOSS for any other sequence of messages, because the collector is not
// trusted.
template <typename Reply, typename TakeHead, typename TakeRow>
absl::Status ReadGridReply(AnswerStream<Reply>* reader,
                           const TakeHead& take_head, const TakeRow& take_row) {
  bool has_head = false;
  int columns = 0;
  for (Reply reply; reader->Read(&reply);) {
    const v1::GridHead& head = reply.head();
    if (reply.has_head() && !has_head &&
        head.first_steps_size() == head.last_steps_size()) {
      has_head = true;
      columns = head.first_steps_size();
      take_head(head);
    } else if (!has_head || !reply.has_row() ||
               !take_row(reply.row(), columns)) {
      reader->Cancel();
      return absl::DataLossError("the collector's answer cannot be read");
    }
  }
  RP_RETURN_IF_ERROR(reader->Finish());
  if (!has_head)
    return absl::DataLossError("the collector's answer has no beginning");
  return absl::OkStatus();
}

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_GRID_REPLY_H_
