// Service worker that caches the site's files, so that the page opens without a network. The cache holds one complete
// version of the site, checked against its hashes; a later version replaces it once no page shows this one.

importScripts("files.js");  // self.site: version, and the SHA-256 of each file by its path

const OURS = `linnet ${registration.scope} `;  // other sites of the same host have their own caches
const NAME = OURS + site.version;

const hexadecimal = bytes => Array.from(new Uint8Array(bytes), byte => byte.toString(16).padStart(2, "0")).join("");

// Fetches a file with the right hash; outdated copies in HTTP caches are bypassed.
async function fetched(path) {
  for (const cache of ["default", "reload"]) {
    const answer = await fetch(path, { cache });
    if (!answer.ok) continue;
    const content = await answer.arrayBuffer();
    if (hexadecimal(await crypto.subtle.digest("SHA-256", content)) === site.files[path])
      return new Response(content, { headers: answer.headers });
  }
  throw new Error(`${path}: not there, or not the file that this site was made with`);
}

async function keep() {
  const kept = await caches.open(NAME);
  for (const path of Object.keys(site.files)) if (!await kept.match(path)) await kept.put(path, await fetched(path));
}

async function forgetOthers() {
  const names = (await caches.keys()).filter(name => name.startsWith(OURS) && name !== NAME);
  await Promise.all(names.map(name => caches.delete(name)));
}

async function answered(path, request) {
  const kept = await caches.open(NAME);
  return await kept.match(path) ?? fetch(request);
}

addEventListener("install", event => event.waitUntil(keep()));
addEventListener("activate", event => event.waitUntil(forgetOthers()));
addEventListener("fetch", event => {
  const address = new URL(event.request.url);
  const place = address.origin + address.pathname;
  if (!place.startsWith(registration.scope)) return;
  const path = decodeURIComponent(place.slice(registration.scope.length)) || "index.html";
  if (path in site.files) event.respondWith(answered(path, event.request));
});
