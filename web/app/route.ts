// SPDX-License-Identifier: Apache-2.0
// The address is the state: "#/run/NAME/heat?stat=Norm". Each view depends only on it, so that a link shows what its
// sender saw and "back" works.
import { signal } from "@preact/signals";

export interface Route {
  // "runs", or a page of a run: "run", "live", "heat", ...
  page: string;
  // Empty on the page of all runs.
  run: string;
  query: Record<string, string>;
}

const TOKEN_KEY = "rankprobe.token";

export function parseRoute(hash: string): Route {
  const [path, search = ""] = hash.replace(/^#/, "").split("?", 2);
  const query: Record<string, string> = {};
  new URLSearchParams(search).forEach((value, name) => (query[name] = value));
  const parts = path.split("/").filter((part) => part !== "");
  if (parts[0] === "run" && parts[1] !== undefined) {
    let run = parts[1];
    try {
      run = decodeURIComponent(run);
    } catch {
      // The name was not encoded.
    }
    return { page: parts[2] ?? "run", run, query };
  }
  return { page: parts[0] ?? "runs", run: "", query };
}

export function href(page: string, run = "", query: Record<string, string | number | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") search.set(name, String(value));
  }
  const path = run === "" ? `#/${page}` : `#/run/${encodeURIComponent(run)}${page === "run" ? "" : `/${page}`}`;
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
}

export const route = signal<Route>({ page: "runs", run: "", query: {} });

// Changes the query of the current page; undefined and "" remove a field.
export function setQuery(changes: Record<string, string | number | undefined>, replace = false): void {
  const { page, run, query } = route.value;
  go(href(page, run, { ...query, ...changes }), replace);
}

// location.hash is not used, because its event comes later, and a second change before it would apply to the old route.
export function go(target: string, replace = false): void {
  if (target === location.hash) return;
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  route.value = parseRoute(target);
}

// Removes the token from "#token=...", where `rankprobe view` puts it, and keeps it for this tab, so that it is not in
// the history or in copied addresses.
export function startRouting(): void {
  const given = /^#token=([^&]+)(?:&to=(.*))?$/.exec(location.hash);
  if (given !== null) {
    sessionStorage.setItem(TOKEN_KEY, decodeURIComponent(given[1]));
    history.replaceState(null, "", given[2] ? `#${decodeURIComponent(given[2])}` : "#/runs");
  }
  const follow = () => (route.value = parseRoute(location.hash));
  addEventListener("hashchange", follow);
  follow();
}

export function token(): string {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function setToken(text: string): void {
  sessionStorage.setItem(TOKEN_KEY, text);
}
