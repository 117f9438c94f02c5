// SPDX-License-Identifier: Apache-2.0
// All values of one process at one step, in the order in which they were recorded,
// and one call of it with its stack.
import { useMemo } from "preact/hooks";
import { stream } from "../api";
import { dtypeName, isBad, leavesOf, numbersOf, shapeText, type Leaf, type Numbers } from "../calls";
import { count, number, quoted } from "../format";
import { useLoaded } from "../load";
import type { CallEntry } from "../messages";
import { Card, Command, Empty, Show, Stack, TextField } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { href, route, setQuery } from "../route";
import { queryGrid } from "../grid";
import { t } from "../text";
import { stepOf } from "./heat";

interface Line {
  place: number;
  entry: CallEntry;
  leaf: Leaf;
  numbers: Numbers;
  bad: boolean;
}

function shown(value: number | undefined): string {
  return value === undefined ? "–" : number(value);
}

function CallCard({ run, entry }: { run: string; entry: CallEntry }) {
  return (
    <Card title={entry.entry}>
      <p>
        {entry.parent && <>{t("in")} <a href={href("step", run, { ...route.value.query, call: entry.parent })}>{entry.parent}</a>{". "}</>}
        <a href={href("step", run, { ...route.value.query, call: undefined })}>{t("Close")}</a>
      </p>
      <ul class="leaves">
        {leavesOf(entry).map((leaf) => (
          <li key={leaf.name} class={isBad(leaf.tensor) ? "bad" : ""}>
            <a href={href("trend", run, { name: `${entry.entry}.${leaf.name}` })}>{leaf.name}</a>{" "}
            {leaf.tensor ? `${dtypeName(leaf.tensor)} ${shapeText(leaf.tensor)} Max ${shown(numbersOf(leaf.tensor).max)} Min ${shown(numbersOf(leaf.tensor).min)} ` +
              `Mean ${shown(numbersOf(leaf.tensor).mean)} Norm ${shown(numbersOf(leaf.tensor).norm)}` : leaf.text}
          </li>
        ))}
      </ul>
      {entry.stack && entry.stack.length > 0 && (
        <>
          <h3>{t("Stack")}</h3>
          <Stack frames={entry.stack} />
        </>
      )}
    </Card>
  );
}

export function Step({ run }: { run: string }) {
  const { step, rank, pid, find = "", call: chosen = "" } = route.value.query;
  const places = useLoaded(`places ${run}`, (signal) => queryGrid({ run, rows: "GRID_ROWS_RANK", statistic: "Max", maxCells: 200_000 }, signal));
  const where = useMemo(() => {
    const grid = places.value;
    if (grid === undefined || grid.first.length === 0) return undefined;
    const last = grid.last[grid.last.length - 1];
    const names = grid.rows.map((row) => row.name).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const given = rank !== undefined ? (rank.startsWith("proc") ? rank : `rank${rank}`) : pid !== undefined ? `proc${pid}` : names[0];
    return { step: stepOf(step) ?? last, process: given, names };
  }, [places.value, step, rank, pid]);
  const calls = useLoaded(where === undefined ? "" : `calls ${run} ${where.step} ${where.process}`, async (signal) => {
    const out: CallEntry[] = [];
    if (where === undefined || where.process === undefined) return out;
    const id = where.process.startsWith("rank") ? { rank: where.process.slice(4) } : { pid: where.process.slice(4) };
    for await (const entry of stream<CallEntry>("ArchiveService/ListCalls", { run, step: String(where.step), ...id, context: true }, signal)) out.push(entry);
    return out;
  });
  const lines = useMemo(() => (calls.value ?? []).flatMap((entry, place) => leavesOf(entry).filter((leaf) => leaf.tensor !== undefined).map((leaf): Line => ({
    place, entry, leaf, numbers: numbersOf(leaf.tensor!), bad: isBad(leaf.tensor) }))), [calls.value]);
  const wanted = find.toLowerCase().replace(/\*/g, "");
  const matching = useMemo(() => (wanted === "" ? lines : lines.filter((line) => `${line.entry.entry}.${line.leaf.name}`.toLowerCase().includes(wanted))), [lines, wanted]);
  const open = calls.value?.find((entry) => entry.entry === chosen);
  const value = (name: keyof Numbers) => (line: Line) => line.numbers[name] ?? "–";
  const columns: Column<Line>[] = [
    { name: "#", text: (line) => line.place, numeric: true },
    { name: t("Call"), text: (line) => line.entry.entry },
    { name: t("Value"), text: (line) => line.leaf.name },
    { name: t("Type"), text: (line) => dtypeName(line.leaf.tensor!) },
    { name: t("Shape"), text: (line) => shapeText(line.leaf.tensor!) },
    ...(["max", "min", "mean", "norm"] as const).map((name): Column<Line> => ({
      name: name[0].toUpperCase() + name.slice(1), text: value(name), show: (line) => shown(line.numbers[name]), numeric: true })),
  ];
  const id = where?.process?.startsWith("rank") ? ` --ranks ${where.process.slice(4)}` : "";
  return (
    <Show of={places}>
      {() => where === undefined || where.process === undefined ? (
        <Empty><p>{t("Nothing is recorded yet.")}</p></Empty>
      ) : (
        <>
          <div class="form">
            <TextField label={t("Step")} value={String(where.step)} onChange={(text) => setQuery({ step: text, call: undefined })} />
            <label class="field">
              <span>{t("Process")}</span>
              <select value={where.process} onChange={(event) => setQuery({ rank: event.currentTarget.value.replace(/^rank/, ""), pid: undefined })}>
                {where.names.map((name) => <option key={name} value={name}>{name}</option>)}
              </select>
            </label>
            <TextField label={t("Names")} value={find} wide onChange={(text) => setQuery({ find: text })} />
          </div>
          {open && <CallCard run={run} entry={open} />}
          <Show of={calls}>
            {(all) => (
              <>
                <p class="note">{t("{0} calls, {1} tensors, {2} of them with NaN or infinite values", count(all.length), count(lines.length), count(lines.filter((line) => line.bad).length))}</p>
                <Table rows={matching} columns={columns} file={`step${where.step}_${where.process}.csv`} label={t("Values of the step")}
                  rowKey={(line) => `${line.place} ${line.leaf.name}`} rowClass={(line) => (line.bad ? "bad" : "")}
                  onOpen={(line) => setQuery({ call: line.entry.entry })} />
              </>
            )}
          </Show>
          <Command text={`rankprobe export --run ${quoted(run)} --steps ${where.step}${id} -o dump`} />
        </>
      )}
    </Show>
  );
}
