// SPDX-License-Identifier: Apache-2.0
// The account of every record: complete, or missing and why.
import { stream } from "../api";
import { count, int, processName, quoted } from "../format";
import { useLoaded } from "../load";
import type { StepLedger } from "../messages";
import { Command, Empty, Select, Show } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { route, setQuery } from "../route";
import { t } from "../text";

const STATES: Record<string, string> = { STATE_WHOLE: "complete", STATE_GAPS: "gaps", STATE_OPEN: "not finished", STATE_DELETED: "deleted" };
// Largest number of rank-steps that are loaded; the command below shows all.
const MOST = 200_000;

export function Ledger({ run }: { run: string }) {
  const { state = "" } = route.value.query;
  const loaded = useLoaded(`ledger ${run}`, async (signal) => {
    const steps: StepLedger[] = [];
    for await (const one of stream<StepLedger>("ArchiveService/GetLedger", { run }, signal)) {
      steps.push(one);
      if (steps.length === MOST) break;
    }
    return steps;
  });
  const columns: Column<StepLedger>[] = [
    { name: t("Step"), text: (one) => int(one.step), numeric: true },
    { name: t("Process"), text: (one) => processName(one.rank, one.pid) },
    { name: t("State"), text: (one) => t(STATES[one.state] ?? one.state) },
    { name: t("Stored records"), text: (one) => int(one.storedRecords), numeric: true },
    { name: t("Recorded"), text: (one) => (one.expectedRecords === undefined ? "–" : int(one.expectedRecords)), numeric: true },
    { name: t("Left out by the plan"), text: (one) => int(one.filteredCalls), numeric: true },
    { name: t("Missing"), text: (one) => one.gaps.map((gap) => `${gap.reason}: ${t("{0} records, {1} payloads", count(gap.records), count(gap.payloads))}${gap.detail ? ` (${gap.detail})` : ""}`).join("; ") },
  ];
  return (
    <Show of={loaded}>
      {(steps) => {
        if (steps.length === 0) return <Empty><p>{t("Nothing is recorded yet.")}</p></Empty>;
        const missing = steps.filter((one) => one.state === "STATE_GAPS" || one.state === "STATE_OPEN");
        const gaps = missing.some((one) => one.state === "STATE_GAPS");
        const rows = state === "missing" ? missing : state === "" ? steps : steps.filter((one) => one.state === state);
        return (
          <>
            <p class={gaps ? "failure" : missing.length > 0 ? "note" : "good-line"}>
              {missing.length === 0 ? t("All {0} rank-steps are complete.", count(steps.length))
                : gaps ? t("{0} of {1} rank-steps are incomplete.", count(missing.length), count(steps.length))
                  : t("{0} of {1} rank-steps are not finished: their process is still in the step, or it ended there.", count(missing.length), count(steps.length))}
            </p>
            {steps.length === MOST && <p class="note">{t("The first {0} only.", count(MOST))}</p>}
            <div class="form">
              <Select label={t("Show")} value={state} onChange={(value) => setQuery({ state: value })} of={[["", t("all")], ["missing", t("incomplete steps")],
                ["STATE_WHOLE", t("complete")], ["STATE_DELETED", t("deleted")]]} />
            </div>
            <Table rows={rows} columns={columns} file="ledger.csv" label={t("Ledger")} rowKey={(one) => `${one.step} ${one.rank} ${one.pid}`}
              rowClass={(one) => (one.state === "STATE_GAPS" ? "bad" : one.state === "STATE_OPEN" ? "open" : "")} />
            <Command text={`rankprobe ledger --run ${quoted(run)}`} />
          </>
        );
      }}
    </Show>
  );
}
