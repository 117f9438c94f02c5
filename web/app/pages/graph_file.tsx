// SPDX-License-Identifier: Apache-2.0
// The graph of a database, or a graph made for this page from dumps and runs:
// "#/graph?db=a.vis.db", "#/graph?target=run:a@3&reference=dumps/b&oc=1".
import { useEffect, useMemo, useState } from "preact/hooks";
import { server } from "../api";
import { count, quoted } from "../format";
import { Explorer, type Chosen } from "../graph/explorer";
import { HandMatching, usePairs } from "../graph/matching";
import { NodeDetails } from "../graph/details";
import { withPairs, type GraphData } from "../graph/model";
import { buildGraph, loadGraph, openGraph, summarize, type GraphAbout, type GraphSource, type PlaceSummary } from "../graph/source";
import { useLoaded } from "../load";
import { Command, Empty, Failure, Select, Show } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { href, route, setQuery } from "../route";
import { t } from "../text";

function sourceOf(query: Record<string, string>): GraphSource {
  if (query.db !== undefined) return { db: query.db };
  return { target: query.target ?? "", reference: query.reference, overflowCheck: query.oc === "1", fuzzy: query.fuzzy === "1", layers: query.layers === "1" };
}

// Returns the address of the graph of a database below the root, or of dumps and runs, for other pages.
export function graphHref(source: GraphSource, more: Record<string, string | number | undefined> = {}): string {
  return href("graph", "", { db: source.db, target: source.target, reference: source.reference, oc: source.overflowCheck ? 1 : undefined, fuzzy: source.fuzzy ? 1 : undefined,
    layers: source.layers ? 1 : undefined, ...more });
}

function commandOf(source: GraphSource): string {
  return `rankprobe graph_visualize -tp ${quoted(source.target || ".")}${source.reference ? ` -gp ${quoted(source.reference)}` : ""}${source.overflowCheck ? " -oc" : ""}` +
    `${source.fuzzy ? " -fm" : ""}${source.layers ? " -lm" : ""} -o graph`;
}

export function GraphFile() {
  const source = sourceOf(route.value.query);
  const key = JSON.stringify(source);
  const [progress, setProgress] = useState("");
  const [again, setAgain] = useState(0);
  const ready = useLoaded(`graph ${key} ${again}`, async (signal) => {
    setProgress("");
    if (source.db !== undefined) return { db: source.db, warnings: [] as string[] };
    return buildGraph(source, again > 0, (done, all) => setProgress(server.value?.builds === false ? `${done}%` : t("{0} of {1} ranks", done, all)), signal);
  });
  const title = source.db ?? `${source.target || "."}${source.reference ? ` ⇄ ${source.reference}` : ""}`;
  return (
    <>
      <h1 class="graph-title">{title}</h1>
      {ready.value === undefined && ready.error === undefined && <p class="waiting" aria-busy="true">{source.db === undefined ? t("Making the graph …") : t("Loading …")} {progress}</p>}
      {ready.error && <Failure error={ready.error} retry={() => setAgain(again + 1)} />}
      {ready.value && (
        <>
          {ready.value.warnings.map((text) => <p key={text} class="note">{text}</p>)}
          <Opened key={ready.value.db} db={ready.value.db} source={source} />
          {source.db === undefined && (
            <>
              <p class="note">{t("This graph was made for the page and is not kept.")} <button onClick={() => setAgain(again + 1)}>{t("Make it again")}</button></p>
              <Command text={commandOf(source)} />
            </>
          )}
        </>
      )}
    </>
  );
}

function Opened({ db, source }: { db: string; source: GraphSource }) {
  const about = useLoaded(`about ${db}`, (signal) => openGraph(db, signal));
  return <Show of={about}>{(known) => (known.steps.length === 0 || known.ranks.length === 0 ? <Empty><p>{t("There is no step in this graph.")}</p></Empty> : <OnePlace db={db} about={known} source={source} />)}</Show>;
}

