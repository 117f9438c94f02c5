// SPDX-License-Identifier: Apache-2.0
// Comparison of two runs, steps or ranks value by value, like `rankprobe compare`.
import { useState } from "preact/hooks";
import { call } from "../api";
import { count, int } from "../format";
import { saveJobFile, type JobRows } from "../jobs";
import type { Int64 } from "../messages";
import { Card, Command, Empty, Failure, Show, Stack, TextField } from "../parts/basics";
import { asApiError, useLoaded } from "../load";
import { JobState } from "../parts/job_state";
import { RemoteTable, type RemoteRow } from "../parts/remote_table";
import { sideOf, TwoDumps, useComparison } from "../parts/two_dumps";
import { href, route, setQuery } from "../route";
import { t } from "../text";

interface CompareTable {
  step: Int64;
  rank: Int64;
  file: string;
  rows: Int64;
  error: Int64;
  warning: Int64;
  pass: Int64;
  unmatched: Int64;
}

export interface CompareReport {
  results: CompareTable[];
  unpaired: string[];
}

const MISSING = "N/A";
const NO_PARTNER = "no partner";
const VERDICTS = ["error", "warning", "pass", NO_PARTNER];
const ALL_RESULTS = "all";
const STACK = "NPU_Stack_Info";

function fileOf(table: CompareTable): string {
  return table.file.split("/").pop()!;
}

function cell(row: RemoteRow, columns: string[], name: string): string {
  const place = columns.indexOf(name);
  return place < 0 ? "" : row.cells[place];
}

// Turns "Torch.add.0.forward.output.0" into "Torch.add.0.forward".
function entryOf(name: string): string {
  const match = /^(.*?\.(?:forward|backward)(?:\.\d+)?)(?:\.|$)/.exec(name);
  return match === null ? name.replace(/\.(input|output|parameters|parameters_grad|value)\b.*$/, "") : match[1];
}

function verdictClass(row: RemoteRow, columns: string[]): string {
  if (cell(row, columns, "Bench Name") === MISSING) return "gone";
  const result = cell(row, columns, "Result").toLowerCase();
  return result === "error" ? "bad" : result === "warning" ? "open" : "";
}

// The most informative columns of the table, at most ten.
const USUAL_COLUMNS = ["NPU Name", "Result", "NPU Tensor Shape", "Cosine", "MaxAbsErr", "MaxRelativeErr", "NPU MD5", "BENCH MD5", "NPU max", "Bench max", "NPU mean",
  "Bench mean", "NPU l2norm", "Bench l2norm", "NormRelativeErr"];
const MOST_COLUMNS = 10;

// Stacks are long; they are shown below, for the selected row.
function allColumns(columns: string[]): string[] {
  const first = ["NPU Name", "Bench Name", "Result"];
  return [...first.filter((name) => columns.includes(name)), ...columns.filter((name) => !first.includes(name) && name !== STACK)];
}

function usualColumns(columns: string[]): string[] {
  return USUAL_COLUMNS.filter((name) => columns.includes(name)).slice(0, MOST_COLUMNS);
}

// msprobe's tables name the sides after devices, whatever the programs ran on.
function titleOf(column: string): string {
  const side = /^(NPU|BENCH)[ _](.*)$/i.exec(column);
  return side === null ? column : `${side[1] === "NPU" ? t("Target") : t("Reference")}: ${side[2].replace(/_/g, " ")}`;
}

// Only the first row of a call has the stack.
async function stackOf(id: string, file: string, row: RemoteRow, columns: string[], signal: AbortSignal): Promise<string> {
  const place = columns.indexOf(STACK);
  if (place < 0) return "";
  const entry = entryOf(cell(row, columns, "NPU Name"));
  const { rows } = await call<JobRows>("JobRows", { id, file, find: entry, count: 100 }, signal);
  const first = rows.find((one) => one.cells[0].startsWith(`${entry}.`) && one.cells[place] !== MISSING && one.cells[place] !== "None");
  return first === undefined ? "" : first.cells[place];
}

type Side = ReturnType<typeof sideOf>;

