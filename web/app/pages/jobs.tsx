// SPDX-License-Identifier: Apache-2.0
// Current and finished jobs of this server: compare, convert, export.
import { useState } from "preact/hooks";
import { call, server, whyNoJobs } from "../api";
import { bytes, duration, int, quoted, time } from "../format";
import { isOver, saveJobFile, startJob, type JobInfo } from "../jobs";
import { asApiError, useLoaded } from "../load";
import { Command, Empty, Failure, Field, Select, Show, TextField } from "../parts/basics";
import { JobProgress } from "../parts/job_state";
import type { RunInfo } from "../messages";
import { href, route, setQuery } from "../route";
import { t } from "../text";

// Commands that can be started here, with their options besides the run. Names are those of the command line.
interface Asked {
  command: string;
  title: () => string;
  // "dump" fields accept run:NAME@STEP or root:PATH. `rare` fields are among further options.
  fields: JobField[];
}

interface JobField {
  name: string;
  label: () => string;
  kind?: "flag" | "file" | "run" | "dump" | string[];
  required?: boolean;
  rare?: boolean;
}

const COMMANDS: Asked[] = [
  { command: "export", title: () => t("Export a run"), fields: [
    { name: "run", label: () => t("Run"), kind: "run", required: true },
    { name: "format", label: () => t("Format"), kind: ["msprobe", "parquet", "tensorboard", "trend"] },
    { name: "steps", label: () => t("Steps, like 0,4-6 (all if empty)") },
    { name: "ranks", label: () => t("Ranks (all if empty)") },
    { name: "match", label: () => t("Names (part, or * and ?)") },
    { name: "of", label: () => t("Values"), kind: ["", "outputs", "inputs", "all"], rare: true },
    { name: "request", label: () => t("Request (of a server)"), rare: true },
    { name: "link", label: () => t("Equal tensors as links"), kind: "flag", rare: true },
  ] },
  { command: "graph_visualize", title: () => t("Make a graph database (.vis.db)"), fields: [
    { name: "target_path", label: () => t("Dump (run:NAME@STEP)"), kind: "dump", required: true },
    { name: "golden_path", label: () => t("Against (run:NAME@STEP, or empty)"), kind: "dump" },
    { name: "overflow_check", label: () => t("Mark NaN, infinities and jumps"), kind: "flag" },
    { name: "fuzzy_match", label: () => t("Match calls in order, whatever their numbers"), kind: "flag", rare: true },
    { name: "layer_mapping", label: () => t("Layers of other names (yaml)"), kind: "file", rare: true },
    { name: "layout", label: () => t("Layout"), kind: ["", "auto"], rare: true },
    { name: "split_batch", label: () => t("Ranks hold parts of one batch"), kind: "flag", rare: true },
    { name: "rank_size", label: () => t("Ranks to merge"), rare: true },
    { name: "tp", label: () => t("Tensor parallel size (tp)"), rare: true },
    { name: "pp", label: () => t("Pipeline parallel size (pp)"), rare: true },
    { name: "vpp", label: () => t("Virtual pipeline stages (vpp)"), rare: true },
    { name: "order", label: () => t("Order of dimensions"), rare: true },
    { name: "file_type", label: () => t("File"), kind: ["", "db", "json"], rare: true },
    { name: "is_print_compare_log", label: () => t("A line for each tensor"), kind: "flag", rare: true },
  ] },
  { command: "compare", title: () => t("Compare, as files"), fields: [
    { name: "target_path", label: () => t("Dump (run:NAME@STEP)"), kind: "dump", required: true },
    { name: "golden_path", label: () => t("Against (run:NAME@STEP)"), kind: "dump", required: true },
    { name: "xlsx", label: () => t("A workbook in place of csv"), kind: "flag" },
    { name: "diff_analyze", label: () => t("Also the first calls that differ (json)"), kind: "flag", rare: true },
    { name: "fuzzy_match", label: () => t("Match calls in order, whatever their numbers"), kind: "flag", rare: true },
    { name: "cell_mapping", label: () => t("Modules: target: reference (yaml)"), kind: "file", rare: true },
    { name: "data_mapping", label: () => t("Rows: target: reference (yaml)"), kind: "file", rare: true },
    { name: "api_mapping", label: () => t("APIs: target: reference (yaml)"), kind: "file", rare: true },
    { name: "layer_mapping", label: () => t("Layers of other names (yaml)"), kind: "file", rare: true },
    { name: "layout", label: () => t("Layout"), kind: ["", "auto"], rare: true },
    { name: "split_batch", label: () => t("Ranks hold parts of one batch"), kind: "flag", rare: true },
    { name: "rules", label: () => t("Rules"), kind: ["", "vllm-llama", "vllm-qwen2", "vllm-mixtral"], rare: true },
    { name: "request", label: () => t("Request (of a server)"), rare: true },
    { name: "reference_request", label: () => t("Request of the other side"), rare: true },
  ] },
  { command: "scan", title: () => t("Scan a run"), fields: [
    { name: "run", label: () => t("Run"), kind: "run", required: true },
    { name: "match", label: () => t("Names (part, or * and ?)") },
    { name: "from-step", label: () => t("From step") },
    { name: "to-step", label: () => t("To step") },
    { name: "ranks", label: () => t("Ranks (all if empty)") },
    { name: "window", label: () => t("Window, steps"), rare: true },
    { name: "factor", label: () => t("Factor of a move"), rare: true },
    { name: "limit", label: () => t("Findings at most"), rare: true },
  ] },
  { command: "replicas", title: () => t("Compare replicas"), fields: [
    { name: "dump", label: () => t("Dump (run:NAME@STEP)"), kind: "dump", required: true },
    { name: "groups", label: () => t("Groups, like 0,2;1,3") },
    { name: "gradients", label: () => t("Gradients, too"), kind: "flag" },
  ] },
  { command: "config_check", title: () => t("Are two runs of the same experiment?"), fields: [
    { name: "target", label: () => t("Dump (run:NAME)"), kind: "dump", required: true },
    { name: "reference", label: () => t("Against (run:NAME)"), kind: "dump", required: true },
    { name: "all", label: () => t("Every difference"), kind: "flag", rare: true },
  ] },
  { command: "overflow_check", title: () => t("Where the first NaN came from"), fields: [
    { name: "input_path", label: () => t("Dump (run:NAME@STEP)"), kind: "dump", required: true },
  ] },
];

