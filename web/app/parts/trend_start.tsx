// SPDX-License-Identifier: Apache-2.0
// First view of a run's steps: its loss, the norm of its gradients and the modules that moved most.
import { useMemo } from "preact/hooks";
import { atSteps, queryGrid, type Grid, type Row } from "../grid";
import { useLoaded } from "../load";
import { go, href, setQuery } from "../route";
import { t } from "../text";
import { Show } from "./basics";
import { Chart, LINE_COLOURS, type Line } from "./chart";

const LOSS = /(^|[._])(cross_entropy|\w*loss)\b.*\.(forward|output)\b.*output/i;
// Numbers of task monitor, which records no call of a loss function.
const MONITORED_LOSS = /^Training\.\d+\.debug\.loss$/;
const MONITORED_NORM = /^Training\.\d+\.debug\.grad_norm$/;
const MAX_CELLS = 400_000;

// The server takes a name for a part of names, and a pattern for a complete one: "..loss" is a part of "..loss_tokens".
function exactly(name: string): string {
  return name.replace(/.$/, "?");
}

const MOST_MODULES = 6;

// Returns how far a row moved from its median, as the logarithm of a ratio; infinite if it has values that are not
// finite.
function movement(row: Row): number {
  if (row.nonFinite.some((count) => count > 0)) return Infinity;
  const sizes = row.cells.filter(Number.isFinite).map(Math.abs).filter((value) => value > 0).sort();
  if (sizes.length < 2) return 0;
  const middle = sizes[sizes.length >> 1];
  return Math.max(Math.log(sizes[sizes.length - 1] / middle), Math.log(middle / sizes[0]));
}

// Returns the norm of all rows together for each column; NaN if no row has a value.
function together(grid: Grid): Float64Array {
  return Float64Array.from(grid.first, (_, i) => {
    const seen = grid.rows.filter((row) => row.counts[i] > 0);
    return seen.length === 0 ? NaN : Math.sqrt(seen.reduce((sum, row) => sum + row.cells[i] ** 2, 0));
  });
}

function badColumns(grid: Grid): boolean[] {
  return grid.first.map((_, i) => grid.rows.some((row) => row.nonFinite[i] > 0));
}

function linesOf(rows: Row[]): Line[] {
  return rows.map((row, i) => ({ name: row.name, values: row.cells, colour: LINE_COLOURS[i % LINE_COLOURS.length] }));
}

// Makes a request for this run and, if there is one, for the other run; none without `ask`.
function useBoth(key: string, runs: string[], ask: ((run: string, signal: AbortSignal) => Promise<Grid>) | undefined) {
  return useLoaded<Grid[]>(`${key} ${runs.join(" ")}`, async (signal) => (ask === undefined ? [] : Promise.all(runs.map((run) => ask(run, signal)))));
}

function besideLine(run: string, steps: number[], grid: Grid | undefined, values: (grid: Grid) => Float64Array): Line[] {
  return grid === undefined || grid.rows.length === 0 ? [] : [{ name: run, values: atSteps(steps, grid, values(grid)), colour: "#d62728", dashed: true }];
}

// `names` are the values of some steps, in which a loss is searched. `other` is a run to draw over this one, or "".
export function TrendStart({ run, other, names }: { run: string; other: string; names: string[] }) {
  const loss = names.find((name) => LOSS.test(name)) ?? names.find((name) => MONITORED_LOSS.test(name));
  const norm = names.find((name) => MONITORED_NORM.test(name));
  const runs = other === "" ? [run] : [run, other];
  const losses = useBoth(`loss ${loss}`, runs, loss === undefined ? undefined : (of, signal) =>
    queryGrid({ run: of, rows: "GRID_ROWS_RANK", statistic: "Mean", match: exactly(loss), maxCells: MAX_CELLS }, signal));
  const gradients = useBoth(`gradients ${norm}`, runs, (of, signal) =>
    queryGrid({ run: of, rows: "GRID_ROWS_VALUE", statistic: "Norm", match: norm === undefined ? "parameters_grad" : exactly(norm), maxCells: MAX_CELLS }, signal));
  const modules = useLoaded(`modules ${run}`, (signal) =>
    queryGrid({ run, rows: "GRID_ROWS_MODULE", statistic: "Norm", values: "GRID_VALUES_OUTPUTS", maxCells: MAX_CELLS }, signal));
  const lossLines = useMemo(() => {
    const [mine, theirs] = losses.value ?? [];
    return mine === undefined ? [] : [...linesOf(mine.rows.slice(0, LINE_COLOURS.length)), ...besideLine(other, mine.first, theirs, (grid) => grid.rows[0].cells)];
  }, [losses.value]);
  const gradientLines = useMemo((): Line[] => {
    const [mine, theirs] = gradients.value ?? [];
    return mine === undefined ? [] : [{ name: t("norm of all gradients"), values: together(mine), colour: LINE_COLOURS[0] }, ...besideLine(other, mine.first, theirs, together)];
  }, [gradients.value]);
  const moved = useMemo(() => (modules.value?.rows ?? []).filter((row) => row.name.startsWith("Module.")).map((row) => ({ row, by: movement(row) })).sort((a, b) => b.by - a.by).slice(0, MOST_MODULES).map(({ row }) => row), [modules.value]);
  const movedLines = useMemo(() => linesOf(moved), [moved]);
  const bad = useMemo(() => [losses.value?.[0], gradients.value?.[0], modules.value].map((grid) => (grid === undefined ? [] : badColumns(grid))), [losses.value, gradients.value, modules.value]);
  const open = (step: number) => go(href("step", run, { step }));
  return (
    <>
      <h2>{loss === undefined ? t("Loss") : t("Loss: {0}, each rank", loss)}</h2>
      <Show of={losses}>
        {(grids) => grids.length === 0 || grids[0].rows.length === 0 ? <p class="note">{t("No call of a loss function is recorded. Levels L1 and mix record such calls.")}</p>
          : <Chart steps={grids[0].first} lines={lossLines} bad={bad[0]} log={false} label={t("Loss over the steps")} onStep={open} />}
      </Show>
      <h2>{norm === undefined ? t("Norm of all parameters' gradients before reduction, the largest over the ranks") : t("Norm of all gradients as the optimizer takes them, the largest over the ranks")}</h2>
      <Show of={gradients}>
        {(grids) => grids.length === 0 || grids[0].rows.length === 0 ? <p class="note">{t("No gradient of a parameter is recorded. Levels L0 and mix record them.")}</p>
          : <Chart steps={grids[0].first} lines={gradientLines} bad={bad[1]} log label={t("Norm of the gradients over the steps")} onStep={open} />}
      </Show>
      <h2>{t("Modules whose outputs moved most")}</h2>
      <Show of={modules}>
        {(grid) => moved.length === 0 ? <p class="note">{t("No module is recorded. Levels L0 and mix record modules.")}</p> : (
          <>
            <Chart steps={grid.first} lines={movedLines} bad={bad[2]} log label={t("Norm of the modules' outputs over the steps")} onStep={open} />
            <p>{moved.map((row) => <button key={row.name} type="button" class="chip" onClick={() => setQuery({ name: row.name })}>{row.name}</button>)}</p>
          </>
        )}
      </Show>
    </>
  );
}
