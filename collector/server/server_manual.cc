// SPDX-License-Identifier: Apache-2.0
#include "collector/server/server_manual.h"

namespace rankprobe {

Manual ServerManual() {
  Manual manual;
  manual.section = 8;
  manual.description =
      "rankprobed takes what the agents in the ranks of training jobs record, "
      "keeps it in one archive, switches recording on and off for rankprobe(1) "
      "and exports what was recorded.\n"
      "One process holds an archive; one serves many jobs.\n"
      "\n"
      "It listens on loopback, without secrets, unless configured otherwise. "
      "On a Unix socket (--listen unix:PATH) it serves programs of its own "
      "user "
      "and root. "
      "Beyond loopback it requires TLS and tokens or client certificates, or "
      "--insecure.\n"
      "\n"
      "With --web-listen it serves the page of `rankprobe view` to browsers. "
      "Its address is printed; who opens it is asked for a token, if there is "
      "a --token-file. With --web-root it shows the graph databases and dumps "
      "below a directory, too.\n"
      "\n"
      "The keys of --config FILE are the flags without the two minus signs, "
      "in one JSON object; a key that is not known is an error.\n"
      "\n"
      "SIGTERM and SIGINT end it: queries get --drain-seconds, then what was "
      "received is committed and synced.";
  manual.values = {{"--metrics-host", "ADDRESS"},
                   {"--web-listen", "ADDRESS:PORT"}};
  manual.exit_codes = {
      {"0", "clean end"},
      {"2", "bad flags, config, or files that they name"},
      {"3", "another collector holds the data directory"},
      {"4", "the data directory cannot be used"},
      {"5", "cannot listen"},
      {"6", "the object store cannot be used"},
  };
  manual.files = {
      {"DATA_DIR/index, DATA_DIR/segments", "The archive."},
      {"DATA_DIR/events.log, DATA_DIR/events.log.1", "What happened in runs."},
      {"DATA_DIR/audit.jsonl", "Who changed what, one JSON object a line."},
      {"DATA_DIR/page_jobs",
       "With --web-listen: what jobs of the page make. Emptied at a start."},
      {"DATA_DIR/sealing", "What a leaf is about to store, and what it has."},
      {"DATA_DIR/LOCK", "Held by the collector that uses the directory."},
  };
  manual.see_also = {"rankprobe(1)", "docs/operations.md of the project"};
  return manual;
}

}  // namespace rankprobe
