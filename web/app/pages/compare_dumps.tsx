// SPDX-License-Identifier: Apache-2.0
// Two dumps below the directory of the server, or a dump and a run, value by value:
// "#/compare?target=a/step3&reference=b/step3".
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { whyNoJobs } from "../api";
import { dumpOf, listRoot } from "../graph/source";
import { startJob, useJob } from "../jobs";
import { asApiError, useLoaded } from "../load";
import { Command, Empty, Failure, Field } from "../parts/basics";
import { JobState } from "../parts/job_state";
import { optionsOf, sideOf } from "../parts/two_dumps";
import { route, setQuery } from "../route";
import { t } from "../text";
import { CompareResult, type CompareReport } from "./compare";

const OPTIONS = ["fuzzy_match", "layer_mapping"];

// A button starts the comparison of the selected dumps; an address that names both sides starts it immediately.
export function CompareDumps() {
  const { query } = route.value;
  const { target = "", reference = "", job: id = "" } = query;
  const [sides, setSides] = useState({ target, reference });
  const [failure, setFailure] = useState<unknown>();
  const [turn, setTurn] = useState(0);
  const known = useLoaded("dumps to compare", listRoot);
  const { job, error } = useJob(id);
  const asked = JSON.stringify([target, reference, optionsOf(query, OPTIONS)]);
  const ready = target !== "" && reference !== "";
  const held = whyNoJobs();
  useLayoutEffect(() => setSides({ target, reference }), [target, reference]);
  useEffect(() => {
    if (!ready || id !== "" || held !== "") return;
    const abort = new AbortController();
    setFailure(undefined);
    startJob({ command: "compare", options: { target_path: dumpOf(target), golden_path: dumpOf(reference), ...optionsOf(route.value.query, OPTIONS) }, reuse: true }, abort.signal)
      .then((begun) => setQuery({ job: begun.id, file: undefined, at: undefined }, true), (reason) => abort.signal.aborted || setFailure(reason));
    return () => abort.abort();
  }, [asked, id, held, turn]);
  const report = job?.state === "JOB_STATE_DONE" && job.spec.command === "compare" ? JSON.parse(job.reportJson) as CompareReport : undefined;
  const choose = (changes: Record<string, string | undefined>) => setQuery({ ...changes, job: undefined, file: undefined, at: undefined });
  const side = (name: "target" | "reference", label: string) => (
    <Field label={label}><input class="wide" list="compared" required value={sides[name]} onInput={(event) => setSides({ ...sides, [name]: event.currentTarget.value })} placeholder={t("a dump, or run:NAME@STEP")} /></Field>
  );
  return (
    <>
      <h1>{t("Two dumps value by value")}</h1>
      <form class="form together" onSubmit={(event) => { event.preventDefault(); choose({ target: sides.target.trim(), reference: sides.reference.trim() }); }}>
        {side("target", t("Target"))}
        {side("reference", t("Reference"))}
        <datalist id="compared">{(known.value?.dumps ?? []).map((dump) => <option key={dump.path} value={dump.path || "."} />)}</datalist>
        <label class="check"><input type="checkbox" checked={query.fuzzy_match === "true"} onChange={(event) => choose({ fuzzy_match: event.currentTarget.checked ? "true" : undefined })} /> {t("Match calls in order, whatever their numbers")}</label>
        <label class="check"><input type="checkbox" checked={query.layer_mapping === "true"} onChange={(event) => choose({ layer_mapping: event.currentTarget.checked ? "true" : undefined })} /> {t("Match layers of other names")}</label>
        <button class="primary" type="submit" disabled={held !== ""}>{t("Compare")}</button>
        {held !== "" && <span class="note" role="note">{held}</span>}
      </form>
      {failure !== undefined && <Failure error={asApiError(failure)} retry={() => setTurn(turn + 1)} />}
      {id === "" ? !ready && <Empty><p>{t("Choose two dumps. A step or a rank of one is named by its directory: dump/step3/rank0.")}</p></Empty> : (
        <>
          <JobState job={job} error={error} gone={() => choose({})} />
          {report && <CompareResult run="" id={id} report={report} files={job!.files.map((one) => one.name)} target={sideOf(job!.spec.options.target_path)} beside={sideOf(job!.spec.options.golden_path)} />}
          {job && <Command text={job.commandLine} />}
        </>
      )}
    </>
  );
}
