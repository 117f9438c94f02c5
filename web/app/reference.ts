// SPDX-License-Identifier: Apache-2.0
// A run to compare another one with, where none is named.
import { call } from "./api";
import { isBadColumn } from "./first_bad";
import { int } from "./format";
import type { RunInfo } from "./messages";
import { extremes } from "./overview";

// Newest runs that are looked at, and cells of each: coarse, since one column tells as much as each of its steps.
const MOST_RUNS = 8;
const CELLS = 4000;

// The newest other run with as many ranks in which nothing is NaN or infinite; undefined: none of the newest.
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
