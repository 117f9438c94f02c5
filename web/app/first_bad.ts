// SPDX-License-Identifier: Apache-2.0
// The first bad call of a run: the step by its extremes, the call by what
// `rankprobe overflow_check` says of that step, over ranks and communication.
import { ApiError, call as ask, stream } from "./api";
import { isBad, leavesOf, type Leaf } from "./calls";
import type { Grid } from "./grid";
import type { CallEntry, Int64 } from "./messages";
import { extremes } from "./overview";

export interface BadCall {
  entry: CallEntry;
  // What of it is bad; undefined: nothing it made.
  leaf?: Leaf;
  // Everything it was given was finite: the fault is its own.
  cleanInputs: boolean;
}

export interface Bad {
  step: number;
  // Of those where something is not finite at this step.
  ranks: number[];
  rank: number;
  call?: BadCall;
  // Calls of other ranks that are as early.
  others: { rank: number; call: string }[];
  // Why this server does not say which call it was.
  unsaid?: ApiError;
}

// Ranks of a step that are looked at together.
const MOST_RANKS = 64;

function origin(step: number, run: string, ranks: number[], signal: AbortSignal): Promise<{ found: { rank: Int64; call: string }[] }> {
  return ask("FirstBad", { run, step: String(step), ranks: ranks.slice(0, MOST_RANKS).map(String) }, signal);
}

export async function findFirstBad(run: string, overview: Grid, signal: AbortSignal): Promise<Bad | undefined> {
  let grid = overview;
  let column = 0;
  for (;;) {
    const bad = (i: number) => grid.rows.some((row) => row.nonFinite[i] > 0);
    column = grid.first.findIndex((_, i) => bad(i));
    if (column < 0) return undefined;
    if (grid.first[column] === grid.last[column]) break;
    grid = await extremes(run, signal, grid.first[column], grid.last[column]);
  }
  const step = grid.first[column];
  const ranks = grid.rows.filter((row) => row.nonFinite[column] > 0)
    .map((row) => (row.name.startsWith("rank") ? Number(row.name.slice(4)) : -1)).filter((rank) => rank >= 0).sort((a, b) => a - b);
  let found: { rank: Int64; call: string }[];
  try {
    ({ found } = await origin(step, run, ranks, signal));
  } catch (error) {
    // The step and the ranks are known all the same.
    if (!(error instanceof ApiError)) throw error;
    return { step, ranks, rank: ranks[0] ?? -1, others: [], unsaid: error };
  }
  if (found.length === 0) return { step, ranks, rank: ranks[0] ?? -1, others: [] };
  const [first, ...others] = found.map((one) => ({ rank: Number(one.rank), call: one.call }));
  // Without a rank, it is told from its process by nothing but its values.
  const process = grid.rows.find((row) => row.nonFinite[column] > 0)?.name ?? "";
  const id = ranks.length > 0 ? { rank: String(first.rank) } : { pid: process.replace(/^proc/, "") };
  let call: BadCall | undefined;
  for await (const entry of stream<CallEntry>("ArchiveService/ListCalls", { run, step: String(step), ...id, contains: first.call, context: true }, signal)) {
    if (entry.entry !== first.call) continue;
    const leaves = leavesOf(entry);
    call = { entry, leaf: leaves.find((one) => !one.given && isBad(one.tensor)), cleanInputs: !leaves.some((one) => one.given && isBad(one.tensor)) };
  }
  return { step, ranks, rank: ranks.length > 0 ? first.rank : -1, call, others };
}
