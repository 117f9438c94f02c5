// SPDX-License-Identifier: Apache-2.0
// Jobs of the page's server: commands of rankprobe.
import { useEffect, useState } from "preact/hooks";
import { ApiError, call, post } from "./api";
import { asApiError } from "./load";
import type { Int64 } from "./messages";
import { saveBlob } from "./save";

export interface JobSpec {
  command: string;
  options: Record<string, string>;
  files?: Record<string, string>;
  reuse?: boolean;
}

export interface JobInfo {
  id: string;
  spec: JobSpec;
  state: string;
  commandLine: string;
  createdUnixNs: Int64;
  startedUnixNs: Int64;
  endedUnixNs: Int64;
  stage: string;
  percent: number;
  messages: string;
  reportJson: string;
  files: { name: string; lengthBytes: Int64 }[];
}

export interface JobRows {
  columns: string[];
  rows: { row: Int64; cells: string[] }[];
  total: Int64;
  matching: Int64;
  results: Record<string, Int64>;
}

const ASK_MS = 400;

export function isOver(job: JobInfo): boolean {
  return job.state === "JOB_STATE_DONE" || job.state === "JOB_STATE_FAILED" || job.state === "JOB_STATE_CANCELLED";
}

export function startJob(spec: JobSpec, signal?: AbortSignal): Promise<JobInfo> {
  return call<JobInfo>("JobStart", spec, signal);
}

function later(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    }, { once: true });
  });
}

// Waits for the end of a job. `seen` is called with each state before.
async function waitForJob(id: string, signal: AbortSignal, seen?: (job: JobInfo) => void): Promise<JobInfo> {
  for (let ms = 50; ; ms = Math.min(ASK_MS, 2 * ms)) {
    const job = await call<JobInfo>("JobGet", { id }, signal);
    seen?.(job);
    if (isOver(job)) return job;
    await later(ms, signal);
  }
}

// Runs a job to its end. `seen` is called with each state before.
export async function runJob(spec: JobSpec, signal: AbortSignal, seen?: (job: JobInfo) => void): Promise<JobInfo> {
  const { id } = await startJob(spec, signal);
  const job = await waitForJob(id, signal, seen);
  if (job.state !== "JOB_STATE_DONE") throw new ApiError("JOB", job.messages || job.state);
  return job;
}

// Polls the job with this id until it is over.
export function useJob(id: string): { job?: JobInfo; error?: ApiError } {
  const [state, setState] = useState<{ id: string; job?: JobInfo; error?: ApiError }>({ id });
  useEffect(() => {
    setState({ id });
    if (id === "") return;
    const abort = new AbortController();
    waitForJob(id, abort.signal, (job) => setState({ id, job })).catch((error) => {
      if (!abort.signal.aborted) setState((before) => ({ id, job: before.job, error: asApiError(error) }));
    });
    return () => abort.abort();
  }, [id]);
  return state.id === id ? state : {};
}

// Saves a file of a job with the browser.
export async function saveJobFile(id: string, name: string): Promise<void> {
  const answer = await post("JobFile", { id, name });
  saveBlob(name.split("/").pop()!, await answer.blob());
}
