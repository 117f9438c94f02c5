// SPDX-License-Identifier: Apache-2.0
// The first calls whose outputs differ while their inputs match, over all
// ranks, as `rankprobe first-divergence` finds them, with both sides side by
// side.
import { useState } from "preact/hooks";
import { call, stream, whyNoJobs, whyNoSwitch } from "../api";
import { dtypeName, isBad, leavesOf, numbersOf, shapeText, type Leaf } from "../calls";
import { count, double, number, quoted } from "../format";
import { startJob } from "../jobs";
import { asApiError, useLoaded } from "../load";
import type { AgentInfo, CallEntry, Double, Int64 } from "../messages";
import { Card, Command, Empty, Failure, NoSwitch, Show, Stack, TextField } from "../parts/basics";
import { shown } from "../parts/call_card";
import { JobState } from "../parts/job_state";
import { optionsOf, pairOf, sideOf, TwoDumps, useComparison } from "../parts/two_dumps";
import { proposeReference } from "../reference";
import { href, route, setQuery } from "../route";
import { t } from "../text";

interface Origin {
  step: Int64;
  rank: Int64;
  call: string;
  from_outside: boolean;
  is_argument: boolean;
  made_by: string;
  reference_call: string;
  row: string;
  target: string;
  reference: string;
  difference: Double | null;
  tolerance: Double | null;
  inputs_matched: Int64;
  inputs_unknown: Int64;
  stack: string[];
}

interface DivergenceReport {
  origins: Origin[];
  carried: { step: Int64; rank: Int64; call: string; from_rank: Int64 }[];
  calls_compared: Int64;
  unseen: { only_in_target: Int64; only_in_reference: Int64; rows_without_partner: Int64; rows_without_values: Int64; lost: Int64; examples: string[] } | null;
  captured?: { step: Int64; target: string; report?: DivergenceReport | null } | null;
}

const MOST_ORIGINS = 16;

async function callOf(run: string, step: string, rank: string, entry: string, signal: AbortSignal): Promise<CallEntry | undefined> {
  for await (const one of stream<CallEntry>("ArchiveService/ListCalls", { run, step, rank, contains: entry, context: true }, signal))
    if (one.entry === entry) return one;
  return undefined;
}

// Shows what one side recorded of a value; "–" if it has none.
function LeafCells({ leaf }: { leaf?: Leaf }) {
  const tensor = leaf?.tensor;
  if (tensor === undefined) return <td colSpan={4}>{leaf?.text ?? "–"}</td>;
  const { max, min, norm } = numbersOf(tensor);
  return (
    <>
      <td>{`${dtypeName(tensor)} ${shapeText(tensor)}`}</td>
      <td class="numeric">{shown(max)}</td><td class="numeric">{shown(min)}</td><td class="numeric">{shown(norm)}</td>
    </>
  );
}

function same(a: Leaf | undefined, b: Leaf | undefined): boolean {
  if (a?.tensor === undefined || b?.tensor === undefined) return a?.text === b?.text && (a?.tensor === undefined) === (b?.tensor === undefined);
  const [x, y] = [numbersOf(a.tensor), numbersOf(b.tensor)];
  return shapeText(a.tensor) === shapeText(b.tensor) && Object.is(x.max, y.max) && Object.is(x.min, y.min) && Object.is(x.norm, y.norm);
}

