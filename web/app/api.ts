// SPDX-License-Identifier: Apache-2.0
// The collector's services as JSON, through the process that serves this page.
import { token } from "./route";

export class ApiError extends Error {
  // "NOT_FOUND", ... as gRPC has it; "NETWORK": no answer at all.
  constructor(readonly code: string, message: string) {
    super(message);
  }
}

export async function post(method: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`/api/v1/${method}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token()}` },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("NETWORK", "rankprobe view does not answer: has it ended?");
  }
  if (answer.ok) return answer;
  let code = `HTTP ${answer.status}`;
  let message = answer.statusText;
  try {
    const { error } = await answer.json();
    code = error.code;
    message = error.message;
  } catch {
    // No JSON: the status is all there is.
  }
  throw new ApiError(code, message);
}

export async function call<T>(method: string, body: unknown = {}, signal?: AbortSignal): Promise<T> {
  return (await (await post(method, body, signal)).json()) as T;
}

// Messages of a stream, one after another.
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

export async function about(signal?: AbortSignal): Promise<{ version: string; collector: string; root: string }> {
  const answer = await fetch("/api/v1/about", { headers: { Authorization: `Bearer ${token()}` }, signal });
  if (!answer.ok) throw new ApiError(answer.status === 401 ? "UNAUTHENTICATED" : `HTTP ${answer.status}`, answer.statusText);
  return answer.json();
}
