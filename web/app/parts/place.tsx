// SPDX-License-Identifier: Apache-2.0
// One process at one step, named by the address, and its calls.
import { useMemo } from "preact/hooks";
import { stream } from "../api";
import { queryGrid } from "../grid";
import { stepToShow } from "../steps";
import { useLoaded, type Loaded } from "../load";
import type { CallEntry } from "../messages";
import { processId, stepOf } from "../format";
import { route, setQuery } from "../route";
import { t } from "../text";
import { TextField } from "./basics";

export interface Place {
  step: number;
  // "rank3" or "proc4711"; undefined if there is none.
  process: string | undefined;
  names: string[];
}

export function usePlace(run: string, withTensors = false): { places: Loaded<unknown>; where: Place | undefined; calls: Loaded<CallEntry[]> } {
  const { step, rank } = route.value.query;
  const asked = stepOf(step);
  const places = useLoaded(`places ${run} ${asked}`, async (signal) => {
    const at = asked ?? (await stepToShow(run, withTensors, signal));
    return queryGrid({ run, rows: "GRID_ROWS_RANK", statistic: "Max", firstStep: at, lastStep: at }, signal);
  });
  const where = useMemo((): Place | undefined => {
    const grid = places.value;
    if (grid === undefined || (grid.first.length === 0 && asked === undefined)) return undefined;
    const names = grid.rows.map((row) => row.name).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const given = rank !== undefined ? (rank.startsWith("proc") ? rank : `rank${rank}`) : names[0];
    if (given !== undefined && !names.includes(given)) names.push(given);
    return { step: asked ?? grid.last[grid.last.length - 1], process: given, names };
  }, [places.value, asked, rank]);
  const calls = useLoaded(where === undefined ? "" : `calls ${run} ${where.step} ${where.process}`, async (signal) => {
    const out: CallEntry[] = [];
    if (where === undefined || where.process === undefined) return out;
    for await (const entry of stream<CallEntry>("ArchiveService/ListCalls", { run, step: String(where.step), ...processId(where.process), context: true }, signal)) out.push(entry);
    return out;
  });
  return { places, where, calls };
}

export function PlaceFields({ where }: { where: Place }) {
  return (
    <>
      <TextField label={t("Step")} value={String(where.step)} onChange={(text) => setQuery({ step: text, call: undefined })} />
      <label class="field">
        <span>{t("Process")}</span>
        <select value={where.process} onChange={(event) => setQuery({ rank: event.currentTarget.value.replace(/^rank/, "") })}>
          {where.names.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
      </label>
    </>
  );
}
