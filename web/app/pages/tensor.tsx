// SPDX-License-Identifier: Apache-2.0
// A recorded tensor: its statistics, histogram, slices with every number, and
// the difference from the tensor of another run, step or rank.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, call, stream } from "../api";
import { dtypeName, kept, leavesOf, shapeText, type Leaf } from "../calls";
import { bytes, count, double, int, number, processId, quoted } from "../format";
import { useLoaded } from "../load";
import type { CallEntry, Double, Int64, TensorSummary } from "../messages";
import { Card, Command, Empty, RunSelect, Select, Show, TextField } from "../parts/basics";
import { BAD_COLOUR, colour, place, scaleOf } from "../parts/colors";
import { PlaceFields, usePlace } from "../parts/place";
import { Table } from "../parts/table";
import { href, route, setQuery } from "../route";
import { t } from "../text";

interface TensorPlace {
  run: string;
  digest: string;
  lengthBytes: Int64;
  dtype: string;
  shape: Int64[];
}

interface TensorLook {
  numbers?: {
    elements: Int64; nan: Int64; positiveInfinite: Int64; negativeInfinite: Int64; zeros: Int64;
    max: Double; min: Double; mean: Double; standardDeviation: Double; norm: Double; largestAt: Int64[];
  };
  edges: Double[];
  counts: Int64[];
  rows: number;
  columns: number;
  cells: Double[];
}

const BINS = 64;
const MOST_CELLS = 192;
// Up to this size of a side, cells show their numbers.
const NUMBERED = 16;

function placeOf(run: string, tensor: TensorSummary): TensorPlace {
  return { run, digest: tensor.payload!.digest, lengthBytes: tensor.payload!.lengthBytes, dtype: tensor.dtype, shape: tensor.shape };
}

async function findLeaf(run: string, step: string, process: string, entry: string, value: string, signal: AbortSignal): Promise<Leaf> {
  for await (const one of stream<CallEntry>("ArchiveService/ListCalls", { run, step, ...processId(process), contains: entry }, signal)) {
    const leaf = one.entry === entry ? leavesOf(one).find((each) => each.name === value) : undefined;
    if (leaf?.tensor === undefined) continue;
    if (kept(leaf.tensor)) return leaf;
    throw new ApiError("NOT_FOUND", t("For {0} in {1} at step {2}, only statistics are recorded.", `${entry}.${value}`, run, step));
  }
  throw new ApiError("NOT_FOUND", t("{0} is not recorded in {1} at step {2}.", `${entry}.${value}`, run, step));
}

function Histogram({ look, log }: { look: TensorLook; log: boolean }) {
  const counts = look.counts.map(int);
  const edges = look.edges.map(double);
  const most = Math.max(1, ...counts);
  const [chosen, setChosen] = useState<number | undefined>();
  const edge = (i: number) => number(log ? 10 ** edges[i] : edges[i]);
  if (counts.length === 0) return <p class="note">{t("No finite number to count.")}</p>;
  return (
    <figure class="histogram">
      <svg viewBox={`0 0 ${counts.length * 8} 120`} preserveAspectRatio="none" role="img" aria-label={t("Histogram from {0} to {1}", edge(0), edge(edges.length - 1))} tabIndex={0}
        onKeyDown={(event) => {
          const move = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
          if (move !== 0) setChosen(Math.min(counts.length - 1, Math.max(0, (chosen ?? -1) + move)));
        }}
        onMouseMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          setChosen(Math.min(counts.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * counts.length))));
        }}>
        {counts.map((one, i) => (
          // A bar with any count is at least visible.
          <rect key={i} class={i === chosen ? "chosen" : ""} x={i * 8 + 0.5} width={7} y={120 - (one === 0 ? 0 : Math.max(1.5, (118 * Math.log1p(one)) / Math.log1p(most)))} height={120} />
        ))}
      </svg>
      <figcaption>
        <span>{edge(0)}</span>
        <span aria-live="polite">{chosen === undefined ? t("height: logarithm of the count") : t("{0} to {1}: {2}", edge(chosen), edge(chosen + 1), count(counts[chosen]))}</span>
        <span>{edge(edges.length - 1)}</span>
      </figcaption>
    </figure>
  );
}

