// SPDX-License-Identifier: Apache-2.0
// The frame of every page: its header, the pages of a run, language and colours.
import { render } from "preact";
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { about, away, type ApiError } from "./api";
import { useLoaded } from "./load";
import { Failure, Field } from "./parts/basics";
import { Compare } from "./pages/compare";
import { CompareDumps } from "./pages/compare_dumps";
import { DivergencePage } from "./pages/divergence";
import { Events } from "./pages/events";
import { Graph } from "./pages/graph";
import { GraphFile } from "./pages/graph_file";
import { Heat } from "./pages/heat";
import { Jobs } from "./pages/jobs";
import { Ledger } from "./pages/ledger";
import { Live } from "./pages/live";
import { Run } from "./pages/run";
import { Runs } from "./pages/runs";
import { Step } from "./pages/step";
import { Tensor } from "./pages/tensor";
import { Trend } from "./pages/trend";
import { href, route, setToken, startRouting } from "./route";
import { language, setLanguage, t } from "./text";

const THEME_KEY = "rankprobe.theme";
const PAGES: [string, string][] = [["run", "Overview"], ["live", "Live"], ["heat", "Heat"], ["trend", "Trend"], ["step", "Step"], ["graph", "Graph"], ["compare", "Compare"], ["divergence", "Divergence"], ["tensor", "Tensor"], ["ledger", "Ledger"], ["events", "Events"]];
const theme = signal(localStorage.getItem(THEME_KEY) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

function setTheme(value: string): void {
  theme.value = value;
  localStorage.setItem(THEME_KEY, value);
  document.documentElement.dataset.theme = value;
}

function Page() {
  const { page, run } = route.value;
  if (run === "" && page === "graph") return <GraphFile />;
  if (run === "" && page === "jobs") return <Jobs />;
  if (run === "" && page === "compare") return <CompareDumps />;
  if (run === "") return page === "runs" ? <Runs /> : <p>{t("There is no page of this name.")} <a href={href("runs")}>{t("Runs")}</a></p>;
  switch (page) {
    case "run": return <Run key={run} run={run} />;
    case "live": return <Live key={run} run={run} />;
    case "heat": return <Heat key={run} run={run} />;
    case "trend": return <Trend key={run} run={run} />;
    case "step": return <Step key={run} run={run} />;
    case "graph": return <Graph key={run} run={run} />;
    case "compare": return <Compare key={run} run={run} />;
    case "divergence": return <DivergencePage key={run} run={run} />;
    case "tensor": return <Tensor key={run} run={run} />;
    case "ledger": return <Ledger key={run} run={run} />;
    case "events": return <Events key={run} run={run} />;
  }
  return <p>{t("There is no page of this name.")} <a href={href("run", run)}>{t("Overview")}</a></p>;
}

// A caller that is not identified enters a token, which stays in this tab.
function SignIn({ error }: { error: ApiError }) {
  const [text, setText] = useState("");
  const enter = () => {
    setToken(text.trim());
    location.reload();
  };
  // The token of `rankprobe view` is generated, so asking for it would not help.
  if (error.message.includes("rankprobe view")) return <Failure error={error} />;
  return (
    <>
      <h1>{t("Who are you?")}</h1>
      <p class="failure" role="alert"><strong>{error.code}</strong> {error.message}</p>
      <form class="card form" onSubmit={(event) => { event.preventDefault(); enter(); }}>
        <Field label={t("Token")}><input type="password" autocomplete="off" value={text} onInput={(event) => setText(event.currentTarget.value)} /></Field>
        <button class="primary" type="submit" disabled={!/^[!-~]+$/.test(text.trim())}>{t("Enter")}</button>
      </form>
      <p class="note">{t("This page needs a token from the collector's token file: a viewer's token to read, an operator's token to switch recording as well. The token is stored for this tab only.")}</p>
    </>
  );
}

function leave(): void {
  setToken("");
  location.reload();
}

// Moves the focus from the content to its first row or picture: three keys from anywhere, with the link "To the
// content".
function toFirstRow(event: KeyboardEvent): void {
  if (event.key !== "ArrowDown" || event.target !== event.currentTarget) return;
  const first = document.querySelector<HTMLElement>("main tbody tr[tabindex='0'], main canvas[tabindex='0'], main [role='tree']");
  if (first === null) return;
  event.preventDefault();
  first.focus();
}

function Shell() {
  const { page, run } = route.value;
  const server = useLoaded("about", about);
  document.title = run === "" ? "rankprobe" : `${run} – rankprobe`;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")!.focus(); }}>{t("To the content")}</a>
      <header>
        <a class="brand" href={href("runs")}>rankprobe</a>
        {run !== "" && <h1 class="run-name">{run}</h1>}
        <span class="grow" />
        <a href={href("jobs", "", { run })} aria-current={run === "" && page === "jobs" ? "page" : undefined}>{t("Jobs")}</a>
        {server.value?.caller && server.value.caller.name !== "anybody" && <button onClick={leave} title={t("Forget the token of this tab")}>{server.value.caller.name} ({server.value.caller.role}) ×</button>}
        {server.value && <span class="server">{[server.value.collector, server.value.root, server.value.version].filter((part) => part !== "").join(" · ")}</span>}
        <button onClick={() => setTheme(theme.value === "dark" ? "light" : "dark")}>{theme.value === "dark" ? t("Light") : t("Dark")}</button>
        <button onClick={() => setLanguage(language.value === "en" ? "zh" : "en")} lang={language.value === "en" ? "zh" : "en"}>{language.value === "en" ? "中文" : "English"}</button>
      </header>
      {run !== "" && (
        <nav aria-label={t("Pages of the run")}>
          {PAGES.map(([name, title]) => <a key={name} href={href(name, run)} aria-current={page === name ? "page" : undefined}>{t(title)}</a>)}
        </nav>
      )}
      <main id="main" tabIndex={-1} onKeyDown={toFirstRow}>
        {server.error?.code === "UNAUTHENTICATED" || server.error?.code === "PERMISSION_DENIED" ? <SignIn error={server.error} /> : (
          <>
            {[...new Set(Object.values(away.value).flat())].map((line) => <p key={line} class="failure" role="status">{line}</p>)}
            {server.error && <Failure error={server.error} retry={server.reload} />}
            {server.value !== undefined || server.error !== undefined ? <Page /> : <p class="waiting" aria-busy="true">{t("Loading …")}</p>}
          </>
        )}
      </main>
    </>
  );
}

export function start(root: HTMLElement): void {
  setTheme(theme.value);
  setLanguage(language.value);
  startRouting();
  render(<Shell />, root);
}
