// SPDX-License-Identifier: Apache-2.0
// The extremes of each rank and step of a run that may be growing: what is behind
// its slowest rank is asked for once, only the rest again and again.
import { call } from "./api";
import { int } from "./format";
import { queryGrid, type Grid, type Row } from "./grid";
import type { AgentInfo } from "./messages";

// Steps behind the slowest connected rank whose records may still be on their way.
const MARGIN_STEPS = 64;
const MAX_CELLS = 200_000;

// Largest values; what is not finite is also looked for among the smallest, where
// alone a negative infinity shows.
export async function extremes(run: string, signal: AbortSignal, firstStep?: number, lastStep?: number): Promise<Grid> {
  const ask = (statistic: string) => queryGrid(
    { run, rows: "GRID_ROWS_RANK", statistic, values: "GRID_VALUES_ALL", maxCells: MAX_CELLS, firstStep, lastStep }, signal);
  const [grid, smallest] = await Promise.all([ask("Max"), ask("Min")]);
  const of = new Map(smallest.rows.map((row) => [row.name, row]));
  const column = new Map(smallest.first.map((step, i) => [step, i]));
  for (const row of grid.rows) {
    const other = of.get(row.name);
    grid.first.forEach((step, i) => {
      const at = column.get(step);
      if (other !== undefined && at !== undefined) row.nonFinite[i] += other.nonFinite[at];
    });
  }
  return grid;
}

// One grid of those of neighbouring ranges of steps, in order.
export function joined(parts: Grid[]): Grid {
  if (parts.length === 1) return parts[0];
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
  // The first step that is not in `done`.
  private from = 0;
  private final: Grid | undefined;

  constructor(private readonly run: string) {}

  async load(signal: AbortSignal): Promise<Grid> {
    const { agents } = await call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run: this.run }, signal);
    const steps = agents.filter((agent) => agent.connected).map((agent) => int(agent.step));
    // A run that has ended does not grow.
    if (steps.length === 0 && this.final !== undefined) return this.final;
    const settled = Math.min(...steps) - MARGIN_STEPS;
    if (steps.length > 0 && settled - this.from >= MARGIN_STEPS) {
      const part = await extremes(this.run, signal, this.from, settled - 1);
      this.done.push(part);
      this.from = settled;
    }
    const grid = joined([...this.done, await extremes(this.run, signal, this.from)]);
    this.final = steps.length === 0 ? grid : undefined;
    return grid;
  }
}