function SliceMap({ look, first, step, onZoom }: { look: TensorLook; first: [number, number]; step: [number, number]; onZoom: (row: number, column: number) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<[number, number] | undefined>();
  const cells = look.cells.map(double);
  const { rows, columns } = look;
  const numbered = rows <= NUMBERED && columns <= NUMBERED;
  const px = Math.max(3, Math.min(22, Math.floor(760 / Math.max(1, columns))));
  const scale = scaleOf([{ name: "", cells: Float64Array.from(cells), counts: new Uint32Array(cells.length).fill(1), nonFinite: Uint32Array.from(cells, (value) => (Number.isFinite(value) ? 0 : 1)), ranks: new Float64Array(0) }]);
  useEffect(() => {
    if (numbered || canvas.current === null) return;
    const context = canvas.current.getContext("2d")!;
    const pixels = new ImageData(columns, rows);
    cells.forEach((value, i) => {
      const [r, g, b] = Number.isFinite(value) ? colour(place(value, scale)) : BAD_COLOUR;
      pixels.data.set([r, g, b, 255], 4 * i);
    });
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d")!.putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, columns * px, rows * px);
    context.drawImage(small, 0, 0, columns * px, rows * px);
    if (at !== undefined) {
      context.strokeStyle = "#ff9d00";
      context.lineWidth = 2;
      context.strokeRect(at[1] * px, at[0] * px, px, px);
    }
  }, [look, at, numbered]);
  const where = (row: number, column: number) => `[${first[0] + row * step[0]}${step[0] > 1 ? "+" : ""}, ${first[1] + column * step[1]}${step[1] > 1 ? "+" : ""}]`;
  if (rows === 0 || columns === 0) return <p class="note">{t("The slice is empty.")}</p>;
  if (numbered) {
    return (
      <div class="both-frame" tabIndex={0} role="region" aria-label={t("Numbers of the slice")}>
        <table class="slice">
          <thead><tr><td />{Array.from({ length: columns }, (_, c) => <th key={c}>{first[1] + c * step[1]}</th>)}</tr></thead>
          <tbody>
            {Array.from({ length: rows }, (_, r) => (
              <tr key={r}><th scope="row">{first[0] + r * step[0]}</th>{Array.from({ length: columns }, (__, c) => {
                const value = cells[r * columns + c];
                const [red, green, blue] = Number.isFinite(value) ? colour(place(value, scale)) : BAD_COLOUR;
                const dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140;
                return <td key={c} class={Number.isFinite(value) ? "" : "bad"} style={{ background: `rgb(${red} ${green} ${blue})`, color: dark ? "#fff" : "#000" }}>{number(value)}</td>;
              })}</tr>
            ))}
          </tbody>
        </table>
      </div>
    );
  }
  const point = (event: MouseEvent): [number, number] | undefined => {
    const box = canvas.current!.getBoundingClientRect();
    const [row, column] = [Math.floor((event.clientY - box.top) / px), Math.floor((event.clientX - box.left) / px)];
    return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : undefined;
  };
  return (
    <div class="heatmap">
      <p class="readout" aria-live="polite">{at === undefined ? t("Point at a cell, or use the arrow keys; Enter or a click zooms in.") : `${where(...at)}: ${number(cells[at[0] * columns + at[1]])}`}</p>
      <div class="heatmap-frame slice-frame">
        <canvas ref={canvas} width={columns * px} height={rows * px} tabIndex={0} role="img" aria-label={t("Slice as a heat map")}
          onMouseMove={(event) => setAt(point(event))} onClick={(event) => { const hit = point(event); if (hit) onZoom(...hit); }}
          onKeyDown={(event) => {
            const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
            const now = at ?? [0, 0];
            if (move !== undefined) {
              event.preventDefault();
              setAt([Math.min(rows - 1, Math.max(0, now[0] + move[0])), Math.min(columns - 1, Math.max(0, now[1] + move[1]))]);
            } else if (event.key === "Enter") onZoom(...(now as [number, number]));
          }} />
      </div>
      <p class="legend">
        <span class="legend-bar" aria-hidden="true" /> {[...new Set([scale.low, scale.high])].map((end) => number(scale.log ? 10 ** end : end)).join(" … ")}
        {scale.log ? ` (${t("logarithmic")})` : ""}; <span class="bad-key" aria-hidden="true" /> {t("NaN or infinite")}
        {(step[0] > 1 || step[1] > 1) && `; ${t("a cell shows the most extreme of {0} x {1} numbers", step[0], step[1])}`}
      </p>
    </div>
  );
}

// The address selects the slice; clicks zoom into its window.
function Slices({ tensor, minus, shape }: { tensor: TensorPlace; minus?: TensorPlace; shape: number[] }) {
  const { rows = "", cols = "", at = "", r0 = "0", c0 = "0", zoom = "" } = route.value.query;
  const dimensions = shape.length;
  const rowDimension = dimensions < 2 ? -1 : rows === "" ? dimensions - 2 : Math.min(dimensions - 1, Number(rows));
  const columnDimension = dimensions === 0 ? -1 : cols === "" ? dimensions - 1 : Math.min(dimensions - 1, Number(cols));
  const given = at === "" ? [] : at.split(",").map(Number);
  const index = shape.map((length, d) => Math.min(Math.max(0, length - 1), Math.max(0, Math.trunc(given[d] ?? 0) || 0)));
  const extent = [rowDimension < 0 ? 1 : shape[rowDimension], columnDimension < 0 ? 1 : shape[columnDimension]];
  const span = zoom === "" ? extent : zoom.split("x").map(Number);
  const step = [0, 1].map((side) => Math.max(1, Math.ceil(Math.min(extent[side], span[side]) / MOST_CELLS))) as [number, number];
  const first = [Number(r0), Number(c0)] as [number, number];
  const body = {
    tensor, minus, rowDimension, columnDimension, at: index.map(String), firstRow: String(first[0]), firstColumn: String(first[1]),
    rows: Math.min(MOST_CELLS, Math.ceil(span[0] / step[0])), columns: Math.min(MOST_CELLS, Math.ceil(span[1] / step[1])), rowStep: step[0], columnStep: step[1],
  };
  const loaded = useLoaded(JSON.stringify(body), (signal) => call<TensorLook>("TensorLook", body, signal));
  const nearer = (row: number, column: number) => {
    const next = [0, 1].map((side) => Math.max(Math.min(NUMBERED, extent[side]), Math.floor(Math.min(extent[side], span[side]) / 8)));
    const begin = [row, column].map((cell, side) => Math.max(0, Math.min(extent[side] - next[side], first[side] + cell * step[side] - Math.floor(next[side] / 2))));
    setQuery({ r0: begin[0], c0: begin[1], zoom: `${next[0]}x${next[1]}` });
  };
  return (
    <>
      <div class="form">
        {dimensions > 2 && (
          <>
            <Select label={t("Down")} value={String(rowDimension)} of={shape.map((length, d) => [String(d), `${d} (${length})`])} onChange={(to) => setQuery({ rows: to, r0: undefined, c0: undefined, zoom: undefined })} />
            <Select label={t("To the right")} value={String(columnDimension)} of={shape.map((length, d) => [String(d), `${d} (${length})`])} onChange={(to) => setQuery({ cols: to, r0: undefined, c0: undefined, zoom: undefined })} />
            {shape.map((length, d) => d !== rowDimension && d !== columnDimension && (
              <label key={d} class="field"><span>{t("Dimension {0}", d)}</span>
                <input type="number" min={0} max={Math.max(0, length - 1)} value={index[d]} onChange={(event) => {
                  const next = [...index];
                  next[d] = Number(event.currentTarget.value) || 0;
                  setQuery({ at: next.join(",") });
                }} /></label>
            ))}
          </>
        )}
        {zoom !== "" && <button onClick={() => setQuery({ r0: undefined, c0: undefined, zoom: undefined })}>{t("All of it")}</button>}
        <span class="note">{t("rows {0} to {1} of {2}, columns {3} to {4} of {5}", first[0], Math.min(extent[0], first[0] + span[0]) - 1, extent[0], first[1], Math.min(extent[1], first[1] + span[1]) - 1, extent[1])}</span>
      </div>
      <Show of={loaded}>{(look) => <SliceMap look={look} first={first} step={step} onZoom={nearer} />}</Show>
    </>
  );
}

function TensorView({ run, step, process, entry, value }: { run: string; step: string; process: string; entry: string; value: string }) {
  const { other = "", ostep = "", orank = "", log = "" } = route.value.query;
  const against = other !== "" || ostep !== "" || orank !== "";
  const sides = useLoaded(JSON.stringify([run, step, process, entry, value, other, ostep, orank]), async (signal) => {
    const tensor = (await findLeaf(run, step, process, entry, value, signal)).tensor!;
    const minus = against ? (await findLeaf(other || run, ostep || step, orank === "" ? process : `rank${orank}`, entry, value, signal)).tensor! : undefined;
    return { tensor, minus };
  });
  return (
    <Show of={sides}>
      {({ tensor, minus }) => {
        const there = placeOf(run, tensor);
        const beside = minus && placeOf(other || run, minus);
        const same = beside !== undefined && beside.digest === there.digest;
        return (
          <>
            <div class="facts">
              <span class="call-name">{entry}.{value}</span><span>{dtypeName(tensor)}</span><span>{shapeText(tensor)}</span><span>{bytes(tensor.payload!.lengthBytes)}</span>
              {beside && <span class={`badge ${same ? "live" : ""}`}>{same ? t("bit for bit the same") : t("minus the tensor of {0}", `${other || run} step ${ostep || step}`)}</span>}
            </div>
            <Numbers tensor={there} minus={beside} log={log !== ""} />
            <h2>{beside ? t("Slices of the difference") : t("Slices")}</h2>
            <Slices tensor={there} minus={beside} shape={tensor.shape.map(int)} />
          </>
        );
      }}
    </Show>
  );
}

function Numbers({ tensor, minus, log }: { tensor: TensorPlace; minus?: TensorPlace; log: boolean }) {
  const body = { tensor, minus, bins: BINS, logarithmic: log };
  const loaded = useLoaded(JSON.stringify(body), (signal) => call<TensorLook>("TensorLook", body, signal));
  return (
    <Show of={loaded}>
      {(look) => {
        const of = look.numbers!;
        const bad = int(of.nan) + int(of.positiveInfinite) + int(of.negativeInfinite);
        const shownNumbers: [string, string][] = [
          ["Max", number(double(of.max))], ["Min", number(double(of.min))], ["Mean", number(double(of.mean))], [t("Standard deviation"), number(double(of.standardDeviation))],
          ["Norm", number(double(of.norm))], [t("Elements"), count(of.elements)], [t("Zeros"), count(of.zeros)],
          ["NaN", count(of.nan)], ["+Inf", count(of.positiveInfinite)], ["-Inf", count(of.negativeInfinite)],
          [t("Stands out most at"), `[${of.largestAt.join(", ")}]`],
        ];
        return (
          <div class="split">
            <div>
              <h2>{minus ? t("Numbers of the difference") : t("Numbers")}</h2>
              <dl class={`numbers ${bad > 0 ? "bad" : ""}`}>{shownNumbers.map(([name, text]) => <div key={name} class={/NaN|Inf/.test(name) && text !== "0" ? "bad" : ""}><dt>{name}</dt><dd>{text}</dd></div>)}</dl>
              {bad > 0 && <p class="note">{t("Max, Min, Mean and Norm are of the finite numbers.")}</p>}
            </div>
            <div>
              <h2>{t("Histogram")}</h2>
              <label class="check"><input type="checkbox" checked={log} onChange={(event) => setQuery({ log: event.currentTarget.checked ? "1" : undefined }, true)} /> {t("of the logarithm of absolute values")}</label>
              <Histogram look={look} log={log} />
            </div>
          </div>
        );
      }}
    </Show>
  );
}

export function Tensor({ run }: { run: string }) {
  const { call: entry = "", value = "", other = "", ostep = "", orank = "" } = route.value.query;
  const { places, where, calls } = usePlace(run, true);
  const recorded = (calls.value ?? []).flatMap((one) => leavesOf(one).filter((leaf) => leaf.tensor !== undefined && kept(leaf.tensor)).map((leaf) => ({ entry: one.entry, leaf })));
  return (
    <Show of={places}>
      {() => where === undefined || where.process === undefined ? <Empty><p>{t("Nothing is recorded yet.")}</p></Empty> : (
        <>
          <div class="form">
            <PlaceFields where={where} />
            {entry !== "" && (
              <>
                <RunSelect label={t("Subtract the tensor of the run")} value={other} none={run} onChange={(to) => setQuery({ other: to })} />
                <TextField label={t("its step")} value={ostep} placeholder={String(where.step)} onChange={(to) => setQuery({ ostep: to })} />
                <TextField label={t("its rank")} value={orank} placeholder={where.process.replace(/^rank/, "")} onChange={(to) => setQuery({ orank: to })} />
                <a href={href("tensor", run, { step: where.step, rank: where.process.replace(/^rank/, "") })}>{t("All tensors of the step")}</a>
              </>
            )}
          </div>
          {entry !== "" ? <TensorView run={run} step={String(where.step)} process={where.process} entry={entry} value={value} /> : (
            <Show of={calls}>
              {() => recorded.length === 0 ? (
                <Card title={t("No tensor of this step is recorded in full")}>
                  <p>{t("Only statistics are recorded. Record the tensors of one call from the overview, or of all calls for a step:")}</p>
                  <Command text={`rankprobe enable --run ${quoted(run)} --for-steps 1 --config FILE   # "task": "tensor"`} />
                </Card>
              ) : (
                <Table rows={recorded} label={t("Tensors of the step")} file={`tensors_step${where.step}.csv`} rowKey={(one) => `${one.entry} ${one.leaf.name}`}
                  onOpen={(one) => setQuery({ step: where.step, call: one.entry, value: one.leaf.name })} columns={[
                    { name: t("Call"), text: (one) => one.entry },
                    { name: t("Value"), text: (one) => one.leaf.name },
                    { name: t("Type"), text: (one) => dtypeName(one.leaf.tensor!) },
                    { name: t("Shape"), text: (one) => shapeText(one.leaf.tensor!) },
                    { name: t("Size"), text: (one) => int(one.leaf.tensor!.payload!.lengthBytes), show: (one) => bytes(one.leaf.tensor!.payload!.lengthBytes), numeric: true },
                  ]} />
              )}
            </Show>
          )}
          <Command text={`rankprobe export --run ${quoted(run)} --steps ${where.step}${where.process.startsWith("rank") ? ` --ranks ${where.process.slice(4)}` : ""} -o dump`} />
        </>
      )}
    </Show>
  );
}