function RowCard({ run, row, columns, stack, table, target: here, beside }: { run: string; row: RemoteRow; columns: string[]; stack: string; table: CompareTable; target: Side; beside: Side }) {
  const [step, rank, other] = [here.step || String(table.step), here.rank || String(table.rank), beside.run];
  const sides = columns.filter((name) => name.startsWith("NPU ")).map((name) => name.slice(4));
  const twin = (name: string) => columns.find((one) => one === `Bench ${name}` || one === `BENCH ${name}`);
  const rest = columns.filter((name) => !name.startsWith("NPU ") && !/^bench /i.test(name) && name !== STACK && name !== "Result" && name !== "Err_message");
  const alone = cell(row, columns, "Bench Name") === MISSING;
  const target = entryOf(cell(row, columns, "NPU Name"));
  const reference = entryOf(cell(row, columns, "Bench Name"));
  const message = cell(row, columns, "Err_message");
  return (
    <Card title={cell(row, columns, "NPU Name")} kind={verdictClass(row, columns) === "bad" ? "bad" : verdictClass(row, columns) === "" ? "good" : "warn"}>
      <p><strong>{cell(row, columns, "Result")}</strong> {message}</p>
      {alone && (
        <div class="note">
          <p>{t("No partner: the other side has no row of this name. Possible reasons:")}</p>
          <ul>
            <li>{t("It was not recorded there: another list, scope or level.")} {other !== "" && <a href={href("ledger", other)}>{t("Ledger")}</a>}</li>
            <li>{t("Its calls have other numbers.")} <button onClick={() => setQuery({ fuzzy_match: "true", job: undefined })}>{t("Match calls in order, whatever their numbers")}</button></li>
            <li>{t("Its layers have other names.")} <button onClick={() => setQuery({ layer_mapping: "true", job: undefined })}>{t("Match layers of other names")}</button></li>
          </ul>
        </div>
      )}
      <table class="twin">
        <thead><tr><td /><th>{t("Target")}</th><th>{t("Reference")}</th></tr></thead>
        <tbody>
          {sides.map((name) => {
            const [a, b] = [cell(row, columns, `NPU ${name}`), twin(name) === undefined ? "" : cell(row, columns, twin(name)!)];
            return <tr key={name} class={a !== b ? "differs" : ""}><th scope="row">{name}</th><td>{a}</td><td>{b}</td></tr>;
          })}
        </tbody>
      </table>
      <table class="twin"><tbody>{rest.map((name) => <tr key={name}><th scope="row">{name}</th><td>{cell(row, columns, name)}</td></tr>)}</tbody></table>
      <p>
        {run !== "" && <a href={href("step", run, { step, rank, call: target })}>{t("The call in this run")}</a>}
        {!alone && other !== "" && <>{" · "}<a href={href("step", other, { step: beside.step || step, rank: beside.rank || rank, call: reference })}>{t("The call in {0}", other)}</a></>}
      </p>
      {stack !== "" && <><h3>{t("Stack")}</h3><Stack frames={stack.split("\n").filter((line) => line.trim() !== "")} /></>}
      <button onClick={() => setQuery({ at: undefined })}>{t("Close")}</button>
    </Card>
  );
}

