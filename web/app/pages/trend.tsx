// SPDX-License-Identifier: Apache-2.0
// One value over the steps: smallest, middle and largest over the ranks, and
// single ranks; or several values together; and the value of another run below
// it.
import { useMemo } from "preact/hooks";
import { lastStep } from "../steps";
import { count, parseRanges, quoted, stepOf } from "../format";
import { atSteps, queryGrid, STATISTICS, type Grid } from "../grid";
import { useLoaded } from "../load";
import { Chart, LINE_COLOURS, type Line } from "../parts/chart";
import { Command, Empty, Filters, RunSelect, Select, Show, TextField } from "../parts/basics";
import { TrendStart } from "../parts/trend_start";
import { Table } from "../parts/table";
import { go, href, route, setQuery } from "../route";
import { t } from "../text";

const MOST_LINES = 16;
const MOST_COLUMNS = 2000;
// Number of last steps whose values are listed, with the number of those that are not finite.
const NAMED_STEPS = 32;

// Returns the smallest, middle and largest value over the rows for each column.
function band(grid: Grid): [Float64Array, Float64Array, Float64Array] {
  const out = [0, 1, 2].map(() => new Float64Array(grid.first.length).fill(NaN)) as [Float64Array, Float64Array, Float64Array];
  for (let i = 0; i < grid.first.length; ++i) {
    const seen = grid.rows.map((row) => row.cells[i]).filter(Number.isFinite).sort((a, b) => a - b);
    if (seen.length === 0) continue;
    out[0][i] = seen[0];
    out[1][i] = seen[seen.length >> 1];
    out[2][i] = seen[seen.length - 1];
  }
  return out;
}

// Matches names like the server: by a part, or by a complete name with * and ?.
function isLike(text: string, pattern: string): boolean {
  if (!/[*?]/.test(pattern)) return text.toLowerCase().includes(pattern.toLowerCase());
  const words = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  return new RegExp(`^${words}$`, "i").test(text);
}

