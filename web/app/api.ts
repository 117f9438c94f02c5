// SPDX-License-Identifier: Apache-2.0
// The collector's services as JSON, through the process that serves this page.
import { signal as box } from "@preact/signals";
import { token } from "./route";
import { t } from "./text";

export class ApiError extends Error {
  // The code of gRPC, such as "NOT_FOUND", or "NETWORK" if there was no answer.
  constructor(readonly code: string, message: string) {
    super(message);
  }
}

function bearer(): Record<string, string> {
  const held = token();
  return held === "" ? {} : { Authorization: `Bearer ${held}` };
}

async function reach(address: string, request: RequestInit): Promise<Response> {
  try {
    return await fetch(address, request);
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new ApiError("NETWORK", "the server of this page does not answer: has it ended?");
  }
}

export async function post(method: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const answer = await reach(`/api/v1/${method}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...bearer() },
    body: JSON.stringify(body),
    signal,
  });
  if (answer.ok) return answer;
  throw await errorOf(answer);
}

async function errorOf(answer: Response): Promise<ApiError> {
  try {
    const { error } = await answer.json();
    return new ApiError(error.code, error.message);
  } catch {
    // The body is not JSON, so only the status is known.
    return new ApiError(`HTTP ${answer.status}`, answer.statusText);
  }
}

// Leaves that a root could not reach, as lines for people, from the last answer of each method.
export const away = box<Record<string, string[]>>({});

export async function call<T>(method: string, body: unknown = {}, signal?: AbortSignal): Promise<T> {
  const answer = (await (await post(method, body, signal)).json()) as T & { away?: string[] };
  const lines = answer.away ?? [];
  if ((away.value[method] ?? []).join("\n") !== lines.join("\n")) away.value = { ...away.value, [method]: lines };
  return answer;
}

// Yields the messages of a stream, one after another.
export async function* stream<T>(method: string, body: unknown, signal?: AbortSignal): AsyncGenerator<T> {
  const reader = (await post(method, body, signal)).body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : lines.pop()!;
      for (const line of lines) {
        if (line === "") continue;
        const message = JSON.parse(line);
        if (message.error !== undefined) throw new ApiError(message.error.code, message.error.message);
        yield message as T;
      }
      if (done) return;
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

export interface About {
  version: string;
  collector: string;
  root: string;
  jobs: boolean;
  // Whether the server builds graphs of dumps and runs itself; otherwise they are built by jobs.
  builds: boolean;
  // The caller as identified by a collector that serves this page itself. Absent if `rankprobe view` serves it, as its
  // user.
  caller?: { name: string; role: string };
}

// Description of the server, which determines the actions that are possible.
export const server = box<About | undefined>(undefined);

export async function about(signal?: AbortSignal): Promise<About> {
  const answer = await reach("/api/v1/about", { headers: bearer(), signal });
  if (!answer.ok) throw await errorOf(answer);
  server.value = (await answer.json()) as About;
  return server.value;
}

// Returns why the caller may not switch recording; "" if it may. If `rankprobe view` serves the page, the collector
// reports a missing right only when switching is tried.
export function whyNoSwitch(): string {
  const caller = server.value?.caller;
  return caller === undefined || caller.role === "operator" ? "" : t("{0} is {1}: switching needs an operator's token.", caller.name, caller.role);
}

// Returns why no job can be started; "" if jobs can be started.
export function whyNoJobs(): string {
  const { jobs, caller } = server.value ?? {};
  if (jobs === false) return t("This server runs no jobs. Use `rankprobe view` with a collector, or a terminal.");
  return caller === undefined || caller.role === "operator" ? "" : t("{0} is {1}: a job needs an operator's token.", caller.name, caller.role);
}
