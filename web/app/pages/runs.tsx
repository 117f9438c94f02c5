// SPDX-License-Identifier: Apache-2.0
// All runs of the collector's archive.
import { about, call } from "../api";
import { bytes, count, int, time } from "../format";
import { useLoaded } from "../load";
import type { AgentInfo, RunInfo } from "../messages";
import { Command, Empty, Show, TextField } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { go, href, route, setQuery } from "../route";
import { t } from "../text";
import { Files } from "./files";

interface Listed extends RunInfo {
  connected: number;
}

async function listRuns(signal: AbortSignal): Promise<{ runs: Listed[]; more: boolean }> {
  const [listed, { agents }] = await Promise.all([
    call<{ runs: RunInfo[]; truncated: boolean }>("ArchiveService/ListRuns", {}, signal),
    call<{ agents: AgentInfo[] }>("ControlService/ListAgents", {}, signal),
  ]);
  const connected = new Map<string, number>();
  for (const agent of agents) {
    if (agent.connected) connected.set(agent.identity.run, (connected.get(agent.identity.run) ?? 0) + 1);
  }
  const known = new Set(listed.runs.map((run) => run.run));
  const waiting = [...connected.keys()].filter((run) => !known.has(run)).map((run): RunInfo => ({
    run, createdUnixNs: 0, updatedUnixNs: 0, ranks: 0, steps: 0, records: 0, storedPayloadBytes: 0, offeredPayloadBytes: 0 }));
  const runs = [...waiting, ...listed.runs].map((run) => ({ ...run, connected: connected.get(run.run) ?? 0 }));
  runs.sort((a, b) => b.connected - a.connected || int(b.updatedUnixNs) - int(a.updatedUnixNs));
  return { runs, more: listed.truncated };
}

// Shows the runs of a collector, of a directory, or of both.
export function Runs() {
  const server = useLoaded("about runs", about);
  return (
    <Show of={server}>
      {({ collector, root }) => (
        <>
          <h1>{collector === "" ? t("Graphs and dumps") : t("Runs")}</h1>
          {collector !== "" && <Archived />}
          {root !== "" && <Files />}
        </>
      )}
    </Show>
  );
}

// With fewer runs, all are visible without a search.
const MANY_RUNS = 10;

function Archived() {
  const { find = "" } = route.value.query;
  const loaded = useLoaded("runs", listRuns, 3000);
  const columns: Column<Listed>[] = [
    { name: t("Run"), text: (run) => run.run, show: (run) => <a href={href("run", run.run)}>{run.run}</a> },
    { name: t("Connected ranks"), text: (run) => run.connected, numeric: true,
      show: (run) => run.connected > 0 ? <span class="badge live">{t("live: {0}", run.connected)}</span> : "–" },
    { name: t("Ranks"), text: (run) => int(run.ranks), numeric: true },
    { name: t("Steps"), text: (run) => int(run.steps), numeric: true, show: (run) => count(run.steps) },
    { name: t("Records"), text: (run) => int(run.records), numeric: true, show: (run) => count(run.records) },
    { name: t("Payloads"), text: (run) => int(run.storedPayloadBytes), numeric: true, show: (run) => bytes(run.storedPayloadBytes) },
    { name: t("Last written"), text: (run) => int(run.updatedUnixNs), numeric: true, show: (run) => time(run.updatedUnixNs) },
  ];
  return (
    <>
      <Show of={loaded}>
        {({ runs, more }) => runs.length === 0 ? (
          <Empty>
            <p>{t("No run yet. Start a training or a server with rankprobe, with this collector's address:")}</p>
            <Command text="RANKPROBE_COLLECTOR=HOST:PORT rankprobe run -- python train.py" />
          </Empty>
        ) : (
          <>
            {more && <p class="note">{t("The first 10,000 runs.")}</p>}
            {(runs.length > MANY_RUNS || find !== "") && <div class="form"><TextField label={t("Names")} value={find} wide onChange={(text) => setQuery({ find: text })} /></div>}
            <Table rows={find === "" ? runs : runs.filter((run) => run.run.toLowerCase().includes(find.toLowerCase()))} columns={columns} file="runs.csv" label={t("Runs")} rowKey={(run) => run.run}
              onOpen={(run) => go(href("run", run.run))} />
            <Command text="rankprobe runs" />
          </>
        )}
      </Show>
    </>
  );
}
