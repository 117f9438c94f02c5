// SPDX-License-Identifier: Apache-2.0
// Overview of a run: whether it is complete and in progress, its first fault, the ranks with it, and the call that made
// the first bad value.
import { useMemo } from "preact/hooks";
import { call } from "../api";
import { dtypeName, numbersOf, shapeText } from "../calls";
import { findFirstBad, isBadColumn, type Bad } from "../first_bad";
import { bytes, count, int, number, quoted, time } from "../format";
import type { Grid } from "../grid";
import { useLoaded } from "../load";
import type { AgentInfo, RunInfo } from "../messages";
import { Overview } from "../overview";
import { Card, Command, Empty, Failure, Show, Stack } from "../parts/basics";
import { Diagnosis } from "../parts/diagnosis";
import { Heatmap } from "../parts/heatmap";
import { RecordInFull } from "../parts/record_in_full";
import { go, href } from "../route";
import { t } from "../text";

async function findRun(run: string, signal: AbortSignal): Promise<RunInfo | undefined> {
  for (let afterRun = ""; ;) {
    const { runs, truncated } = await call<{ runs: RunInfo[]; truncated: boolean }>("ArchiveService/ListRuns", { afterRun }, signal);
    const found = runs.find((one) => one.run === run);
    if (found !== undefined || !truncated || runs.length === 0) return found;
    afterRun = runs[runs.length - 1].run;
  }
}

function ranksText(ranks: number[], all: number): string {
  if (ranks.length === 0) return t("a process without a rank");
  if (all > 1 && ranks.length === all) return t("all {0} ranks", all);
  return ranks.length > 8 ? t("{0} of {1} ranks", ranks.length, all) : t("rank {0}", ranks.join(", "));
}

function FirstBadCard({ run, bad, all, live }: { run: string; bad: Bad; all: number; live: boolean }) {
  const { call: found } = bad;
  const tensor = found?.leaf?.tensor;
  const values = tensor && numbersOf(tensor);
  return (
    <Card title={t("First bad call")} kind="bad">
      <p>
        {t("Step {0}, {1}: NaN or infinite values.", bad.step, ranksText(bad.ranks, all))}{" "}
        <a href={href("step", run, { step: bad.step, rank: bad.rank >= 0 ? bad.rank : undefined, call: found?.entry.entry })}>{t("Show the step")}</a>
      </p>
      {bad.unsaid !== undefined ? <><Failure error={bad.unsaid} /><p>{t("This command finds the call that made them:")}</p></>
        : found === undefined ? <p>{t("No call of that step made them: they came in with its arguments or its parameters.")}</p> : (
        <>
          <p class="call-name">{found.entry.entry}{found.module !== "" && <span class="note"> {found.module}</span>}</p>
          <p>
            {found.leaf && (bad.rank < 0 ? found.leaf.name : t("{0} of rank {1}", found.leaf.name, bad.rank))}
            {tensor && ` ${dtypeName(tensor)} ${shapeText(tensor)}`}
            {values && `: Max ${number(values.max ?? NaN)}, Min ${number(values.min ?? NaN)}, Norm ${number(values.norm ?? NaN)}`}
            {". "}
            {found.cleanInputs ? t("All its inputs are finite: this call made the first bad value.")
              : found.made ? t("The infinities in its inputs are intended, such as a mask: this call made the first bad value.") : t("One of its inputs is already bad.")}
          </p>
          {bad.others.length > 0 && <p class="note">{t("Equally early, on other ranks:")} {bad.others.slice(0, 8).map((one) => `rank ${one.rank} ${one.call}`).join(", ")}</p>}
          {found.entry.stack && found.entry.stack.length > 0 && (
            <details open>
              <summary>{t("Stack")}</summary>
              <Stack frames={found.entry.stack} />
            </details>
          )}
          <RecordInFull run={run} step={bad.step} rank={bad.rank} entry={found.entry} live={live} />
        </>
      )}
      <Command text={`rankprobe overflow_check -i ${quoted(`run:${run}@${bad.step}`)}`} />
    </Card>
  );
}

function NothingRecorded({ run, info, agents }: { run: string; info?: RunInfo; agents: AgentInfo[] }) {
  if (info === undefined && agents.length === 0) return <Empty><p>{t("The collector knows no run of this name.")}</p></Empty>;
  if (!agents.some((agent) => agent.connected)) {
    return (
      <Empty>
        <p>{t("The run has ended, and no step of it is in the archive.")} <a href={href("ledger", run)}>{t("Ledger")}</a></p>
        <p>{t("To record a run from its first step:")}</p>
        <Command text="rankprobe run --on -- python train.py" />
      </Empty>
    );
  }
  return (
    <Empty>
      <p>{t("Dumping may be off. Switch it on for the next three steps:")}</p>
      <Command text={`rankprobe enable --run ${quoted(run)} --for-steps 3`} />
      <p><a href={href("live", run)}>{t("or do it on the page of its ranks")}</a></p>
    </Empty>
  );
}

