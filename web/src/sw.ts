// Serves the page when there is no connection. The network comes first, so that a new version is never
// missed; weights have a place of their own (shelf.ts) and are none of this file's business.

const CACHE = "sinkstream-page";

/** The little of a service worker's scope that is used here. */
interface Scope {
  skipWaiting(): Promise<void>;
  clients: { claim(): Promise<void> };
  addEventListener(type: string, listener: (event: Event_) => void): void;
}

interface Event_ extends Event {
  readonly request: Request;
  waitUntil(promise: Promise<unknown>): void;
  respondWith(answer: Promise<Response>): void;
}

const scope = self as unknown as Scope;

scope.addEventListener("install", (event) => {
  event.waitUntil(scope.skipWaiting());
});

// What the first visit had loaded before this file was there is asked for once more, now through it.
scope.addEventListener("activate", (event) => {
  event.waitUntil(scope.clients.claim());
});

scope.addEventListener("message", (event) => {
  const { data } = event as unknown as MessageEvent<unknown>;
  if (!Array.isArray(data)) return;
  event.waitUntil(keep(data.filter((url): url is string => typeof url === "string")));
});

scope.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin || url.pathname.endsWith(".gguf")) return;
  event.respondWith(answer(request));
});

async function keep(urls: string[]): Promise<void> {
  const cache = await caches.open(CACHE);
  await Promise.all(
    urls.map(async (url) => {
      if ((await cache.match(url)) === undefined) await cache.add(url).catch(() => {});
    }),
  );
}

async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  // The page is one, whatever its address asks for.
  const key = request.mode === "navigate" ? new URL("./", location.href).href : request.url;
  try {
    const fresh = await fetch(request);
    if (fresh.ok && fresh.status === 200) await cache.put(key, fresh.clone());
    return fresh;
  } catch (caught) {
    const kept = await cache.match(key, { ignoreVary: true });
    if (kept !== undefined) return kept;
    throw caught;
  }
}
