// Caches the page for use without a network, if the browser allows a service worker: with https, or on this machine.

// Returns true if all files are cached.
export async function cacheFiles() {
  try {
    const registration = await navigator.serviceWorker.register("worker.js", { updateViaCache: "none" });
    const worker = registration.installing ?? registration.waiting ?? registration.active;
    await settled(worker);
    return worker.state !== "redundant" || registration.active !== null;
  } catch {
    return false;  // service workers are not supported or not allowed; the page works without one
  }
}

function settled(worker) {
  return new Promise(resume => {
    const check = () => worker.state === "installing" || resume();
    worker.addEventListener("statechange", check);
    check();
  });
}