// Shows inputs and outputs of the call on both sides, value by value. `title` distinguishes its region from those of
// other origins.
function BothSides({ title, target, reference, marked }: { title: string; target?: CallEntry; reference?: CallEntry; marked: string }) {
  const [a, b] = [target, reference].map((entry) => (entry === undefined ? [] : leavesOf(entry)));
  const names = [...new Set([...a, ...b].map((leaf) => leaf.name))];
  const of = (leaves: Leaf[], name: string) => leaves.find((leaf) => leaf.name === name);
  return (
    <div class="both-frame" tabIndex={0} role="region" aria-label={`${t("Both sides")}: ${title}`}>
      <table class="twin both">
        <thead>
          <tr><th rowSpan={2}>{t("Value")}</th><th colSpan={4}>{t("This run")}</th><th colSpan={4}>{t("Against")}</th></tr>
          <tr>{[0, 1].map((side) => [<th key={`t${side}`}>{t("Type")}</th>, ...["Max", "Min", "Norm"].map((name) => <th key={`${name}${side}`}>{name}</th>)])}</tr>
        </thead>
        <tbody>
          {names.map((name) => {
            const [x, y] = [of(a, name), of(b, name)];
            const bad = isBad(x?.tensor) || isBad(y?.tensor);
            return (
              <tr key={name} class={`${same(x, y) ? "" : "differs"} ${bad ? "bad" : ""} ${marked.endsWith(`.${name}`) ? "marked" : ""}`}>
                <th scope="row">{name}</th><LeafCells leaf={x} /><LeafCells leaf={y} />
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

type Side = ReturnType<typeof sideOf>;

function OriginCard({ run, other, target, beside, origin }: { run: string; other: string; target: Side; beside: Side; origin: Origin }) {
  const [step, rank] = [target.step || String(origin.step), target.rank || String(origin.rank)];
  const there = beside.step || step;
  const rankThere = beside.rank || rank;
  const reference = origin.reference_call || origin.call;
  const sides = useLoaded(`origin ${run} ${other} ${step} ${there} ${rank} ${rankThere} ${origin.call}`, async (signal) => {
    // If one side cannot be read, the other is still shown.
    const [here, over] = await Promise.allSettled([callOf(run, step, rank, origin.call, signal), callOf(other, there, rankThere, reference, signal)]);
    return { target: here.status === "fulfilled" ? here.value : undefined, reference: over.status === "fulfilled" ? over.value : undefined };
  });
  const [difference, tolerance] = [origin.difference ?? NaN, origin.tolerance ?? 0].map(double);
  const title = `${t("step")} ${step} ${t("rank {0}", rank)}`;
  return (
    <Card title={title} kind="bad">
      <p class="call-name">{origin.call}</p>
      <p>
        {Number.isFinite(difference) ? t("{0}: relative difference {1}", origin.row, number(difference)) : t("{0} differs", origin.row)}
        {tolerance > 0 && ` (${t("{0} times the tolerance", number(Number((difference / tolerance).toPrecision(3))))})`}{". "}
        {origin.is_argument ? t("It is an argument that the program's code gives to this call.")
          : origin.made_by !== "" ? t("In this run it is what {0} returned, which is the same in the other run: between the two calls the programs differ.", origin.made_by)
          : origin.from_outside ? t("No recorded call made this input differ: it came in from outside (a weight, a batch).")
          : t("Its inputs match ({0} values), its outputs do not: the difference is its own.", count(origin.inputs_matched))}
        {Number(origin.inputs_unknown) > 0 && ` ${t("{0} inputs could not be compared.", count(origin.inputs_unknown))}`}
      </p>
      <Show of={sides}>{(both) => <BothSides title={`${title}, ${origin.call}`} target={both.target} reference={both.reference} marked={origin.row} />}</Show>
      <p>
        <a href={href("step", run, { step, rank, call: origin.call })}>{t("The call in this run")}</a>{" · "}
        <a href={href("step", other, { step: there, rank: rankThere, call: reference })}>{t("The call in {0}", other)}</a>{" · "}
        <a href={href("graph", run, { step, rank, node: origin.call })}>{t("Graph")}</a>{" · "}
        <a href={href("trend", run, { name: origin.row, other })}>{t("Trend of both")}</a>
      </p>
      {origin.stack.length > 0 && <details open><summary>{t("Stack")}</summary><Stack frames={origin.stack} /></details>}
    </Card>
  );
}

function Findings({ run, other, target, beside, report }: { run: string; other: string; target: Side; beside: Side; report: DivergenceReport }) {
  const { unseen } = report;
  const lost = unseen === null ? 0 : [unseen.only_in_target, unseen.only_in_reference, unseen.rows_without_partner, unseen.rows_without_values, unseen.lost].reduce((sum: number, one) => sum + Number(one), 0);
  return (
    <>
      {report.origins.length === 0 && report.carried.length === 0 && (
        <Card title={t("No difference")} kind={lost > 0 || Number(report.calls_compared) === 0 ? "warn" : "good"}>
          <p>{t("No difference in the {0} calls that both sides recorded.", count(report.calls_compared))}</p>
        </Card>
      )}
      {report.origins.slice(0, MOST_ORIGINS).map((origin) => <OriginCard key={`${origin.step} ${origin.rank} ${origin.call}`} run={run} other={other} target={target} beside={beside} origin={origin} />)}
      {report.origins.length > MOST_ORIGINS && <p class="note">{t("The first {0} of {1}.", MOST_ORIGINS, report.origins.length)}</p>}
      {report.carried.length > 0 && (
        <Card title={t("Brought in by communication")} kind="warn">
          <ul>{report.carried.slice(0, 100).map((one) => <li key={`${one.step} ${one.rank}`}>{t("step {0} rank {1}: {2} brings in what differs on rank {3}", String(one.step), String(one.rank), one.call, String(one.from_rank))}</li>)}</ul>
        </Card>
      )}
      {unseen !== null && lost > 0 && (
        <Card title={t("Not compared")} kind="warn">
          <p>{t("{0} calls of this run only, {1} of the other only, {2} values without a partner, {3} without values, {4} lost", count(unseen.only_in_target), count(unseen.only_in_reference), count(unseen.rows_without_partner), count(unseen.rows_without_values), count(unseen.lost))}</p>
          <ul>{unseen.examples.map((one) => <li key={one}>{one}</li>)}</ul>
        </Card>
      )}
    </>
  );
}

// Records the calls that were found again in full, on one step of both runs if both are in progress.
function Again({ run, other, alive }: { run: string; other: string; alive: boolean }) {
  const [error, setError] = useState<unknown>();
  const { query } = route.value;
  const record = async () => {
    setError(undefined);
    try {
      const pair = pairOf(run);
      const job = await startJob({ command: "first-divergence", options: { target: pair.target, reference: pair.reference, ...optionsOf(query, ["fuzzy_match", "tolerance"]), live: "true" } });
      setQuery({ job: job.id });
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <>
      <button class="primary" disabled={!alive || (whyNoSwitch() || whyNoJobs()) !== ""} onClick={() => void record()}>{t("Record these calls in full at the next step, on both sides, and compare again")}</button>
      {!alive && <span class="note"> {t("No rank is connected.")}</span>}
      <NoSwitch />
      {error !== undefined && <Failure error={asApiError(error)} />}
      <p class="note">{t("Next steps:")}</p>
      <Command text={`rankprobe compare -tp run:${quoted(run)} -gp run:${quoted(other)}`} />
    </>
  );
}

export function DivergencePage({ run }: { run: string }) {
  const { id, job, error } = useComparison();
  const { query } = route.value;
  const other = query.other ?? "";
  const report = job?.state === "JOB_STATE_DONE" && job.spec.command === "first-divergence" ? JSON.parse(job.reportJson) as DivergenceReport : undefined;
  const agents = useLoaded(`agents ${run}`, (signal) => call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run }, signal), 5000);
  const alive = agents.value?.agents.some((agent) => agent.connected) ?? false;
  const proposed = useLoaded(id !== "" || other !== "" ? "" : `proposed for ${run}`, (signal) => proposeReference(run, signal));
  return (
    <>
      <h2>{t("The first calls that differ from another run")}</h2>
      <TwoDumps run={run} action={t("Find the first divergence")} spec={(pair, options, files) => ({
        command: "first-divergence", options: { target: pair.target, reference: pair.reference, ...options, ...optionsOf(query, ["tolerance"]) }, files })}
        more={<TextField label={t("Tolerance (auto, or a relative difference)")} value={query.tolerance ?? ""} placeholder="auto" onChange={(tolerance) => setQuery({ tolerance })} />} />
      {id === "" ? (
        <Empty>
          {other === "" && proposed.value !== undefined ? (
            <p>
              {t("The newest other run with as many ranks and neither NaN nor infinity:")}{" "}
              <button type="button" onClick={() => setQuery({ other: proposed.value })}>{t("Compare with {0}", proposed.value)}</button>
            </p>
          ) : <p>{t("Choose the other side: a run that is right, of the same program.")}</p>}
        </Empty>
      ) : (
        <>
          <JobState job={job} error={error} gone={() => setQuery({ job: undefined })} />
          {report && <Findings run={run} other={sideOf(job!.spec.options.reference).run || other} target={sideOf(job!.spec.options.target)} beside={sideOf(job!.spec.options.reference)} report={report} />}
          {report?.captured && (
            <>
              <h2>{t("Recorded again in full: {0}", report.captured.target)}</h2>
              {report.captured.report ? <Findings run={run} other={other} target={sideOf(report.captured.target)} beside={sideOf("")} report={report.captured.report} />
                : <p class="note">{t("The other side is not a run in progress, so there is nothing to compare with.")}</p>}
            </>
          )}
          {report && report.origins.length > 0 && <Again run={run} other={other} alive={alive} />}
          {job && <Command text={job.commandLine} />}
        </>
      )}
    </>
  );
}