function OnePlace({ db, about, source }: { db: string; about: GraphAbout; source: GraphSource }) {
  const { query } = route.value;
  const number = (text: string | undefined, among: number[]) => (text !== undefined && /^\d+$/.test(text) ? Number(text) : among[0]);
  const step = number(query.step, about.steps);
  const rank = number(query.rank, about.ranks);
  const loaded = useLoaded<GraphData>(`columns ${db} ${step} ${rank}`, (signal, partial) => loadGraph(db, step, rank, about.compare, signal, partial));
  const pairs = usePairs(db, step, rank, loaded.loading ? undefined : loaded.value);
  const graph = useMemo(() => loaded.value && withPairs(loaded.value, pairs.judged, pairs.apart), [loaded.value, pairs.judged, pairs.apart]);
  const [overview, setOverview] = useState(query.places === "1");
  useEffect(() => setOverview(query.places === "1"), [query.places]);
  const titles = about.compare ? [t("target"), t("reference")] : [t("dump")];
  const to = (change: { step?: number; rank?: number }) => setQuery(change);
  const place = (
    <>
      <Select label={t("Step")} value={String(step)} onChange={(value) => to({ step: Number(value) })} of={about.steps.slice(0, 5000).map((one): [string, string] => [String(one), String(one)])} />
      <Select label={t("Rank")} value={String(rank)} onChange={(value) => to({ rank: Number(value) })} of={about.ranks.slice(0, 5000).map((one): [string, string] => [String(one), `rank${one}`])} />
      {about.steps.length * about.ranks.length > 1 && (
        <button aria-expanded={overview} onClick={() => setQuery({ places: overview ? undefined : 1 })}>{t("All ranks and steps")}</button>
      )}
    </>
  );
  return (
    <>
      {overview && <Places db={db} about={about} step={step} rank={rank} />}
      <Show of={loaded}>
        {() => graph !== undefined && (
          <Explorer graph={graph} titles={titles} microSteps={about.microSteps} place={place} file={`step${step}_rank${rank}`}
            colourings={about.compare ? (about.overflowCheck ? ["precision", "overflow"] : ["precision"]) : ["overflow"]}
            menu={(side, node) => pairs.menu(graph, side, node)} onPick={(side, node) => pairs.pick(graph, side, node)}
            whole={!loaded.loading} details={(chosen: Chosen | undefined, choose) => (
              <>
                {about.compare && <HandMatching db={db} step={step} rank={rank} graph={graph} pairs={pairs} chosen={chosen} onDisk={source.db !== undefined} />}
                <NodeDetails db={db} about={about} graph={graph} titles={titles} step={step} rank={rank} chosen={chosen} hand={pairs.byTarget} choose={choose} />
              </>
            )} />
        )}
      </Show>
    </>
  );
}

// Shows the number of faults by rank and step; a click opens that graph.
function Places({ db, about, step, rank }: { db: string; about: GraphAbout; step: number; rank: number }) {
  const loaded = useLoaded(`places ${db}`, (signal) => summarize(db, signal));
  const column = (name: string, value: (one: PlaceSummary) => number): Column<PlaceSummary> => ({ name, text: value, show: (one) => count(value(one)), numeric: true });
  const columns: Column<PlaceSummary>[] = [
    column(t("Step"), (one) => one.step), column(t("Rank"), (one) => one.rank), column(t("Nodes"), (one) => one.nodes),
    ...(about.compare ? [column(t("error"), (one) => one.error), column(t("warning"), (one) => one.warning), column(t("no partner"), (one) => one.unmatched)] : []),
    ...(about.overflowCheck ? [column(t("critical overflow"), (one) => one.critical), column(t("other overflow"), (one) => one.overflow)] : []),
  ];
  return (
    <Show of={loaded}>
      {(places) => (
        <Table rows={places} columns={columns} file="places.csv" label={t("All ranks and steps")} heightPx={240} rowKey={(one) => `${one.step} ${one.rank}`}
          rowClass={(one) => `${one.step === step && one.rank === rank ? "chosen" : ""} ${one.error + one.critical > 0 ? "bad" : ""}`}
          onOpen={(one) => setQuery({ step: one.step, rank: one.rank })} />
      )}
    </Show>
  );
}
