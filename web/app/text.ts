// SPDX-License-Identifier: Apache-2.0
// English texts are in the code; chinese.ts has the Chinese text of each.
import { signal } from "@preact/signals";
import { CHINESE } from "./chinese";
import { filled } from "./format";

const LANGUAGE_KEY = "rankprobe.language";
export type Language = "en" | "zh";

export const language = signal<Language>(
  (localStorage.getItem(LANGUAGE_KEY) as Language | null) ?? (navigator.language.startsWith("zh") ? "zh" : "en"));

export function setLanguage(value: Language): void {
  language.value = value;
  localStorage.setItem(LANGUAGE_KEY, value);
  document.documentElement.lang = value;
}

// Returns the text in the user's language, with "{0}" and so on replaced by `values`.
export function t(text: string, ...values: (string | number)[]): string {
  return filled(language.value === "zh" ? CHINESE[text] ?? text : text, values);
}
