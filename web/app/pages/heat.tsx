// SPDX-License-Identifier: Apache-2.0
// A statistic of every module, call or rank over the steps, as one picture.
import { count, int, parseRanges, quoted, stepOf } from "../format";
import { pictureGrid, STATISTICS, type Grid, type GridQuery } from "../grid";
import { useLoaded } from "../load";
import { Command, Empty, Filters, Select, Show, TextField } from "../parts/basics";
import { Heatmap } from "../parts/heatmap";
import { go, href, route, setQuery } from "../route";
import { t } from "../text";
import { lastStep } from "../steps";

const ROWS: Record<string, GridQuery["rows"]> = { module: "GRID_ROWS_MODULE", rank: "GRID_ROWS_RANK", call: "GRID_ROWS_CALL", value: "GRID_ROWS_VALUE" };
const REDUCERS: Record<string, NonNullable<GridQuery["reducer"]>> = { max: "GRID_REDUCER_MAX", min: "GRID_REDUCER_MIN", mean: "GRID_REDUCER_MEAN" };
const VALUES: Record<string, NonNullable<GridQuery["values"]>> = { outputs: "GRID_VALUES_OUTPUTS", inputs: "GRID_VALUES_INPUTS", all: "GRID_VALUES_ALL" };

// Steps shown if the address names none.
const USUAL_STEPS = 1000;

// Buttons that move along the steps and zoom.
function Move({ grid }: { grid: Grid }) {
  const [first, last] = [grid.first[0], grid.last[grid.last.length - 1]];
  const width = last - first + 1;
  const to = (from: number, until: number) => setQuery({ from: Math.max(0, Math.round(from)), to: Math.max(0, Math.round(until)) });
  const half = Math.max(1, Math.floor(width / 2));
  return (
    <div class="form moves" role="group" aria-label={t("Steps shown")}>
      <button type="button" disabled={first <= 0} onClick={() => to(first - half, Math.max(first - half, 0) + width - 1)}>{t("Earlier")}</button>
      <button type="button" onClick={() => to(first + half, last + half)}>{t("Later")}</button>
      <button type="button" disabled={width < 2} onClick={() => to(first + width / 4, Math.max(first + width / 4, last - width / 4))}>{t("Nearer")}</button>
      <button type="button" onClick={() => to(first - half, last + half)}>{t("Farther")}</button>
      <button type="button" onClick={() => setQuery({ from: 0, to: undefined })}>{t("All steps")}</button>
    </div>
  );
}

export function Heat({ run }: { run: string }) {
  const { rows = "module", stat = "Norm", match = "", reduce = "max", of = "outputs", from, to, ranks = "", colours = rows === "rank" ? "all" : "row" } = route.value.query;
  const grid = useLoaded<Grid>(JSON.stringify([run, rows, stat, match, reduce, of, from, to, ranks]), async (signal, partial) => {
    // All steps of a long run are only shown if the address names the first step.
    const last = to && from ? stepOf(to) : await lastStep(run, signal);
    const first = from ? stepOf(from) : to ? 0 : last === undefined ? undefined : Math.max(0, last - USUAL_STEPS + 1);
    return pictureGrid({
      run, rows: ROWS[rows] ?? ROWS.module, statistic: stat, match, reducer: REDUCERS[reduce], values: VALUES[of], ranks: parseRanges(ranks),
      firstStep: first, lastStep: stepOf(to), maxCells: 400_000,
    }, first ?? 0, last ?? 0, partial, signal);
  });
  const words = ["rankprobe query --run", quoted(run), "--rows", rows, "--statistic", stat, "--reduce", reduce, "--of", of];
  if (from) words.push("--from-step", from);
  if (to) words.push("--to-step", to);
  if (ranks) words.push("--ranks", ranks);
  if (match) words.push(quoted(match));
  return (
    <>
      <Filters>
        <Select label={t("A row is a")} value={rows} onChange={(value) => setQuery({ rows: value })}
          of={[["module", t("module")], ["rank", t("rank")], ["call", t("call")], ["value", t("tensor")]]} />
        <Select label={t("Statistic")} value={stat} onChange={(value) => setQuery({ stat: value })} of={STATISTICS.map((name) => [name, name])} />
        <Select label={t("Reduce by")} value={reduce} onChange={(value) => setQuery({ reduce: value })}
          of={[["max", t("the largest")], ["min", t("the smallest")], ["mean", t("the mean")]]} />
        <Select label={t("Of")} value={of} onChange={(value) => setQuery({ of: value })}
          of={[["outputs", t("outputs and gradients")], ["inputs", t("inputs and parameters")], ["all", t("all")]]} />
        <TextField label={t("Names (part, or * and ?)")} value={match} wide onChange={(value) => setQuery({ match: value })} />
        <TextField label={t("Ranks (all if empty)")} value={ranks} onChange={(value) => setQuery({ ranks: value })} />
        <TextField label={t("From step")} value={from ?? ""} onChange={(value) => setQuery({ from: value })} />
        <TextField label={t("To step")} value={to ?? ""} onChange={(value) => setQuery({ to: value })} />
        <Select label={t("Colours")} value={colours} onChange={(value) => setQuery({ colours: value })}
          of={[["row", t("a scale for each row")], ["all", t("one scale for all rows")]]} />
      </Filters>
      <Show of={grid}>
        {(value) => value.rows.length === 0 || value.first.length === 0 ? (
          <Empty><p>{int(value.head.tensors) === 0 ? t("No tensor of that name in {0} recorded steps.", count(value.head.steps)) : t("{0} tensors match, and none has this statistic.", count(value.head.tensors))}</p></Empty>
        ) : (
          <>
            <p class="note">
              {t("{0} rows, {1} steps", count(value.head.rows), count(value.head.steps))}
              {!from && !to && value.first[0] > 0 && `, ${t("the last {0}; “From step” 0 shows all", count(USUAL_STEPS))}`}
              {int(value.head.stepsPerColumn) > 1 && `, ${t("{0} steps a column", count(value.head.stepsPerColumn))}`}
              {int(value.head.incompleteRankSteps) > 0 && `, ${t("{0} rank-steps are incomplete", count(value.head.incompleteRankSteps))}`}
            </p>
            <Move grid={value} />
            <Heatmap grid={value} whole={rows === "rank"} perRow={colours === "row"} label={t("{0} of each {1} and step", stat, t(rows))} onOpen={(row, column) => {
              if (value.first[column] !== value.last[column]) setQuery({ from: value.first[column], to: value.last[column] });
              else if (rows === "rank") go(href("step", run, { step: value.first[column], rank: row.name.replace(/^rank/, "") }));
              else go(href("step", run, { step: value.first[column], rank: row.ranks[column] >= 0 ? row.ranks[column] : undefined, find: row.name }));
            }} />
          </>
        )}
      </Show>
      <Command text={words.join(" ")} />
    </>
  );
}
