// SPDX-License-Identifier: Apache-2.0
// All values of one process at one step, in the order in which they were recorded,
// and one call of it with its stack.
import { useMemo } from "preact/hooks";
import { dtypeName, isBad, leavesOf, numbersOf, shapeText, type Leaf, type Numbers } from "../calls";
import { count, quoted } from "../format";
import type { CallEntry } from "../messages";
import { Command, Empty, Show, TextField } from "../parts/basics";
import { CallCard, shown } from "../parts/call_card";
import { PlaceFields, usePlace } from "../parts/place";
import { Table, type Column } from "../parts/table";
import { route, setQuery } from "../route";
import { t } from "../text";

interface Line {
  place: number;
  entry: CallEntry;
  leaf: Leaf;
  numbers: Numbers;
  bad: boolean;
}

export function Step({ run }: { run: string }) {
  const { find = "", call: chosen = "" } = route.value.query;
  const { places, where, calls } = usePlace(run);
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
            <PlaceFields where={where} />
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
