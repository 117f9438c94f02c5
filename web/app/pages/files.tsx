// SPDX-License-Identifier: Apache-2.0
// Graph databases and dumps below the directory of `rankprobe view --root`; the
// page makes graphs from the dumps.
import { useState } from "preact/hooks";
import { whyNoJobs } from "../api";
import { bytes, count, time } from "../format";
import { listRoot, type Listing } from "../graph/source";
import { useLoaded } from "../load";
import { Command, Empty, Field, Show } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { go, href } from "../route";
import { t } from "../text";
import { graphHref } from "./graph_file";

type File = Listing["databases"][number];
type Dump = Listing["dumps"][number];

export function Files() {
  const loaded = useLoaded("files", listRoot);
  const databases: Column<File>[] = [
    { name: t("Graph database"), text: (file) => file.path, show: (file) => <a href={graphHref({ db: file.path })}>{file.path}</a> },
    { name: t("Size"), text: (file) => file.bytes, show: (file) => bytes(file.bytes), numeric: true },
    { name: t("Made"), text: (file) => file.modified, show: (file) => time(file.modified * 1e9), numeric: true },
  ];
  const dumps: Column<Dump>[] = [
    { name: t("Dump"), text: (dump) => dump.path || ".", show: (dump) => <a href={graphHref({ target: dump.path, overflowCheck: true })}>{dump.path || "."}</a> },
    { name: t("Steps"), text: (dump) => dump.steps, show: (dump) => count(dump.steps), numeric: true },
    { name: t("Ranks"), text: (dump) => dump.ranks, show: (dump) => count(dump.ranks), numeric: true },
  ];
  return (
    <Show of={loaded}>
      {(found) => found.root === "" ? null : (
        <section>
          <h2>{t("On disk")} <small><code>{found.root}</code></small></h2>
          {found.truncated && <p class="note">{t("There is more: only six levels and 200,000 names are read.")}</p>}
          {found.databases.length + found.dumps.length === 0 ? (
            <Empty>
              <p>{t("There is no graph database and no dump. Make one:")}</p>
              <Command text="rankprobe graph_visualize -tp DUMP -gp REFERENCE -o ." />
            </Empty>
          ) : (
            <div class="split">
              {found.databases.length > 0 && <div><Table rows={found.databases} columns={databases} file="databases.csv" label={t("Graph databases")} heightPx={360} rowKey={(file) => file.path} onOpen={(file) => go(graphHref({ db: file.path }))} /></div>}
              {found.dumps.length > 0 && (
                <div>
                  <Table rows={found.dumps} columns={dumps} file="dumps.csv" label={t("Dumps")} heightPx={300} rowKey={(dump) => dump.path} onOpen={(dump) => go(graphHref({ target: dump.path, overflowCheck: true }))} />
                  <Together names={found.dumps.map((dump) => dump.path || ".")} />
                </div>
              )}
            </div>
          )}
        </section>
      )}
    </Show>
  );
}

// A form that builds one graph of two dumps or runs.
export function Together({ names, target: given = "" }: { names: string[]; target?: string }) {
  const [target, setTarget] = useState(given);
  const [reference, setReference] = useState("");
  const [fuzzy, setFuzzy] = useState(false);
  const [layers, setLayers] = useState(false);
  const word = (name: string) => (name.trim() === "." ? "" : name.trim());
  return (
    <form class="form together" onSubmit={(event) => { event.preventDefault(); go(graphHref({ target: word(target), reference: word(reference), fuzzy, layers, overflowCheck: true })); }}>
      <Field label={t("Target")}><input class="wide" list="dumps" required value={target} onInput={(event) => setTarget(event.currentTarget.value)} placeholder={t("a dump, or run:NAME@STEP")} /></Field>
      <Field label={t("Reference")}><input class="wide" list="dumps" required value={reference} onInput={(event) => setReference(event.currentTarget.value)} placeholder={t("a dump, or run:NAME@STEP")} /></Field>
      <datalist id="dumps">{names.slice(0, 1000).map((name) => <option key={name} value={name} />)}</datalist>
      <label class="check"><input type="checkbox" checked={fuzzy} onChange={() => setFuzzy(!fuzzy)} /> {t("calls in order, whatever their numbers")}</label>
      <label class="check"><input type="checkbox" checked={layers} onChange={() => setLayers(!layers)} /> {t("layers of other names")}</label>
      <button class="primary" type="submit">{t("Compare as a graph")}</button>
      <button type="button" disabled={target.trim() === "" || reference.trim() === "" || whyNoJobs() !== ""} title={whyNoJobs()}
        onClick={() => go(href("compare", "", { target: target.trim(), reference: reference.trim(), fuzzy_match: fuzzy ? "true" : undefined, layer_mapping: layers ? "true" : undefined }))}>{t("Compare value by value")}</button>
    </form>
  );
}
