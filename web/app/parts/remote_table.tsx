// SPDX-License-Identifier: Apache-2.0
// A table on the server: only the visible rows are loaded, and only they are in the document. The server sorts and
// filters.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, type ApiError } from "../api";
import { count, int } from "../format";
import type { JobRows } from "../jobs";
import { asApiError } from "../load";
import { t } from "../text";
import { Failure } from "./basics";
import { onRowKey } from "./table";

export interface RemoteRow {
  row: number;
  cells: string[];
}

interface Props {
  id: string;
  file: string;
  find: string;
  results: string[];
  sort: string;
  down: boolean;
  onSort: (column: string, down: boolean) => void;
  onOpen: (row: RemoteRow, columns: string[]) => void;
  // Counts over all rows that match `find`.
  onCounts: (counts: Record<string, number>) => void;
  rowClass: (row: RemoteRow, columns: string[]) => string;
  // Names of the columns to show; unknown names are skipped.
  show?: (columns: string[]) => string[];
  // Title of a column; by default its name.
  titleOf?: (column: string) => string;
  label: string;
  heightPx?: number;
}

const ROW_PX = 26;
const WINDOW = 200;
const PAGES_KEPT = 16;

interface Loaded {
  key: string;
  columns: string[];
  total: number;
  matching: number;
  // Rows by the number of their window.
  windows: Map<number, RemoteRow[]>;
}

function isNumber(text: string): boolean {
  return /^[-+]?(\d|\.\d|nan|inf)/i.test(text);
}

export function RemoteTable(props: Props) {
  const { id, file, find, results, sort, down, heightPx = 520 } = props;
  const key = JSON.stringify([id, file, find, results, sort, down]);
  const [state, setState] = useState<Loaded>({ key: "", columns: [], total: 0, matching: 0, windows: new Map() });
  const [error, setError] = useState<ApiError | undefined>();
  const [top, setTop] = useState(0);
  const asked = useRef(new Set<string>());
  const latest = useRef(key);
  latest.current = key;
  const body = useRef<HTMLDivElement>(null);
  const ask = (number: number) => {
    const name = `${key} ${number}`;
    if (asked.current.has(name)) return;
    asked.current.add(name);
    call<JobRows>("JobRows", { id, file, find, results, sort, descending: down, offset: String(number * WINDOW), count: WINDOW }).then((answer) => {
      asked.current.delete(name);
      if (latest.current !== key) return;
      setError(undefined);
      setState((before) => {
        const windows = before.key === key ? new Map(before.windows) : new Map<number, RemoteRow[]>();
        windows.delete(number);
        windows.set(number, answer.rows.map((row) => ({ row: int(row.row), cells: row.cells })));
        // Deletes the oldest windows, so that a table of any length needs little memory here.
        while (windows.size > PAGES_KEPT) windows.delete(windows.keys().next().value!);
        return { key, columns: answer.columns, total: int(answer.total), matching: int(answer.matching), windows };
      });
      props.onCounts(Object.fromEntries(Object.entries(answer.results).map(([name, value]) => [name, int(value)])));
    }, (failure) => {
      asked.current.delete(name);
      if (latest.current === key) setError(asApiError(failure));
    });
  };
  const first = Math.max(0, Math.floor(top / ROW_PX) - 10);
  const last = first + Math.ceil(heightPx / ROW_PX) + 20;
  useEffect(() => {
    body.current?.scrollTo({ top: 0 });
    setTop(0);
  }, [key]);
  useEffect(() => {
    for (let number = Math.floor(first / WINDOW); number <= Math.floor(last / WINDOW); ++number) {
      if (state.key === key && (state.windows.has(number) || number * WINDOW >= state.matching) && !(number === 0 && state.windows.size === 0)) continue;
      ask(number);
    }
  }, [key, first, state]);
  const { columns, matching } = state;
  const wanted = props.show?.(columns) ?? columns;
  const places = wanted.map((name) => columns.indexOf(name)).filter((place) => place >= 0);
  const end = Math.min(matching, last);
  const rows: (RemoteRow | undefined)[] = [];
  for (let i = first; i < end; ++i) rows.push(state.windows.get(Math.floor(i / WINDOW))?.[i % WINDOW]);
  return (
    <div class="table remote" aria-busy={state.key !== key}>
      {error && <Failure error={error} />}
      <div class="table-tools"><span role="status">{matching === state.total ? t("{0} rows", count(matching)) : t("{0} of {1} rows", count(matching), count(state.total))}</span></div>
      <div class="table-body" ref={body} tabIndex={0} role="region" aria-label={props.label} style={{ maxHeight: `${heightPx}px` }}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <table>
          <thead>
            <tr>
              {places.map((place) => (
                <th key={place} aria-sort={sort === columns[place] ? (down ? "descending" : "ascending") : "none"}>
                  <button onClick={() => props.onSort(columns[place], sort === columns[place] ? !down : true)}>
                    {props.titleOf?.(columns[place]) ?? columns[place]}{sort === columns[place] ? (down ? " ▼" : " ▲") : ""}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {first > 0 && <tr class="spacer" style={{ height: `${first * ROW_PX}px` }}><td colSpan={places.length} /></tr>}
            {rows.map((row, i) => row === undefined ? <tr key={`w${first + i}`}><td colSpan={places.length}>…</td></tr> : (
              <tr key={row.row} class={props.rowClass(row, columns)} tabIndex={0} onClick={() => props.onOpen(row, columns)} onKeyDown={(event) => onRowKey(event, () => props.onOpen(row, columns))}>
                {places.map((place) => <td key={place} class={isNumber(row.cells[place]) ? "numeric" : ""} title={row.cells[place].slice(0, 500)}>{row.cells[place].slice(0, 200)}</td>)}
              </tr>
            ))}
            {end < matching && <tr class="spacer" style={{ height: `${(matching - end) * ROW_PX}px` }}><td colSpan={places.length} /></tr>}
          </tbody>
        </table>
      </div>
    </div>
  );
}
