// SPDX-License-Identifier: Apache-2.0
#include "dump_format/statistics.h"

#include "common/text/json_text.h"
#include "dump_format/dump_walk.h"

namespace rankprobe {

void WriteExtraStatisticsHead(StatSet stats, JsonTextWriter* json) {
  if (!stats.has_extra()) return;
  json->Key(kExtraStatisticsKey);
  json->BeginArray();
  for (size_t i = kUsualStatCount; i < kStatCount; ++i) {
    if (stats.Has(i)) json->String(kStatInfo[i].key);
  }
  json->EndArray();
}

}  // namespace rankprobe
