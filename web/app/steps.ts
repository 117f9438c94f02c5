// SPDX-License-Identifier: Apache-2.0
// Search for the last recorded step of a run, by bisection instead of a list of all.
import { call } from "./api";
import { int } from "./format";
import type { Int64 } from "./messages";

// Returns the first recorded step after `step`; undefined if there is none.
export async function stepBehind(run: string, step: number, signal: AbortSignal): Promise<number | undefined> {
  const body = step < 0 ? { run, limit: 1 } : { run, limit: 1, afterStep: String(step) };
  const { steps } = await call<{ steps: { step: Int64 }[] }>("ArchiveService/ListSteps", body, signal);
  return steps.length === 0 ? undefined : int(steps[0].step);
}

// Number of steps at the end of a run among which the one to show is chosen.
const NEAR_END = 16;

// Returns the step to show by default: the newest complete one, because the last step of a training that has ended may
// be incomplete. `withTensors`: the newest of these few that has tensors, if any.
export async function stepToShow(run: string, withTensors: boolean, signal: AbortSignal): Promise<number | undefined> {
  const last = await lastStep(run, signal);
  if (last === undefined) return undefined;
  const behind = last - NEAR_END;
  const { steps, truncated } = await call<{ steps: { step: Int64; records: Int64; payloads: Int64 }[]; truncated: boolean }>("ArchiveService/ListSteps",
    behind < 0 ? { run } : { run, afterStep: String(behind) }, signal);
  if (truncated) return last;
  const records = new Map<number, number>();
  for (const one of steps) records.set(int(one.step), (records.get(int(one.step)) ?? 0) + int(one.records));
  const most = Math.max(...records.values());
  const tensors = withTensors ? steps.filter((one) => int(one.payloads) > 0).map((one) => int(one.step)) : [];
  const whole = [...records].filter(([, count]) => count >= most / 2).map(([step]) => step);
  return tensors.length > 0 ? Math.max(...tensors) : whole.length > 0 ? Math.max(...whole) : last;
}

// Earlier results, from which the search continues; usually one request is then enough.
const found = new Map<string, number>();

export async function lastStep(run: string, signal: AbortSignal): Promise<number | undefined> {
  const before = found.get(run);
  let known = await stepBehind(run, before ?? -1, signal);
  if (known === undefined) return before;
  let none = known;
  for (let stride = before === undefined ? 1024 : 1; ; stride *= 8) {
    const next = await stepBehind(run, known + stride, signal);
    if (next === undefined) {
      none = known + stride;
      break;
    }
    known = next;
  }
  // Invariant: `known` is recorded, and no step after `none` is.
  while (none > known) {
    const middle = Math.floor((known + none) / 2);
    const next = await stepBehind(run, middle, signal);
    if (next === undefined) none = middle;
    else known = next;
  }
  found.set(run, known);
  return known;
}
