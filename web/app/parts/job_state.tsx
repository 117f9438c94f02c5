// SPDX-License-Identifier: Apache-2.0
// Progress of a job, the reason of a failure, and a button that cancels it.
import { call, whyNoJobs } from "../api";
import { isOver, type JobInfo } from "../jobs";
import { t } from "../text";
import type { ApiError } from "../api";
import { Failure } from "./basics";

function stateText(state: string): string {
  switch (state) {
    case "JOB_STATE_WAITING": return t("waits");
    case "JOB_STATE_RUNNING": return t("running");
    case "JOB_STATE_DONE": return t("done");
    case "JOB_STATE_FAILED": return t("failed");
    case "JOB_STATE_CANCELLED": return t("cancelled");
  }
  return state;
}

export function JobProgress({ job }: { job: JobInfo }) {
  return (
    <span class="job-progress">
      <span class={`badge ${job.state === "JOB_STATE_FAILED" ? "bad" : isOver(job) ? "" : "live"}`}>{stateText(job.state)}</span>
      {!isOver(job) && (
        <>
          {job.percent >= 0 && <progress max={100} value={job.percent} aria-label={job.stage} />}
          {job.stage !== "" && <span>{job.stage}{job.percent >= 0 ? ` ${job.percent}%` : ""}</span>}
        </>
      )}
    </span>
  );
}

// Shown while the job runs and after it has failed; the page shows the result.
export function JobState({ job, error, gone }: { job?: JobInfo; error?: ApiError; gone?: () => void }) {
  if (error !== undefined && error.code === "NOT_FOUND") {
    return <p class="note">{t("This result no longer exists: the server keeps only the latest results, until it stops.")} {gone && <button onClick={gone}>{t("Run it again")}</button>}</p>;
  }
  if (error !== undefined) return <Failure error={error} />;
  if (job === undefined) return <p class="waiting" aria-busy="true">{t("Loading …")}</p>;
  return (
    <>
      {!isOver(job) && (
        <p class="waiting" aria-busy="true" role="status">
          <JobProgress job={job} />{" "}
          <button disabled={whyNoJobs() !== ""} onClick={() => void call("JobCancel", { id: job.id }).catch(() => undefined)}>{t("Cancel")}</button>
        </p>
      )}
      {job.state === "JOB_STATE_CANCELLED" && <p class="note">{t("cancelled")}. {gone && <button onClick={gone}>{t("Run it again")}</button>}</p>}
      {job.state === "JOB_STATE_FAILED" && (
        <div class="failure" role="alert"><strong>{t("failed")}</strong> <pre class="messages">{job.messages}</pre>{gone && <button onClick={gone}>{t("Try again")}</button>}</div>
      )}
      {job.state === "JOB_STATE_DONE" && job.messages !== "" && <pre class="messages note">{job.messages}</pre>}
    </>
  );
}
