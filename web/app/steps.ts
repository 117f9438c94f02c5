// SPDX-License-Identifier: Apache-2.0
// The last recorded step of a run, without a list of all: by halving.
import { call } from "./api";
import { int } from "./format";
import type { Int64 } from "./messages";

// The first recorded step behind `step`; undefined: there is none.
export async function stepBehind(run: string, step: number, signal: AbortSignal): Promise<number | undefined> {
  const body = step < 0 ? { run, limit: 1 } : { run, limit: 1, afterStep: String(step) };
  const { steps } = await call<{ steps: { step: Int64 }[] }>("ArchiveService/ListSteps", body, signal);
  return steps.length === 0 ? undefined : int(steps[0].step);
}

// What was found before, to go on from: mostly one question is enough then.
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
  // `known` is recorded; behind `none` nothing is.
  while (none > known) {
    const middle = Math.floor((known + none) / 2);
    const next = await stepBehind(run, middle, signal);
    if (next === undefined) none = middle;
    else known = next;
  }
  found.set(run, known);
  return known;
}
