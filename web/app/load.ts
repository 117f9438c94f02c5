// SPDX-License-Identifier: Apache-2.0
// State of a request of a page: loading, loaded, or failed with the reason.
import { useLayoutEffect, useState } from "preact/hooks";
import { ApiError } from "./api";

export interface Loaded<T> {
  value?: T;
  error?: ApiError;
  loading: boolean;
  reload: () => void;
}

const RETRY_MS = 2000;
const NO_ANSWER = ["UNAVAILABLE", "NETWORK"];

export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError("PAGE", error instanceof Error ? error.message : String(error));
}

// `ask` may pass parts of its answer before the complete one. Calls `ask` again when `key` changes, and every `everyMs`
// if given (not while the tab is hidden, and never twice at once). The last answer is kept while the next is awaited.
// After a failure without an answer, the request is repeated until there is one.
export function useLoaded<T>(key: string, ask: (signal: AbortSignal, partial: (value: T) => void) => Promise<T>, everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ key: string; value?: T; error?: ApiError; loading: boolean }>({ key, loading: true });
  const [turn, setTurn] = useState(0);
  // Not an effect after the next frame: the request need not wait until the waiting state is painted.
  useLayoutEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    setState((before) => (before.key === key ? { ...before, loading: true } : { key, loading: true }));
    const again = (afterMs: number) => {
      if (afterMs > 0 && !abort.signal.aborted) timer = window.setTimeout(run, afterMs);
    };
    const run = () => {
      if (document.hidden) return again(everyMs || RETRY_MS);
      const partial = (value: T) => {
        if (!abort.signal.aborted) setState({ key, value, loading: true });
      };
      ask(abort.signal, partial).then(
        (value) => {
          if (!abort.signal.aborted) setState({ key, value, loading: false });
          again(everyMs);
        },
        (failure) => {
          const error = asApiError(failure);
          if (!abort.signal.aborted) setState((before) => ({ ...before, key, error, loading: false }));
          again(everyMs || (NO_ANSWER.includes(error.code) ? RETRY_MS : 0));
        });
    };
    run();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, turn, everyMs]);
  const { value, error, loading } = state.key === key ? state : { value: undefined, error: undefined, loading: true };
  return { value, error, loading, reload: () => setTurn(turn + 1) };
}
