// SPDX-License-Identifier: Apache-2.0
// The answer of `rankprobe diagnose` about a run: its findings, the likely
// cause first, the parts without a fault, and those that could not be judged.
import { useState } from "preact/hooks";
import { call } from "../api";
import { count, quoted } from "../format";
import { useLoaded } from "../load";
import type { Int64 } from "../messages";
import { href } from "../route";
import { t } from "../text";
import { Card, Command, Failure } from "./basics";

interface Finding {
  by: string;
  step: Int64;
  rank: Int64 | null;
  module: string;
  name: string;
  code_line: string;
  what: string;
  // "exact" or "likely".
  sure: string;
  numbers: string[];
}

interface DiagnoseReport {
  // Notes, such as which of several jobs of this name was judged.
  notes: string[];
  findings: Finding[];
  healthy: string[];
  unjudged: { what: string; record: string; judge: string }[];
}

// A larger run is diagnosed on request only.
const MOST_RANK_STEPS = 20_000;
const MOST_FINDINGS = 5;
// Interval between two diagnoses of a run in progress.
const AGAIN_MS = 60_000;

function FindingText({ run, finding }: { run: string; finding: Finding }) {
  const { step, rank, name, module, what, numbers, by } = finding;
  return (
    <>
      <p>
        <a href={href("step", run, { step: String(step), rank: rank === null ? undefined : String(rank) })}>
          {rank === null ? t("Step {0}", String(step)) : t("Step {0}, rank {1}", String(step), String(rank))}
        </a>{" "}
        <span class="call-name">{name}</span>{module !== "" && <span class="note"> {module}</span>}
      </p>
      <p>{what} <span class="note">({by})</span></p>
      {finding.code_line !== "" && <p><code>{finding.code_line}</code></p>}
      {numbers.length > 0 && <pre class="messages">{numbers.join("\n")}</pre>}
    </>
  );
}

function Report({ run, report, isShown }: { run: string; report: DiagnoseReport; isShown: (finding: Finding) => boolean }) {
  const findings = report.findings.filter((one) => !isShown(one));
  const exact = findings.some((one) => one.sure === "exact");
  const isCause = exact && !isShown(report.findings[0]);
  const title = findings.length === 0 ? (report.findings.length > 0 ? t("Nothing else was found") : t("Nothing was found"))
    : exact ? t("Diagnosis") : t("Worth a look");
  return (
    <Card title={title} kind={`diagnosis ${findings.length === 0 ? "good" : isCause ? "bad" : "warn"}`}>
      {report.notes.map((note) => <p key={note} class="note">{note}.</p>)}
      {findings.slice(0, MOST_FINDINGS).map((finding, i) => <FindingText key={i} run={run} finding={finding} />)}
      {findings.length > MOST_FINDINGS && <p class="note">{t("The first {0} of {1}.", MOST_FINDINGS, findings.length)}</p>}
      {report.healthy.length > 0 && (
        <details><summary>{t("Found sound: {0}", count(report.healthy.length))}</summary><ul>{report.healthy.map((one) => <li key={one}>{one}</li>)}</ul></details>
      )}
      {report.unjudged.length > 0 && (
        <details>
          <summary>{t("Not judged: {0}", count(report.unjudged.length))}</summary>
          <ul>{report.unjudged.map((one) => <li key={one.what}>{one.what}{(one.judge || one.record) !== "" && <Command text={one.judge || one.record} />}</li>)}</ul>
        </details>
      )}
      <Command text={`rankprobe diagnose ${quoted(`run:${run}`)}`} />
    </Card>
  );
}

// `ready`: the server has found the first bad call, which it does first. `isShown`: another card shows this finding.
export function Diagnosis({ run, live, rankSteps, ready, isShown }: {
  run: string; live: boolean; rankSteps: number; ready: boolean; isShown: (finding: { by: string; step: Int64 }) => boolean;
}) {
  const [asked, setAsked] = useState(false);
  const wanted = ready && (asked || rankSteps <= MOST_RANK_STEPS);
  const report = useLoaded<DiagnoseReport | undefined>(`diagnosis ${run} ${wanted}`, async (signal) =>
    (wanted ? call<DiagnoseReport>("Diagnose", { run }, signal) : undefined), live ? AGAIN_MS : 0);
  if (report.value !== undefined) return <Report run={run} report={report.value} isShown={isShown} />;
  return (
    <Card title={t("Diagnosis")} kind="diagnosis">
      {report.error !== undefined && report.error.code !== "FAILED_PRECONDITION" && <Failure error={report.error} retry={report.reload} />}
      {wanted && report.error === undefined && <p class="waiting" aria-busy="true">{t("Loading …")}</p>}
      {!wanted && ready && <button onClick={() => setAsked(true)}>{t("Diagnose {0} rank-steps", count(rankSteps))}</button>}
      <Command text={`rankprobe diagnose ${quoted(`run:${run}`)}`} />
    </Card>
  );
}
