// SPDX-License-Identifier: Apache-2.0
// One answer of QueryGrid, as columns of numbers.
import { ApiError, post } from "./api";
import type { GridHead } from "./messages";

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
  leastStepsPerColumn?: number;
}

export interface Row {
  name: string;
  // NaN if nothing was recorded; `counts` distinguishes this from a recorded NaN.
  cells: Float64Array;
  counts: Uint32Array;
  nonFinite: Uint32Array;
  // The rank of the largest or smallest value; -1 if there is none.
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
  const body: Record<string, unknown> = { ...rest, packed: true };
  if (firstStep !== undefined) body.firstStep = String(firstStep);
  if (lastStep !== undefined) body.lastStep = String(lastStep);
  const answer = await post("ArchiveService/QueryGrid", body, signal);
  return gridOf(await answer.arrayBuffer());
}

// The archive stores columns of this many steps ready-made, whatever their number.
const TOGETHER = 64;
// For a range of up to this many steps, requesting single steps is fast.
const QUICK = 512;

// Returns a picture of steps `first` to `last`; if the fine one takes longer, a coarse one is passed to `partial`
// first. If the range is so long that the fine one shows no more detail, only the coarse one is loaded.
export async function pictureGrid(query: GridQuery, first: number, last: number, partial: (grid: Grid) => void, signal?: AbortSignal): Promise<Grid> {
  const width = last - first + 1;
  if (width <= QUICK) return queryGrid(query, signal);
  const coarse = await queryGrid({ ...query, leastStepsPerColumn: TOGETHER }, signal);
  if (Number(coarse.head.stepsPerColumn) < TOGETHER || width > TOGETHER * TOGETHER) return coarse;
  partial(coarse);
  return queryGrid(query, signal);
}

const HEAD = 0;
const ERROR = 2;
const [WIDE, ONE_COUNT, ONE_NON_FINITE, ONE_RANK] = [1, 2, 4, 8];

// Parses the frames of web/gateway/grid_bytes.h.
export function gridOf(bytes: ArrayBuffer): Grid {
  const view = new DataView(bytes);
  const decoder = new TextDecoder();
  let grid: Grid | undefined;
  let at = 0;
  const word = () => view.getUint32((at += 4) - 4, true);
  const text = (size: number) => decoder.decode(new Uint8Array(bytes, (at += size) - size, size));
  // The bytes after a name are not aligned for an array of numbers, so they are copied.
  const piece = (size: number) => bytes.slice(at, (at += size));
  const numbers = (columns: number, one: boolean): Uint32Array => (one ? new Uint32Array(columns).fill(word()) : new Uint32Array(piece(4 * columns)));
  while (at < bytes.byteLength) {
    const [kind, size] = [word(), word()];
    if (kind === HEAD) {
      const head = JSON.parse(text(size)) as GridHead;
      grid = { head, first: head.firstSteps.map(Number), last: head.lastSteps.map(Number), rows: [] };
      continue;
    }
    if (kind === ERROR || grid === undefined) {
      const { error } = JSON.parse(text(size));
      throw new ApiError(error.code, error.message);
    }
    const [flags, columns, length] = [word(), word(), word()];
    const name = text(length);
    const cells = (flags & WIDE) !== 0 ? new Float64Array(piece(8 * columns)) : new Float64Array(new Float32Array(piece(4 * columns)));
    const counts = numbers(columns, (flags & ONE_COUNT) !== 0);
    const nonFinite = numbers(columns, (flags & ONE_NON_FINITE) !== 0);
    const ranks = new Float64Array(new Int32Array(numbers(columns, (flags & ONE_RANK) !== 0).buffer));
    // Frames with wide numbers have 0 for values that were not recorded.
    if ((flags & WIDE) !== 0) counts.forEach((one, i) => one === 0 && (cells[i] = NaN));
    grid.rows.push({ name, cells, counts, nonFinite, ranks });
  }
  if (grid === undefined) throw new Error("the collector sent no head");
  return grid;
}

// Returns the values of another run's grid at these steps; NaN if it has none.
export function atSteps(steps: number[], grid: Grid, values: Float64Array): Float64Array {
  const of = new Map(grid.first.map((step, i) => [step, values[i]]));
  return Float64Array.from(steps, (step) => of.get(step) ?? NaN);
}

export function stepsText(grid: Grid, column: number): string {
  return grid.first[column] === grid.last[column] ? String(grid.first[column]) : `${grid.first[column]}–${grid.last[column]}`;
}
