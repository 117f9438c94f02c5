// SPDX-License-Identifier: Apache-2.0
// A node of a database: its values and those of its partner, its stack, the
// destinations of its communication, the ranks merged into it, and why it has
// no partner.
import { useMemo } from "preact/hooks";
import { number } from "../format";
import { useLoaded } from "../load";
import { Card, Show, Stack } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { href, route } from "../route";
import { t } from "../text";
import type { Chosen } from "./explorer";
import { COMMUNICATES, MERGED, type GraphData } from "./model";
import { whyAlone } from "./pairs";
import { commLinksOf, loadNode, rowsOf, textsOf, type GraphAbout, type JudgedPair, type NodeDetail } from "./source";

interface Line {
  row: string;
  side: string;
  fields: Record<string, string>;
  isTarget: boolean;
}

// Columns in the order in which people compare them.
const FIRST = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "md5", "value", "Result"];
const LAST = ["Err_message", "requires_grad", "Requires_grad Consistent", "data_name"];

// Shortens a number for the table; the csv file and the tooltip have the complete number.
function shortened(text: string): string {
  return /^-?\d+\.\d{4,}(e-?\d+)?$/.test(text) ? number(Number(text)) : text;
}

function columnsOf(lines: Line[], tips: Record<string, string>): Column<Line>[] {
  const keys = new Set<string>();
  for (const line of lines) for (const key of Object.keys(line.fields)) keys.add(key);
  // Columns that are empty in all rows are not shown.
  const useful = [...keys].filter((key) => lines.some((line) => !["", "null", "-1", undefined].includes(line.fields[key])));
  const rank = (key: string) => (FIRST.includes(key) ? FIRST.indexOf(key) : LAST.includes(key) ? 1000 + LAST.indexOf(key) : 500);
  useful.sort((a, b) => rank(a) - rank(b));
  return [
    { name: t("Value"), text: (line) => line.row },
    { name: t("Side"), text: (line) => line.side },
    ...useful.map((key): Column<Line> => ({
      name: key, numeric: /^(Max|Min|Mean|Norm|.*(diff|Err|Ratio|Cosine|EucDist))$/.test(key),
      text: (line) => { const text = line.fields[key] ?? ""; const value = Number(text); return text !== "" && !Number.isNaN(value) ? value : text; },
      show: (line) => <span title={tips[key] === undefined ? line.fields[key] : `${line.fields[key]} (${tips[key]})`}>{shortened(line.fields[key] ?? "")}</span> })),
  ];
}

function linesOf(node: string, detail: NodeDetail | undefined, side: string, isTarget: boolean, hand: JudgedPair | undefined): Line[] {
  if (detail === undefined) return [];
  const out: Line[] = [];
  for (const [rows, metrics] of [[rowsOf(detail.input), hand?.input], [rowsOf(detail.output), hand?.output]] as const) {
    for (const [name, fields] of rows) {
      out.push({ row: name.startsWith(`${node}.`) ? name.slice(node.length + 1) : name, side, isTarget, fields: { ...fields, ...metrics?.[name] } });
    }
  }
  return out;
}

interface Props {
  db: string;
  about: GraphAbout;
  graph: GraphData;
  titles: string[];
  step: number;
  rank: number;
  chosen: Chosen | undefined;
  hand: Map<string, JudgedPair>;
  choose: (side: number, node: number) => void;
}

