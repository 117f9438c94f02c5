// SPDX-License-Identifier: Apache-2.0
// The pairs of run, step and rank in the address, and the options of a comparison. Shared by the pages that compare.
import { useState } from "preact/hooks";
import { whyNoJobs } from "../api";
import { stepOf } from "../format";
import { startJob, useJob, type JobSpec } from "../jobs";
import { asApiError } from "../load";
import type { ApiError } from "../api";
import { route, setQuery } from "../route";
import { t } from "../text";
import { Failure, RunSelect, TextField } from "./basics";

// Returns "run:NAME", "run:NAME@3" or "run:NAME@3/rank1".
function dumpName(run: string, step: string, rank: string): string {
  if (step === "") return `run:${run}`;
  return `run:${run}@${step}${rank === "" ? "" : `/rank${rank}`}`;
}

export interface Pair {
  target: string;
  reference: string;
  step: string;
  otherStep: string;
  otherRun: string;
}

// Returns the two sides in the address; the other side's step defaults to this one's.
export function pairOf(run: string): Pair {
  const { step = "", rank = "", other = "", ostep = "", orank = "" } = route.value.query;
  const otherStep = ostep === "" ? step : ostep;
  return {
    target: dumpName(run, step, rank), otherRun: other, step, otherStep,
    reference: dumpName(other, otherStep, orank === "" ? rank : orank),
  };
}

// Parses "run:NAME@3/rank1"; the report of a dump of one step or one rank does not name it.
export function sideOf(text: string): { run: string; step: string; rank: string } {
  const match = /^run:(.*?)(?:@(\d+)(?:\/rank(\d+))?)?$/.exec(text);
  return { run: match?.[1] ?? "", step: match?.[2] ?? "", rank: match?.[3] ?? "" };
}

const OPTIONS = ["fuzzy_match", "layout", "layer_mapping"];

// Returns the options in the address that a command has, and the files that were entered here.
export function optionsOf(query: Record<string, string>, names: string[]): Record<string, string> {
  const out: Record<string, string> = {};
  for (const name of names) if (query[name] !== undefined && query[name] !== "") out[name] = query[name];
  return out;
}

interface Props {
  run: string;
  action: string;
  // Job for the two sides; undefined if a field is missing.
  spec: (pair: Pair, options: Record<string, string>, files: Record<string, string>) => JobSpec;
  more?: preact.ComponentChildren;
}

export function useComparison(): { id: string; error?: ApiError; job?: ReturnType<typeof useJob>["job"] } {
  const { job: id = "" } = route.value.query;
  return { id, ...useJob(id) };
}

// The form above a comparison. The address holds the fields and the job that answers.
export function TwoDumps({ run, action, spec, more }: Props) {
  const { query } = route.value;
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [mapping, setMapping] = useState("");
  const field = (name: string) => query[name] ?? "";
  const bad = ["step", "ostep", "rank", "orank"].some((name) => field(name) !== "" && stepOf(field(name)) === undefined) ||
    (field("rank") !== "" && field("step") === "") || (field("orank") !== "" && field("ostep") === "" && field("step") === "");
  const begin = async () => {
    setBusy(true);
    setError(undefined);
    try {
      const options = optionsOf(route.value.query, OPTIONS);
      const files: Record<string, string> = {};
      if (mapping.trim() !== "") {
        files.layer_mapping = mapping;
        delete options.layer_mapping;
      }
      const job = await startJob({ ...spec(pairOf(run), options, files), reuse: true });
      setQuery({ job: job.id, file: undefined, at: undefined, find: undefined, results: undefined, sort: undefined });
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  return (
    <form class="pair" onSubmit={(event) => event.preventDefault()}>
      <fieldset>
        <legend>{t("This run")}</legend>
        <div class="form">
          <TextField label={t("Step (all if empty)")} value={field("step")} onChange={(step) => setQuery({ step })} />
          <TextField label={t("Rank (all if empty)")} value={field("rank")} onChange={(rank) => setQuery({ rank })} />
        </div>
      </fieldset>
      <fieldset>
        <legend>{t("Against")}</legend>
        <div class="form">
          <RunSelect label={t("Run")} value={field("other")} onChange={(other) => setQuery({ other })} />
          <TextField label={t("Step (the same if empty)")} value={field("ostep")} onChange={(ostep) => setQuery({ ostep })} />
          <TextField label={t("Rank (the same if empty)")} value={field("orank")} onChange={(orank) => setQuery({ orank })} />
        </div>
      </fieldset>
      <div class="form">
        <label class="check"><input type="checkbox" checked={field("fuzzy_match") === "true"} onChange={(event) => setQuery({ fuzzy_match: event.currentTarget.checked ? "true" : undefined })} /> {t("Match calls in order, whatever their numbers")}</label>
        <label class="check"><input type="checkbox" checked={field("layout") === "auto"} onChange={(event) => setQuery({ layout: event.currentTarget.checked ? "auto" : undefined })} /> {t("Merge the ranks of each run first (other layout)")}</label>
        {more}
        <details class="mapping">
          <summary>{t("Layers of other names")}</summary>
          <label class="check"><input type="checkbox" checked={field("layer_mapping") === "true"} onChange={(event) => setQuery({ layer_mapping: event.currentTarget.checked ? "true" : undefined })} /> {t("Match layers of other names")}</label>
          <label class="field"><span>{t("or by this mapping (yaml)")}</span><textarea rows={4} spellcheck={false} value={mapping} onInput={(event) => setMapping(event.currentTarget.value)} /></label>
        </details>
        <button class="primary" type="button" onClick={() => void begin()} disabled={busy || bad || field("other") === "" || whyNoJobs() !== ""}>{action}</button>
        {whyNoJobs() !== "" && <span class="note" role="note">{whyNoJobs()}</span>}
        {bad && <span class="note">{t("Steps and ranks are numbers; a rank needs its step.")}</span>}
      </div>
      {error !== undefined && <Failure error={asApiError(error)} />}
    </form>
  );
}
