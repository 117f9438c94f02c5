// SPDX-License-Identifier: Apache-2.0
// Proposal of a run to compare another one with, if the user names none.
import { call } from "./api";
import { isBadColumn } from "./first_bad";
import { int } from "./format";
import type { RunInfo } from "./messages";
import { extremes } from "./overview";

// Number of newest runs that are checked, and cells of each: a coarse grid suffices, since a column shows a bad value
// of any of its steps.
const MOST_RUNS = 8;
const CELLS = 4000;

// Returns the newest other run with as many ranks and without NaN or infinities; undefined if none of the newest
// qualifies.
export async function proposeReference(run: string, signal: AbortSignal): Promise<string | undefined> {
  const { runs } = await call<{ runs: RunInfo[] }>("ArchiveService/ListRuns", {}, signal);
  const ranks = runs.find((one) => one.run === run)?.ranks;
  const others = runs.filter((one) => one.run !== run && int(one.ranks) === int(ranks) && int(one.steps) > 0)
    .sort((a, b) => int(b.updatedUnixNs) - int(a.updatedUnixNs));
  for (const { run: other } of others.slice(0, MOST_RUNS)) {
    const grid = await extremes(other, signal, undefined, undefined, CELLS);
    if (grid.first.length > 0 && !grid.first.some((_, column) => isBadColumn(grid, column))) return other;
  }
  return undefined;
}