export function NodeDetails(props: Props) {
  const { db, graph, chosen, step, rank, titles, about } = props;
  const side = chosen === undefined ? undefined : graph.sides[chosen.side];
  const name = chosen === undefined ? "" : side!.names[chosen.node];
  const partner = chosen === undefined ? -1 : (side!.partners?.[chosen.node] ?? -1);
  const partnerName = partner < 0 ? "" : graph.sides[1 - chosen!.side].names[partner];
  const key = chosen === undefined ? "" : JSON.stringify([db, step, rank, chosen.side, name, partnerName]);
  const loaded = useLoaded(key, async (signal): Promise<(NodeDetail | undefined)[]> => {
    if (chosen === undefined) return [];
    const other = graph.sides[1 - chosen.side];
    const both = await Promise.all([loadNode(db, step, rank, side!.source, name, signal),
      partnerName === "" ? undefined : loadNode(db, step, rank, other.source, partnerName, signal)]);
    return chosen.side === 0 ? both : both.reverse();
  });
  const names = chosen?.side === 1 ? [partnerName, name] : [name, partnerName];
  const lines = useMemo(() => {
    const [ours, theirs] = loaded.value ?? [];
    const hand = props.hand.get(names[0]);
    const target = linesOf(names[0], ours, titles[0], true, hand);
    const reference = linesOf(names[1], theirs, titles[1] ?? "", false, undefined);
    // Pairs each row of the target with that of its partner, shown below it: the nth input with the nth input, the same
    // for outputs.
    const waiting = new Map<string, Line[]>();
    const part = (line: Line) => line.row.split(".")[0];
    for (const line of reference) waiting.set(part(line), [...(waiting.get(part(line)) ?? []), line]);
    const out: Line[] = [];
    for (const line of target) {
      out.push(line);
      const mate = waiting.get(part(line))?.shift();
      if (mate !== undefined) out.push(mate);
    }
    return [...out, ...[...waiting.values()].flat()];
  }, [loaded.value, props.hand, titles.join()]);
  if (chosen === undefined) return <p class="note">{t("Choose a node to see its values, its partner and its stack.")}</p>;
  const tips = typeof about.toolTip === "object" && about.toolTip !== null ? about.toolTip : {};
  const own = () => loaded.value?.[chosen.side];
  const flags = side!.flags[chosen.node];
  const alone = graph.sides.length > 1 && partner < 0 ? whyAlone(graph, chosen.side, chosen.node) : undefined;
  const { page, run, query } = route.value;
  return (
    <Card title={name} kind={alone ? "warn" : ""}>
      <p>
        {side!.parents[chosen.node] >= 0 && <>{t("in")} <a href={href(page, run, { ...query, node: side!.names[side!.parents[chosen.node]] })}>{side!.names[side!.parents[chosen.node]]}</a>{". "}</>}
        {partner >= 0 && <>{t("Partner")}: <a href={href(page, run, { ...query, node: partnerName, side: chosen.side === 0 ? "b" : undefined })}>{partnerName}</a>{". "}</>}
        <a href={href(page, run, { ...query, node: undefined, side: undefined })}>{t("Close")}</a>
      </p>
      {alone && (
        <div class="alone">
          <strong>{t("No partner.")}</strong> {t(alone.text, ...alone.values)}
          {alone.candidates.length > 0 && (
            <ul>{alone.candidates.map((one) => <li key={one}><button class="link" onClick={() => props.choose(1 - chosen.side, one)}>{graph.sides[1 - chosen.side].names[one]}</button></li>)}</ul>
          )}
        </div>
      )}
      <Show of={loaded}>
        {() => (
          <>
            {lines.length === 0 ? <p class="note">{t("It has no values of its own.")}</p> : (
              <Table rows={lines} columns={columnsOf(lines, tips)} file={`step${step}_rank${rank}_${name.replace(/[^\w.-]/g, "_").slice(0, 100)}.csv`} label={t("Values of the node")} heightPx={360}
                rowKey={(line) => `${line.side} ${line.row}`} rowClass={(line) => `${line.isTarget ? "target" : "reference"} ${line.fields.Result === "error" ? "bad" : line.fields.Result === "warning" ? "open" : ""}`} />
            )}
            {(flags & COMMUNICATES) !== 0 && <Links detail={own()} step={step} />}
            {(flags & MERGED) !== 0 && (
              <>
                <h3>{t("Merged of ranks")}</h3>
                <ul class="leaves">{textsOf(own()?.merged).map((text, i) => <li key={i}>{text}</li>)}</ul>
              </>
            )}
            <div class="split">
              {(loaded.value ?? []).map((detail, i) => detail !== undefined && textsOf(detail.stack).length > 0 && (
                <div key={i}>
                  <h3>{t("Stack")}{graph.sides.length > 1 ? ` · ${titles[i]}` : ""}</h3>
                  <Stack frames={textsOf(detail.stack)} />
                </div>
              ))}
            </div>
          </>
        )}
      </Show>
    </Card>
  );
}

// Links to the calls on other ranks that send or receive the data.
function Links({ detail, step }: { detail: NodeDetail | undefined; step: number }) {
  const { page, run, query } = route.value;
  const kinds: Record<string, string> = { send: "sends to", receive: "receives from", link: "meets" };
  return (
    <>
      <h3>{t("Communication")}</h3>
      <ul class="links">
        {commLinksOf(detail?.links).flatMap((link, i) => link.peers.slice(0, 256).map((peer) => (
          <li key={`${i} ${peer.rank}`}>
            {t(kinds[link.kind] ?? "meets")} <a href={href(page, run, { ...query, step, rank: peer.rank, node: peer.node })}>{`rank${peer.rank} ${peer.node}`}</a>
          </li>
        )))}
      </ul>
    </>
  );
}