// Commands that call a collector themselves. They are not offered inside a collector, where a job can read only files.
const ASKING = ["export", "scan"];

function NewJob({ done }: { done: () => void }) {
  const possible = server.value?.builds === false ? COMMANDS.filter((one) => !ASKING.includes(one.command)) : COMMANDS;
  const { command = "", run = "" } = route.value.query;
  const asked = possible.find((one) => one.command === command) ?? possible[0];
  const preset: Record<string, string> = run === "" ? {} : { run, target_path: `run:${run}`, target: `run:${run}`, dump: `run:${run}`, input_path: `run:${run}` };
  const [values, setValues] = useState<Record<string, string>>({});
  const [error, setError] = useState<unknown>();
  const runs = useLoaded("runs of jobs", (signal) => call<{ runs: RunInfo[] }>("ArchiveService/ListRuns", {}, signal));
  const value = (name: string) => values[name] ?? preset[name] ?? "";
  const set = (name: string, to: string) => setValues((before) => ({ ...before, [name]: to }));
  const missing = asked.fields.some((field) => field.required && value(field.name) === "");
  const begin = async () => {
    setError(undefined);
    const options: Record<string, string> = {};
    const files: Record<string, string> = {};
    for (const field of asked.fields) {
      const given = value(field.name);
      if (given === "") continue;
      if (field.kind === "file") files[field.name] = given;
      else options[field.name] = given;
    }
    try {
      await startJob({ command: asked.command, options, files });
      done();
    } catch (failure) {
      setError(failure);
    }
  };
  const entry = (field: JobField) => {
    if (field.kind === "run") return <Select key={field.name} label={field.label()} value={value(field.name)} of={["", ...(runs.value?.runs ?? []).map((one) => one.run)].map((name) => [name, name || "–"])} onChange={(to) => set(field.name, to)} />;
    if (Array.isArray(field.kind)) return <Select key={field.name} label={field.label()} value={value(field.name) || field.kind[0]} of={field.kind.map((name) => [name, name || "–"])} onChange={(to) => set(field.name, to)} />;
    if (field.kind === "flag") return <label key={field.name} class="check"><input type="checkbox" checked={value(field.name) === "true"} onChange={(event) => set(field.name, event.currentTarget.checked ? "true" : "")} /> {field.label()}</label>;
    if (field.kind === "file") return <Field key={field.name} label={field.label()}><textarea rows={2} value={value(field.name)} spellcheck={false} onInput={(event) => set(field.name, event.currentTarget.value)} /></Field>;
    return <TextField key={field.name} label={field.label()} value={value(field.name)} options={field.kind === "dump" ? (runs.value?.runs ?? []).map((one) => `run:${one.run}`) : undefined} onChange={(to) => set(field.name, to)} />;
  
  };
  return (
    <form class="card" onSubmit={(event) => event.preventDefault()}>
      <div class="form">
        <Select label={t("Job")} value={asked.command} of={possible.map((one) => [one.command, one.title()])} onChange={(to) => { setValues({}); setQuery({ command: to }); }} />
        {asked.fields.filter((field) => field.rare !== true).map(entry)}
        <button class="primary" type="button" onClick={() => void begin()} disabled={missing}>{t("Start")}</button>
      </div>
      {asked.fields.some((field) => field.rare) && (
        <details>
          <summary>{t("More options")}</summary>
          <div class="form">{asked.fields.filter((field) => field.rare).map(entry)}</div>
        </details>
      )}
      <p class="note">{t("The results stay on this server; save them from here.")}</p>
      {possible.length < COMMANDS.length && (
        <>
          <p class="note">{t("Run exports and scans in a terminal, or use `rankprobe view`:")}</p>
          <Command text={`rankprobe export --run ${run === "" ? "RUN" : quoted(run)} --tar dump.tar --collector ${server.value!.collector}`} />
        </>
      )}
      {error !== undefined && <Failure error={asApiError(error)} />}
    </form>
  );
}

