// SPDX-License-Identifier: Apache-2.0
// Lines over steps, drawn by uPlot. Gaps are not bridged; steps with a NaN or an infinity have a red mark below.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { number } from "../format";

export interface Line {
  name: string;
  // NaN if there is no value at a step.
  values: Float64Array;
  colour: string;
  dashed?: boolean;
}

interface Props {
  steps: number[];
  lines: Line[];
  // Areas between two lines, by their indices, with a colour.
  bands?: [number, number, string][];
  bad?: boolean[];
  log: boolean;
  label: string;
  onStep?: (step: number) => void;
}

export const LINE_COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22",
  "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#ff9da7", "#76b7b2", "#edc948"];

export function Chart({ steps, lines, bands, bad, log, label, onStep }: Props) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const target = place.current!;
    const data = [steps, ...lines.map((line) => Array.from(line.values, (value) => (Number.isFinite(value) && (!log || value > 0) ? value : null)))];
    const ink = getComputedStyle(target).color;
    const axis = { stroke: ink, grid: { stroke: "rgba(128,128,128,.25)" }, ticks: { stroke: "rgba(128,128,128,.4)" } };
    const marks = (plot: uPlot) => {
      if (bad === undefined) return;
      const { ctx } = plot;
      ctx.save();
      ctx.fillStyle = "#d62728";
      bad.forEach((is, i) => {
        if (is) ctx.fillRect(plot.valToPos(steps[i], "x", true) - 2, plot.bbox.top + plot.bbox.height - 8, 4, 8);
      });
      ctx.restore();
    };
    const plot = new uPlot({
      width: Math.max(300, target.clientWidth),
      height: 340,
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      // Steps are integers.
      axes: [{ ...axis, incrs: Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)) }, { ...axis, size: 80, values: (_: unknown, ticks: (number | null)[]) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
      series: [
        { label: "step" },
        ...lines.map((line) => ({
          label: line.name, stroke: line.colour, width: 1.5, dash: line.dashed ? [6, 4] : undefined, spanGaps: false,
          points: { show: steps.length < 60 }, value: (_: unknown, value: number | null) => (value === null ? "–" : number(value)),
        })),
      ],
      bands: (bands ?? []).map(([high, low, fill]) => ({ series: [high + 1, low + 1], fill })),
      hooks: { draw: [marks] },
    }, data as uPlot.AlignedData, target);
    const onClick = () => {
      if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) onStep?.(steps[plot.cursor.idx]);
    };
    plot.over.addEventListener("click", onClick);
    const watch = new ResizeObserver(([entry]) => plot.setSize({ width: Math.max(300, Math.floor(entry.contentRect.width)), height: 340 }));
    watch.observe(target);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [steps, lines, log, bad]);
  return <div class="chart" ref={place} role="img" aria-label={label} />;
}