export function Trend({ run }: { run: string }) {
  const { name = "", stat = "Norm", by = "rank", lines = "", other = "", scale = "log", from, to } = route.value.query;
  const names = useLoaded(`names ${run} ${stat}`, async (signal) => {
    const last = (await lastStep(run, signal)) ?? 0;
    return queryGrid({ run, rows: "GRID_ROWS_VALUE", statistic: stat, firstStep: Math.max(0, last - NAMED_STEPS + 1), lastStep: last, maxCells: 1_000_000 }, signal);
  });
  const ask = (of: string, signal: AbortSignal) => queryGrid({
    run: of, rows: by === "rank" ? "GRID_ROWS_RANK" : "GRID_ROWS_VALUE", statistic: stat, match: name, values: "GRID_VALUES_ALL",
    firstStep: stepOf(from), lastStep: stepOf(to), maxCells: 1_000_000,
  }, signal);
  const key = JSON.stringify([run, name, stat, by, other, from, to]);
  const loaded = useLoaded(key, async (signal) => name === "" ? undefined : {
    grid: await ask(run, signal), beside: other === "" ? undefined : await ask(other, signal) });
  const drawn = useMemo(() => {
    if (loaded.value === undefined) return undefined;
    const { grid, beside } = loaded.value;
    const out: Line[] = [];
    const bands: [number, number, string][] = [];
    const chosen = parseRanges(lines) ?? [];
    const wanted = by === "rank" && grid.rows.length > 1
      ? grid.rows.filter((row) => chosen.includes(Number(row.name.replace(/^rank/, "")))) : grid.rows;
    if (by === "rank" && grid.rows.length > 1) {
      const [low, middle, high] = band(grid);
      bands.push([0, 1, "rgba(31,119,180,.15)"]);
      out.push({ name: t("largest"), values: high, colour: "#1f77b488" }, { name: t("smallest"), values: low, colour: "#1f77b488" },
        { name: t("middle of {0} ranks", grid.rows.length), values: middle, colour: "#1f77b4" });
    }
    wanted.slice(0, MOST_LINES).forEach((row, i) => out.push({ name: row.name, values: row.cells, colour: LINE_COLOURS[(i + out.length) % LINE_COLOURS.length] }));
    if (beside !== undefined) {
      if (beside.rows.length > 1 && by === "rank") {
        const [low, middle, high] = band(beside).map((values) => atSteps(grid.first, beside, values));
        bands.push([out.length, out.length + 1, "rgba(214,39,40,.12)"]);
        out.push({ name: `${other}: ${t("largest")}`, values: high, colour: "#d6272888", dashed: true }, { name: `${other}: ${t("smallest")}`, values: low, colour: "#d6272888", dashed: true },
          { name: `${other}: ${t("middle of {0} ranks", beside.rows.length)}`, values: middle, colour: "#d62728", dashed: true });
      } else if (beside.rows.length > 0) {
        out.push({ name: other, values: atSteps(grid.first, beside, beside.rows[0].cells), colour: "#d62728", dashed: true });
      }
    }
    const bad = grid.first.map((_, i) => grid.rows.some((row) => row.nonFinite[i] > 0));
    return { lines: out, bad, bands };
  }, [loaded.value, lines, by, other]);
  const open = (step: number) => go(href("step", run, { step, find: name }));
  return (
    <>
      <Filters>
        <TextField label={t("Name (part, or * and ?)")} value={name} wide onChange={(value) => setQuery({ name: value })} />
        <Select label={t("Statistic")} value={stat} onChange={(value) => setQuery({ stat: value })} of={STATISTICS.map((one) => [one, one])} />
        <Select label={t("A line is a")} value={by} onChange={(value) => setQuery({ by: value })} of={[["rank", t("rank")], ["value", t("tensor")]]} />
        {by === "rank" && <TextField label={t("Single ranks, 16 at most")} value={lines} placeholder="0,3" onChange={(value) => setQuery({ lines: value })} />}
        <RunSelect label={t("Overlay another run")} value={other} onChange={(value) => setQuery({ other: value })} />
        <Select label={t("Scale")} value={scale} onChange={(value) => setQuery({ scale: value })} of={[["log", t("logarithmic")], ["linear", t("linear")]]} />
        <TextField label={t("From step")} value={from ?? ""} onChange={(value) => setQuery({ from: value })} />
        <TextField label={t("To step")} value={to ?? ""} onChange={(value) => setQuery({ to: value })} />
      </Filters>
      {name === "" && names.value !== undefined && <TrendStart run={run} other={other} names={names.value.rows.map((row) => row.name)} />}
      {name !== "" && (
        <Show of={loaded}>
          {(value) => value === undefined || drawn === undefined ? null : value.grid.rows.length === 0 ? (
            <Empty><p>{t("No tensor of that name in {0} recorded steps.", count(value.grid.head.steps))}</p></Empty>
          ) : (
            <>
              {value.grid.rows.length > MOST_LINES && by === "value" && <p class="note">{t("The first 16 of {0}.", value.grid.rows.length)}</p>}
              <Chart steps={value.grid.first} lines={drawn.lines} bands={drawn.bands} bad={drawn.bad} log={scale === "log"}
                label={t("{0} of {1} over the steps", stat, name)} onStep={open} />
              {drawn.bad.some(Boolean) && <p class="note">{t("Red marks: NaN or infinite values at that step.")}</p>}
              {value.grid.first.length > MOST_COLUMNS && <p class="note">{t("{0} steps", count(value.grid.first.length))}</p>}
            </>
          )}
        </Show>
      )}
      <h2>{t("Values of the last {0} steps", NAMED_STEPS)}</h2>
      <Show of={names}>
        {(value) => (
          <Table rows={value.rows.filter((row) => isLike(row.name, name))} label={t("Values of the last {0} steps", NAMED_STEPS)} file="values.csv" heightPx={360} rowKey={(row) => row.name}
            rowClass={(row) => (row.nonFinite.some((is) => is > 0) ? "bad" : "")} onOpen={(row) => setQuery({ name: row.name })}
            columns={[
              { name: t("Name"), text: (row) => row.name },
              { name: t("Not finite"), text: (row) => row.nonFinite.reduce((sum, one) => sum + one, 0), numeric: true },
            ]} />
        )}
      </Show>
      <Command text={`rankprobe query --run ${quoted(run)} --statistic ${stat}${by === "rank" ? " --rows rank" : ""}${name ? ` ${quoted(name)}` : ""}`} />
    </>
  );
}
