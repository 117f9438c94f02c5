// SPDX-License-Identifier: Apache-2.0
// The page's first script.
const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";

async function about(): Promise<string> {
  const answer = await fetch("/api/v1/about", { headers: { Authorization: `Bearer ${token}` } });
  return answer.text();
}

about().then((text) => {
  document.getElementById("app")!.textContent = text;
});