export function CompareResult({ run, id, report, files, target, beside }: { run: string; id: string; report: CompareReport; files: string[]; target: Side; beside: Side }) {
  const { file = "", find = "", results, sort = "", down = "", at = "", columns = "" } = route.value.query;
  const [counts, setCounts] = useState<Record<string, number>>({});
  const [failure, setFailure] = useState<unknown>();
  const table = report.results.find((one) => fileOf(one) === file) ?? report.results[0];
  const chosen = useLoaded(at === "" || table === undefined ? "" : `row ${id} ${fileOf(table)} ${at}`, async (signal) => {
    if (at === "" || table === undefined) return undefined;
    const { rows, columns } = await call<JobRows>("JobRows", { id, file: fileOf(table), offset: at, count: 1 }, signal);
    if (rows.length === 0) return undefined;
    const row = { row: int(rows[0].row), cells: rows[0].cells };
    return { row, columns, stack: await stackOf(id, fileOf(table), row, columns, signal) };
  });
  // Rows that differ, until the user selects other ones.
  const differing = table === undefined ? [] : [...(Number(table.error) > 0 ? ["error"] : []), ...(Number(table.warning) > 0 ? ["warning"] : [])];
  const wanted = results === undefined ? differing : results === ALL_RESULTS ? [] : results.split(",");
  const toggle = (verdict: string) =>
    setQuery({ results: (wanted.includes(verdict) ? wanted.filter((one) => one !== verdict) : [...wanted, verdict]).join(",") || ALL_RESULTS }, true);
  if (table === undefined) return <Empty><p>{t("Nothing was compared: the two sides have no step and rank in common.")}</p></Empty>;
  const named = [...VERDICTS.filter((verdict) => counts[verdict] !== undefined), ...Object.keys(counts).filter((one) => !VERDICTS.includes(one))];
  return (
    <>
      {report.results.length > 1 && (
        <div class="form">
          <label class="field">
            <span>{t("Step and rank")}</span>
            <select value={fileOf(table)} onChange={(event) => setQuery({ file: event.currentTarget.value, at: undefined })}>
              {report.results.map((one) => (
                <option key={one.file} value={fileOf(one)}>
                  {t("step {0} rank {1}: {2} errors, {3} warnings", target.step || String(one.step), String(one.rank), count(one.error), count(one.warning))}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      {report.unpaired.length > 0 && (
        <details class="note"><summary>{t("{0} places without a partner", report.unpaired.length)}</summary><ul>{report.unpaired.slice(0, 100).map((one) => <li key={one}>{one}</li>)}</ul></details>
      )}
      <div class="facts">
        <span class={`badge ${Number(table.error) > 0 ? "bad" : ""}`}>{t("{0} errors", count(table.error))}</span>
        <span class="badge">{t("{0} warnings", count(table.warning))}</span><span class="badge live">{t("{0} pass", count(table.pass))}</span>
        <span class="badge">{t("{0} without a partner", count(table.unmatched))}</span>
      </div>
      <div class="form">
        <TextField label={t("Names")} value={find} wide onChange={(text) => setQuery({ find: text }, true)} />
        <div class="field" role="group" aria-label={t("Result")}>
          <span>{t("Result")}</span>
          <div class="chips">
            {named.map((verdict) => (
              <button key={verdict} type="button" aria-pressed={wanted.includes(verdict)} class={`chip ${verdict}`} onClick={() => toggle(verdict)}>{verdict === NO_PARTNER ? t("no partner") : verdict} {count(counts[verdict])}</button>
            ))}
            {wanted.length > 0 && <button type="button" class="chip" onClick={() => setQuery({ results: ALL_RESULTS }, true)}>{t("all rows")}</button>}
          </div>
        </div>
        <label class="check"><input type="checkbox" checked={columns !== ""} onChange={(event) => setQuery({ columns: event.currentTarget.checked ? "all" : undefined }, true)} /> {t("All columns")}</label>
        {files.filter((name) => name === fileOf(table) || !name.endsWith(".csv")).map((name) => <button key={name} type="button" onClick={() => void saveJobFile(id, name).catch(setFailure)}>{files.length > 1 ? t("Save {0}", name) : t("Save as csv")}</button>)}
      </div>
      {failure !== undefined && <Failure error={asApiError(failure)} />}
      {at !== "" && <Show of={chosen}>{(one) => one && <RowCard run={run} row={one.row} columns={one.columns} stack={one.stack} table={table} target={target} beside={beside} />}</Show>}
      {fileOf(table).endsWith(".csv") ? (
        <RemoteTable id={id} file={fileOf(table)} find={find} results={wanted} sort={sort} down={down !== ""} label={t("Values of both sides")}
          onSort={(column, to) => setQuery({ sort: column, down: to ? "1" : undefined }, true)} onCounts={setCounts} rowClass={verdictClass} show={columns === "" ? usualColumns : allColumns} titleOf={titleOf}
          onOpen={(row) => setQuery({ at: String(row.row) })} />
      ) : <p class="note">{t("This result is a workbook: save it to open it.")}</p>}
    </>
  );
}

export function Compare({ run }: { run: string }) {
  const { id, job, error } = useComparison();
  const report = job?.state === "JOB_STATE_DONE" && job.spec.command === "compare" ? JSON.parse(job.reportJson) as CompareReport : undefined;
  return (
    <>
      <h2>{t("Value by value against another run, step or rank")}</h2>
      <TwoDumps run={run} action={t("Compare")} spec={(pair, options, files) => ({
        command: "compare", options: { target_path: pair.target, golden_path: pair.reference, ...options }, files })} />
      {id === "" ? <Empty><p>{t("Choose the other side. Without a step all steps that both have are compared.")}</p></Empty> : (
        <>
          <JobState job={job} error={error} gone={() => setQuery({ job: undefined })} />
          {report && <CompareResult run={run} id={id} report={report} files={job!.files.map((one) => one.name)} target={sideOf(job!.spec.options.target_path)} beside={sideOf(job!.spec.options.golden_path)} />}
          {job && <Command text={job.commandLine} />}
        </>
      )}
    </>
  );
}
