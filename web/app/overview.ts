// SPDX-License-Identifier: Apache-2.0
// The extremes of each rank and step of a run that may be growing: steps that
// all ranks have passed are requested once, later steps repeatedly.
import { call } from "./api";
import { int } from "./format";
import { queryGrid, type Grid, type Row } from "./grid";
import type { AgentInfo, GridHead } from "./messages";
import { lastStep, stepBehind } from "./steps";

// Steps before that of the slowest connected rank whose records may still be in transit.
const MARGIN_STEPS = 64;
const MAX_CELLS = 200_000;
// Rank-steps of one request, so that each is short, and columns of the picture of all steps.
const PORTION = 40_000;
const COLUMNS = 2000;

// Requests the largest values; values that are not finite are counted over the largest and the smallest.
export function extremes(run: string, signal: AbortSignal, firstStep?: number, lastStep?: number, maxCells = MAX_CELLS): Promise<Grid> {
  return queryGrid({ run, rows: "GRID_ROWS_RANK", statistic: "Max", values: "GRID_VALUES_ALL", maxCells, firstStep, lastStep }, signal);
}

const NOTHING: GridHead = {
  firstSteps: [], lastSteps: [], stepsPerColumn: 1, steps: 0, rankSteps: 0, incompleteRankSteps: 0, deletedRankSteps: 0, tensors: 0, tensorsWithout: 0,
  rows: 0 };

// Joins the grids of neighbouring ranges of steps, in order, into one.
export function joined(parts: Grid[]): Grid {
  if (parts.length === 1) return parts[0];
  if (parts.length === 0) return { head: NOTHING, first: [], last: [], rows: [] };
  const names = [...new Set(parts.flatMap((part) => part.rows.map((row) => row.name)))]
    .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const columns = parts.reduce((sum, part) => sum + part.first.length, 0);
  const rows = names.map((name): Row => ({
    name, cells: new Float64Array(columns).fill(NaN), counts: new Uint32Array(columns), nonFinite: new Uint32Array(columns),
    ranks: new Float64Array(columns).fill(-1) }));
  const rowOf = new Map(rows.map((row) => [row.name, row]));
  let at = 0;
  for (const part of parts) {
    for (const from of part.rows) {
      const to = rowOf.get(from.name)!;
      to.cells.set(from.cells, at);
      to.counts.set(from.counts, at);
      to.nonFinite.set(from.nonFinite, at);
      to.ranks.set(from.ranks, at);
    }
    at += part.first.length;
  }
  const sum = (of: (part: Grid) => number) => parts.reduce((total, part) => total + of(part), 0);
  return {
    head: {
      ...parts[0].head, steps: sum((part) => int(part.head.steps)), rankSteps: sum((part) => int(part.head.rankSteps)),
      incompleteRankSteps: sum((part) => int(part.head.incompleteRankSteps)), deletedRankSteps: sum((part) => int(part.head.deletedRankSteps)),
      stepsPerColumn: Math.max(...parts.map((part) => int(part.head.stepsPerColumn))), rows: rows.length,
    },
    first: parts.flatMap((part) => part.first), last: parts.flatMap((part) => part.last), rows,
  };
}

export class Overview {
  private done: Grid[] = [];
  // The first step that is not in `done`; -1 if the beginning of the run is unknown.
  private from = -1;
  // Steps of the next request.
  private portion = 0;
  private final: Grid | undefined;

  constructor(private readonly run: string) {}

  // Passes the part that is loaded so far, from the first step on, to `partial`.
  async load(ranks: number, signal: AbortSignal, partial: (grid: Grid) => void): Promise<Grid> {
    const [{ agents }, last] = await Promise.all([
      call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run: this.run }, signal),
      lastStep(this.run, signal),
    ]);
    const steps = agents.filter((agent) => agent.connected).map((agent) => int(agent.step));
    // A run that has ended does not grow.
    if (steps.length === 0 && this.final !== undefined) return this.final;
    const end = last ?? -1;
    const settled = steps.length === 0 ? end + 1 : Math.min(end, ...steps) - MARGIN_STEPS;
    if (this.from < 0) this.from = (await stepBehind(this.run, -1, signal)) ?? 0;
    while (settled - this.from >= (steps.length === 0 ? 1 : MARGIN_STEPS)) {
      const to: number = Math.min(settled, this.from + (this.portion || Math.ceil(PORTION / Math.max(1, ranks)))) - 1;
      const columns = Math.max(1, Math.ceil((COLUMNS * (to - this.from + 1)) / (end - this.from + 1)));
      const part = await extremes(this.run, signal, this.from, to, Math.min(MAX_CELLS, ranks * columns));
      if (part.first.length > 0) this.done.push(part);
      // Not every step is recorded, so the next request is adapted to cover about as many rank-steps.
      const share = PORTION / Math.max(1, int(part.head.rankSteps));
      this.portion = Math.ceil((to - this.from + 1) * Math.min(8, Math.max(0.25, share)));
      this.from = to + 1;
      if (this.from < settled) partial(joined(this.done));
    }
    if (steps.length > 0 || this.done.length === 0) return joined([...this.done, await extremes(this.run, signal, this.from)]);
    return (this.final = joined(this.done));
  }
}
