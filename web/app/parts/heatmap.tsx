// SPDX-License-Identifier: Apache-2.0
// Rows against steps as one picture. Cells that were not recorded are empty; NaN and infinities are red, whatever the
// scale.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { number } from "../format";
import { stepsText, type Grid, type Row } from "../grid";
import { t } from "../text";
import { pictureOf, scaleOf, scaleOfRow } from "./colors";

interface Props {
  grid: Grid;
  label: string;
  onOpen: (row: Row, column: number) => void;
  maxHeightPx?: number;
  // Shows all rows at once, without names if there are many, for patterns over ranks. Otherwise rows are as high as
  // their names, and the picture is scrolled.
  whole?: boolean;
  // The colours of each row range from its own smallest to its own largest value.
  perRow?: boolean;
}

const NAMES_PX = 240;
// Width for names of ranks, and length to which other names are shortened if rows are too low for complete names.
const SHORT_NAMES_PX = 64;
const SHORT_NAME = 9;
// The same values as in app.css.
const NARROW = "(max-width: 640px)";
const NARROW_NAMES_PX = 90;
const NAMED_ROW_PX = 14;
// Width for the number of a step below the picture.
const STEP_PX = 64;
// Browsers draw canvases of at most 32,767 pixels.
const MOST_PX = 28_000;
const MOST_ROWS = MOST_PX / 3;

// Width of the previous picture, so that the next one is not drawn twice.
let knownWidth = 800;

// Numbers of steps below the picture, as many as fit.
function StepAxis({ grid, width }: { grid: Grid; width: number }) {
  const columns = grid.first.length;
  const stride = Math.max(1, Math.ceil((columns * STEP_PX) / width));
  const places = Array.from({ length: Math.ceil(columns / stride) }, (_, i) => i * stride);
  return (
    <div class="heatmap-steps" style={{ width: `${width}px` }} aria-hidden="true">
      {places.map((column) => <span key={column} style={{ left: `${((column + 0.5) * width) / columns}px` }}>{grid.first[column]}</span>)}
    </div>
  );
}

export function Heatmap({ grid: all, label, onOpen, maxHeightPx = 640, whole = false, perRow = false }: Props) {
  const grid = useMemo(() => (all.rows.length <= MOST_ROWS ? all : { ...all, rows: all.rows.slice(0, MOST_ROWS) }), [all]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(knownWidth);
  const [at, setAt] = useState<{ row: number; column: number } | undefined>();
  const scale = useMemo(() => scaleOf(grid.rows), [grid]);
  const columns = grid.first.length;
  const least = whole ? 2 : Math.min(NAMED_ROW_PX, Math.max(3, Math.floor(MOST_PX / Math.max(1, grid.rows.length))));
  const rowPx = Math.max(least, Math.min(22, Math.floor(maxHeightPx / Math.max(1, grid.rows.length))));
  const named = rowPx >= 11;
  const height = grid.rows.length * rowPx;
  const namesPx = named && grid.rows.some((row) => row.name.length > SHORT_NAME) ? (matchMedia(NARROW).matches ? NARROW_NAMES_PX : NAMES_PX) : SHORT_NAMES_PX;
  // If rows are too low for their names, only every nth row has one.
  const namedRows = named ? 1 : Math.ceil(NAMED_ROW_PX / rowPx);

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => {
      // An element that was removed from the page has no width.
      if (entry.contentRect.width > 0) setWidth((knownWidth = Math.max(200, Math.floor(entry.contentRect.width) - namesPx)));
    });
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, [namesPx]);

  // One pixel for each cell, which the browser scales: as fast for a million cells. Drawn once for each grid; the
  // highlighted cell is a separate element above it.
  const picture = useMemo(() => pictureOf(grid.rows, columns, perRow ? scaleOfRow : () => scale), [grid, scale, perRow]);
  useLayoutEffect(() => {
    canvas.current!.getContext("2d")!.putImageData(picture, 0, 0);
    // Read by measurements of how long a view takes.
    canvas.current!.dataset.painted = String(grid.rows.length * columns);
  }, [picture]);

  const point = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor((event.clientY - box.top) / rowPx);
    return row >= 0 && row < grid.rows.length && column >= 0 && column < columns ? { row, column } : undefined;
  };
  const onKey = (event: KeyboardEvent) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const now = at ?? { row: 0, column: 0 };
    if (move !== undefined) {
      event.preventDefault();
      const row = Math.min(grid.rows.length - 1, Math.max(0, now.row + move[0]));
      setAt({ row, column: Math.min(columns - 1, Math.max(0, now.column + move[1])) });
      const view = frame.current!;
      if (row * rowPx < view.scrollTop || (row + 1) * rowPx > view.scrollTop + view.clientHeight) view.scrollTop = row * rowPx - view.clientHeight / 2;
    } else if (event.key === "Enter" && at !== undefined) {
      onOpen(grid.rows[at.row], at.column);
    }
  };
  const cell = at && grid.rows[at.row];
  return (
    <div class="heatmap">
      <p class="readout" aria-live="polite">
        {cell
          ? cell.counts[at!.column] === 0
            ? t("{0}, step {1}: nothing is recorded", cell.name, stepsText(grid, at!.column))
            : `${cell.name}, ${t("step")} ${stepsText(grid, at!.column)}: ${number(cell.cells[at!.column])}` +
              (cell.nonFinite[at!.column] > 0 ? `, ${t("{0} not finite", cell.nonFinite[at!.column])}` : "") +
              (cell.ranks[at!.column] >= 0 ? ` (rank ${cell.ranks[at!.column]})` : "")
          : t("Point at a cell, or use the arrow keys; Enter or a click opens its step.")}
      </p>
      <p class="legend">
        <span class="legend-bar" aria-hidden="true" />
        {perRow ? t("each row from its smallest to its largest value, at least 10 % apart")
          : [...new Set([scale.low, scale.high])].map((end) => number(scale.log ? 10 ** end : end)).join(" … ") + (scale.log ? ` (${t("logarithmic")})` : "")};{" "}
        <span class="bad-key" aria-hidden="true" /> {t("NaN or infinite")}; {t("empty: nothing is recorded")}
      </p>
      {all.rows.length > grid.rows.length && <p class="note">{t("The first {0} of {1} rows: narrow the names.", Math.floor(MOST_ROWS), all.rows.length)}</p>}
      <div class="heatmap-frame" ref={frame} style={{ maxHeight: whole ? "none" : `${maxHeightPx + 4}px` }}>
        <div class="heatmap-names" style={{ width: `${namesPx}px` }}>
          {grid.rows.filter((_, i) => i % namedRows === 0).map((row) => (
            <div key={row.name} title={row.name} style={{ height: `${rowPx * namedRows}px`, lineHeight: `${named ? rowPx : NAMED_ROW_PX}px` }}><bdi>{row.name}</bdi></div>
          ))}
        </div>
        <div class="heatmap-picture">
          <canvas ref={canvas} width={picture.width} height={picture.height} style={{ width: `${width}px`, height: `${height}px` }} tabIndex={0} role="img" aria-label={label}
            onMouseMove={(event) => setAt(point(event))} onKeyDown={onKey}
            onClick={(event) => {
              const hit = point(event);
              if (hit !== undefined) onOpen(grid.rows[hit.row], hit.column);
            }} />
          {at !== undefined && cell !== undefined && <div class="heatmap-at" style={{ left: `${(at.column * width) / columns}px`, top: `${at.row * rowPx}px`, width: `${Math.max(3, width / columns)}px`, height: `${rowPx}px` }} />}
          <StepAxis grid={grid} width={width} />
        </div>
      </div>
    </div>
  );
}
