// SPDX-License-Identifier: Apache-2.0
// A table of any length: only the visible rows are in the document. A click on a header sorts, rows can be saved as csv
// and selected by mouse or keyboard.
import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { csvField } from "../format";
import { saveBlob } from "../save";
import { t } from "../text";

export interface Column<Row> {
  name: string;
  // The text that is sorted, searched and saved, and shown unless `show` is given.
  text: (row: Row) => string | number;
  show?: (row: Row) => ComponentChildren;
  numeric?: boolean;
}

const ROW_PX = 26;
const MARGIN_ROWS = 10;

interface Props<Row> {
  rows: Row[];
  columns: Column<Row>[];
  // Name of the csv file.
  file: string;
  rowKey: (row: Row) => string;
  rowClass?: (row: Row) => string;
  onOpen?: (row: Row) => void;
  heightPx?: number;
  label: string;
}

function compare(a: string | number, b: string | number): number {
  if (typeof a === "number" && typeof b === "number") {
    // NaN sorts above all numbers, because users look for it.
    const [x, y] = [a, b].map((value) => (Number.isNaN(value) ? Infinity : value));
    return x === y ? Number(Number.isNaN(a)) - Number(Number.isNaN(b)) : x - y;
  }
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// Enter opens the row that has the focus, arrows move it.
export function onRowKey(event: KeyboardEvent, open: () => void) {
  if (event.key === "Enter") open();
  const step = event.key === "ArrowDown" ? "nextElementSibling" : event.key === "ArrowUp" ? "previousElementSibling" : undefined;
  const target = step && (event.currentTarget as HTMLElement)[step];
  if (target instanceof HTMLElement && target.tabIndex === 0) {
    event.preventDefault();
    target.focus();
  }
}

export function Table<Row>(props: Props<Row>) {
  const { rows, columns, heightPx = 520 } = props;
  const [sort, setSort] = useState<{ column: number; down: boolean } | undefined>();
  const [top, setTop] = useState(0);
  const body = useRef<HTMLDivElement>(null);
  const sorted = useMemo(() => {
    if (sort === undefined) return rows;
    const { text } = columns[sort.column];
    const order = [...rows].sort((a, b) => compare(text(a), text(b)));
    return sort.down ? order.reverse() : order;
  }, [rows, sort]);
  const first = Math.max(0, Math.floor(top / ROW_PX) - MARGIN_ROWS);
  const shown = sorted.slice(first, first + Math.ceil(heightPx / ROW_PX) + 2 * MARGIN_ROWS);

  const save = () => {
    const lines = [columns.map((column) => csvField(column.name)).join(",")];
    for (const row of sorted) lines.push(columns.map((column) => csvField(String(column.text(row)))).join(","));
    saveBlob(props.file, new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  };
  return (
    <div class="table">
      <div class="table-tools">
        <span>{t("{0} rows", rows.length.toLocaleString("en-US"))}</span>
        <button onClick={save} disabled={rows.length === 0}>{t("Save as csv")}</button>
      </div>
      <div class="table-body" ref={body} tabIndex={0} aria-label={props.label} role="region"
        style={{ maxHeight: `${heightPx}px` }} onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <table>
          <thead>
            <tr>
              {columns.map((column, i) => (
                <th key={column.name} class={column.numeric ? "numeric" : ""}
                  aria-sort={sort?.column === i ? (sort.down ? "descending" : "ascending") : "none"}>
                  <button onClick={() => setSort({ column: i, down: sort?.column === i ? !sort.down : column.numeric === true })}>
                    {column.name}{sort?.column === i ? (sort.down ? " ▼" : " ▲") : ""}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {first > 0 && <tr class="spacer" style={{ height: `${first * ROW_PX}px` }}><td colSpan={columns.length} /></tr>}
            {shown.map((row) => (
              <tr key={props.rowKey(row)} class={props.rowClass?.(row) ?? ""} tabIndex={props.onOpen ? 0 : -1}
                onClick={() => props.onOpen?.(row)} onKeyDown={(event) => onRowKey(event, () => props.onOpen?.(row))}>
                {columns.map((column) => (
                  <td key={column.name} class={column.numeric ? "numeric" : ""} title={String(column.text(row))}>
                    {column.show ? column.show(row) : column.text(row)}
                  </td>
                ))}
              </tr>
            ))}
            {first + shown.length < sorted.length &&
              <tr class="spacer" style={{ height: `${(sorted.length - first - shown.length) * ROW_PX}px` }}><td colSpan={columns.length} /></tr>}
          </tbody>
        </table>
      </div>
    </div>
  );
}
