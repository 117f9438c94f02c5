// SPDX-License-Identifier: Apache-2.0
// One answer of QueryGrid, as columns of numbers.
import { stream } from "./api";
import { double, int } from "./format";
import type { GridHead, GridRow } from "./messages";

export const STATISTICS = ["Norm", "Max", "Min", "Mean", "NanCount", "InfCount", "ZeroCount", "Std"];

export interface GridQuery {
  run: string;
  firstStep?: number;
  lastStep?: number;
  ranks?: number[];
  match?: string;
  values?: "GRID_VALUES_OUTPUTS" | "GRID_VALUES_INPUTS" | "GRID_VALUES_ALL";
  statistic?: string;
  rows: "GRID_ROWS_VALUE" | "GRID_ROWS_CALL" | "GRID_ROWS_MODULE" | "GRID_ROWS_RANK";
  reducer?: "GRID_REDUCER_MAX" | "GRID_REDUCER_MIN" | "GRID_REDUCER_MEAN";
  maxCells?: number;
}

export interface Row {
  name: string;
  // NaN where nothing is recorded; `counts` tells it from a NaN that was.
  cells: Float64Array;
  counts: Uint32Array;
  nonFinite: Uint32Array;
  // Of the largest or smallest; -1: none.
  ranks: Float64Array;
}

export interface Grid {
  head: GridHead;
  first: number[];
  last: number[];
  rows: Row[];
}

export async function queryGrid(query: GridQuery, signal?: AbortSignal): Promise<Grid> {
  const { firstStep, lastStep, ...rest } = query;
  const body: Record<string, unknown> = { ...rest };
  if (firstStep !== undefined) body.firstStep = String(firstStep);
  if (lastStep !== undefined) body.lastStep = String(lastStep);
  let grid: Grid | undefined;
  for await (const reply of stream<{ head?: GridHead; row?: GridRow }>("ArchiveService/QueryGrid", body, signal)) {
    if (reply.head !== undefined) {
      grid = { head: reply.head, first: reply.head.firstSteps.map(Number), last: reply.head.lastSteps.map(Number), rows: [] };
    } else if (reply.row !== undefined && grid !== undefined) {
      const { name, cells, counts, nonFinite, ranks } = reply.row;
      grid.rows.push({
        name,
        cells: Float64Array.from(cells, (cell, i) => (counts[i] > 0 ? double(cell) : NaN)),
        counts: Uint32Array.from(counts),
        nonFinite: Uint32Array.from(nonFinite),
        ranks: Float64Array.from(ranks, int),
      });
    }
  }
  if (grid === undefined) throw new Error("the collector sent no head");
  return grid;
}

export function stepsText(grid: Grid, column: number): string {
  return grid.first[column] === grid.last[column] ? String(grid.first[column]) : `${grid.first[column]}–${grid.last[column]}`;
}