// Whether a finding of `diagnose` names the call that made a value that is not finite.
function isOfBadValues(by: string): boolean {
  return by === "overflow_check" || by === "scan: non-finite";
}

export function Run({ run }: { run: string }) {
  const info = useLoaded(`info ${run}`, async (signal) => {
    const [found, { agents }] = await Promise.all([
      findRun(run, signal),
      call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run }, signal),
    ]);
    return { info: found, agents };
  }, 2000);
  const recorded = int(info.value?.info?.records) > 0;
  const seen = useMemo(() => new Overview(run), [run]);
  const ranks = int(info.value?.info?.ranks);
  const overview = useLoaded<Grid | undefined>(`overview ${run} ${recorded}`, async (signal, partial) =>
    (recorded ? seen.load(ranks, signal, partial) : undefined), 10_000);
  const grid = overview.value;
  const badColumn = grid?.first.findIndex((_, i) => isBadColumn(grid, i));
  // A column covers more steps as the run grows, but its values stay.
  const bad = useLoaded(grid === undefined || badColumn === undefined ? "" : `bad ${run} ${badColumn < 0 ? "none" : grid.first[badColumn]}`, async (signal) =>
    grid === undefined ? undefined : { bad: await findFirstBad(run, grid, signal) });
  return (
    <>
      <Show of={info}>
        {({ info: of, agents }) => {
          const live = agents.filter((agent) => agent.connected);
          return (
            <div class="facts">
              <span class={`badge ${live.length > 0 ? "live" : ""}`}>{live.length > 0 ? t("live: {0}", live.length) : t("ended")}</span>
              {of && int(of.records) > 0 ? (
                <>
                  <span>{t("{0} ranks", count(of.ranks))}</span><span>{t("{0} steps", count(of.steps))}</span>
                  <span>{t("{0} records", count(of.records))}</span><span>{t("{0} payloads", bytes(of.storedPayloadBytes))}</span>
                  <span>{t("started {0}", time(of.createdUnixNs))}</span><span>{t("last written {0}", time(of.updatedUnixNs))}</span>
                </>
              ) : <span>{t("nothing is recorded yet")}</span>}
            </div>
          );
        }}
      </Show>
      {info.value && !recorded && <NothingRecorded run={run} {...info.value} />}
      {recorded && (
        <Show of={overview}>
          {(grid) => {
            if (grid === undefined) return null;
            const { head } = grid;
            const missing = int(head.incompleteRankSteps);
            const ranks = grid.rows.length;
            const statistics = grid.rows.some((row) => row.counts.some((one) => one > 0));
            const isLive = info.value?.agents.some((agent) => agent.connected) ?? false;
            return (
              <>
                <div class="cards">
                  <Show of={bad}>
                    {(found) => found?.bad ? <FirstBadCard run={run} bad={found.bad} all={ranks} live={isLive} /> : found && (
                      <Card title={t("First bad call")} kind={statistics ? "good" : "warn"}>
                        <p>{!statistics ? t("No statistics are recorded (task structure, or checksums only), so NaN cannot be found.") : t("No NaN and no infinity in {0} steps, except masks.", count(head.steps))}</p>
                      </Card>
                    )}
                  </Show>
                  <Diagnosis run={run} live={isLive} rankSteps={int(head.rankSteps)} ready={!bad.loading}
                    isShown={(finding) => bad.value?.bad !== undefined && int(finding.step) === bad.value.bad.step && isOfBadValues(finding.by)} />
                  <Card title={t("Data completeness")} kind={missing > 0 ? "warn" : "good"}>
                    <p>
                      {missing === 0 ? t("All {0} rank-steps are complete.", count(head.rankSteps))
                        : t("{0} of {1} rank-steps are incomplete.", count(head.incompleteRankSteps), count(head.rankSteps))}
                      {int(head.deletedRankSteps) > 0 && ` ${t("{0} were deleted.", count(head.deletedRankSteps))}`}{" "}
                      <a href={href("ledger", run, { state: missing > 0 ? "missing" : undefined })}>{t("Ledger")}</a>
                    </p>
                  </Card>
                </div>
                {overview.loading && grid.first.length > 0 && <p class="note" aria-busy="true">{t("Read up to step {0} …", grid.last[grid.last.length - 1])}</p>}
                <h2>{t("Largest value of each rank and step")}</h2>
                <Heatmap grid={grid} label={t("Largest value of each rank and step")} maxHeightPx={360} whole
                  onOpen={(row, column) => go(href("step", run, { step: grid.first[column], rank: row.name.replace(/^rank/, "") }))} />
                <p class="next">
                  {t("What next:")} <a href={href("heat", run, { rows: "module" })}>{t("which module moved first")}</a>{" · "}
                  <a href={href("trend", run)}>{t("one value over the steps")}</a>{" · "}<a href={href("live", run)}>{t("the ranks now")}</a>
                </p>
              </>
            );
          }}
        </Show>
      )}
    </>
  );
}
