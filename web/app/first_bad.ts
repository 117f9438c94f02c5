// SPDX-License-Identifier: Apache-2.0
// The first bad call of a run: the step is found by its extremes, the call by
// `rankprobe overflow_check` on that step, over ranks and communication. A mask
// of -Infinity is in every step of a correct run and does not count as a bad
// value.
import { ApiError, call as ask, stream } from "./api";
import { isBad, leavesOf, type Leaf } from "./calls";
import type { Grid } from "./grid";
import type { CallEntry, Int64 } from "./messages";
import { extremes } from "./overview";

export interface BadCall {
  entry: CallEntry;
  // The bad value of the call; undefined if it made none.
  leaf?: Leaf;
  // Whether all its inputs were finite.
  cleanInputs: boolean;
  // Whether it made the NaN or the infinity itself, from inputs that were finite or intended.
  made: boolean;
  // "blocks.2.attn (Attention)"; empty if unknown.
  module: string;
}

export interface Bad {
  step: number;
  // Ranks that have a value that is not finite at this step.
  ranks: number[];
  rank: number;
  call?: BadCall;
  // Calls of other ranks that are equally early.
  others: { rank: number; call: string }[];
  // The reason why this server cannot determine the call.
  unsaid?: ApiError;
}

// Largest number of ranks of a step that are checked together.
const MOST_RANKS = 64;

// Largest number of steps that are checked one after another, if the infinities of the first ones were intended.
const MOST_STEPS = 8;

interface Origin {
  rank: Int64;
  call: string;
  made?: string;
  module?: string;
}

// Whether the largest values of a column include a NaN or +Infinity.
export function isBadColumn(grid: Grid, column: number): boolean {
  return grid.rows.some((row) => row.counts[column] > 0 && (Number.isNaN(row.cells[column]) || row.cells[column] === Infinity));
}

function origin(step: number, run: string, ranks: number[], signal: AbortSignal): Promise<{ found: Origin[] }> {
  return ask("FirstBad", { run, step: String(step), ranks: ranks.slice(0, MOST_RANKS).map(String) }, signal);
}

async function firstBadColumn(run: string, overview: Grid, from: number, signal: AbortSignal): Promise<{ grid: Grid; column: number } | undefined> {
  let grid = overview;
  for (;;) {
    const column = grid.first.findIndex((_, i) => grid.last[i] >= from && isBadColumn(grid, i));
    if (column < 0) return undefined;
    if (grid.first[column] === grid.last[column]) return { grid, column };
    grid = await extremes(run, signal, Math.max(from, grid.first[column]), grid.last[column]);
  }
}

export async function findFirstBad(run: string, overview: Grid, signal: AbortSignal): Promise<Bad | undefined> {
  let from = 0;
  for (let asked = 0; asked < MOST_STEPS; asked++) {
    const at = await firstBadColumn(run, overview, from, signal);
    if (at === undefined) return undefined;
    const bad = await look(run, at.grid, at.column, signal);
    if (bad !== undefined) return bad;
    from = at.grid.first[at.column] + 1;
  }
  return undefined;
}

// Returns undefined if all values of this step that are not finite were intended.
async function look(run: string, grid: Grid, column: number, signal: AbortSignal): Promise<Bad | undefined> {
  const step = grid.first[column];
  const ranks = grid.rows.filter((row) => row.nonFinite[column] > 0)
    .map((row) => (row.name.startsWith("rank") ? Number(row.name.slice(4)) : -1)).filter((rank) => rank >= 0).sort((a, b) => a - b);
  let found: Origin[];
  try {
    ({ found } = await origin(step, run, ranks, signal));
  } catch (error) {
    // The step and the ranks are known nevertheless.
    if (!(error instanceof ApiError)) throw error;
    return { step, ranks, rank: ranks[0] ?? -1, others: [], unsaid: error };
  }
  if (found.length === 0) return undefined;
  const [first, ...others] = found.map((one) => ({ rank: Number(one.rank), call: one.call }));
  // Without a rank, the process is identified only by its values.
  const process = grid.rows.find((row) => row.nonFinite[column] > 0)?.name ?? "";
  const id = ranks.length > 0 ? { rank: String(first.rank) } : { pid: process.replace(/^proc/, "") };
  let call: BadCall | undefined;
  for await (const entry of stream<CallEntry>("ArchiveService/ListCalls", { run, step: String(step), ...id, contains: first.call, context: true }, signal)) {
    if (entry.entry !== first.call) continue;
    const leaves = leavesOf(entry);
    call = { entry, leaf: leaves.find((one) => !one.given && isBad(one.tensor)), cleanInputs: !leaves.some((one) => one.given && isBad(one.tensor)),
      made: (found[0].made ?? "") !== "", module: found[0].module ?? "" };
  }
  return { step, ranks, rank: ranks.length > 0 ? first.rank : -1, call, others };
}