// Returns the page that shows the result of a job; undefined if the result is shown here.
function resultPage(job: JobInfo): string | undefined {
  const { command, options } = job.spec;
  const side = (text: string) => /^run:(.*?)(?:@(\d+))?(?:\/rank(\d+))?$/.exec(text);
  const [target, reference] = command === "compare" ? [options.target_path, options.golden_path] : [options.target, options.reference];
  if ((command !== "compare" && command !== "first-divergence") || job.state !== "JOB_STATE_DONE") return undefined;
  const [a, b] = [side(target), side(reference)];
  const plain = (text: string) => text.replace(/^root:$/, ".").replace(/^root:/, "");
  if (command === "compare" && (a === null || b === null)) return href("compare", "", { target: plain(target), reference: plain(reference), job: job.id });
  if (a === null || b === null) return undefined;
  return href(command === "compare" ? "compare" : "divergence", a[1], { step: a[2], rank: a[3], other: b[1], ostep: b[2], orank: b[3], job: job.id });
}

function JobCard({ job, changed }: { job: JobInfo; changed: () => void }) {
  const [error, setError] = useState<unknown>();
  const [answer, setAnswer] = useState<string | undefined>();
  const took = int(job.endedUnixNs) - int(job.startedUnixNs);
  const act = (work: Promise<unknown>) => void work.then(changed, setError);
  const show = async () => {
    const { reportJson } = await call<JobInfo>("JobGet", { id: job.id });
    try {
      setAnswer(JSON.stringify(JSON.parse(reportJson), undefined, 2));
    } catch {
      setAnswer(reportJson);
    }
  };
  const page = resultPage(job);
  return (
    <div role="group" class={`card job ${job.state === "JOB_STATE_FAILED" ? "bad" : job.state === "JOB_STATE_DONE" ? "good" : ""}`} aria-label={job.commandLine}>
      <p><JobProgress job={job} /> <span class="note">{time(job.createdUnixNs)}{isOver(job) && took > 0 && int(job.startedUnixNs) > 0 ? `, ${duration(took)}` : ""}</span></p>
      <Command text={job.commandLine} />
      {job.messages !== "" && <pre class="messages">{job.messages}</pre>}
      <p class="job-actions">
        {page && <a href={page}>{t("Show the result")}</a>}
        {job.state === "JOB_STATE_DONE" && page === undefined && (answer === undefined
          ? <button onClick={() => void show().catch(setError)}>{t("Show the answer")}</button> : <button onClick={() => setAnswer(undefined)}>{t("Close")}</button>)}
        {job.files.map((file) => <button key={file.name} onClick={() => void saveJobFile(job.id, file.name).catch(setError)}>{t("Save {0}", file.name)} ({bytes(file.lengthBytes)})</button>)}
        {!isOver(job) ? <button disabled={whyNoJobs() !== ""} onClick={() => act(call("JobCancel", { id: job.id }))}>{t("Cancel")}</button>
          : <button disabled={whyNoJobs() !== ""} onClick={() => act(call("JobDelete", { id: job.id }))}>{t("Delete")}</button>}
      </p>
      {answer !== undefined && <pre class="json" tabIndex={0}>{answer}</pre>}
      {error !== undefined && <Failure error={asApiError(error)} />}
    </div>
  );
}

export function Jobs() {
  const loaded = useLoaded("jobs", (signal) => call<{ jobs: JobInfo[]; mostRunning: number; mostKept: number }>("JobList", {}, signal), 1000);
  return (
    <>
      <h1>{t("Jobs")}</h1>
      {whyNoJobs() === "" ? <NewJob done={loaded.reload} /> : <Empty><p>{whyNoJobs()}</p><Command text={`rankprobe view --collector ${server.value!.collector}`} /></Empty>}
      <Show of={loaded}>
        {({ jobs, mostRunning, mostKept }) => jobs.length === 0 ? whyNoJobs() === "" && (
          <Empty><p>{t("No job yet. Comparisons started on the page of a run are listed here too.")}</p><Command text={`rankprobe compare -tp run:${quoted("A")} -gp run:${quoted("B")}`} /></Empty>
        ) : (
          <>
            <p class="note">{t("{0} at a time; the last {1} are kept until the server ends.", mostRunning, mostKept)}</p>
            {jobs.map((job) => <JobCard key={job.id} job={job} changed={loaded.reload} />)}
          </>
        )}
      </Show>
    </>
  );
}
