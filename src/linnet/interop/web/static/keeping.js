// The page opens without a network where the browser lets a worker keep its files: from a server by https, or this machine.

// Whether all of them are kept.
export async function keepFiles() {
  try {
    const registration = await navigator.serviceWorker.register("worker.js", { updateViaCache: "none" });
    const worker = registration.installing ?? registration.waiting ?? registration.active;
    await settled(worker);
    return worker.state !== "redundant" || registration.active !== null;
  } catch {
    return false;  // there is no such thing here, or it is forbidden: the page does without
  }
}

function settled(worker) {
  return new Promise(resume => {
    const check = () => worker.state === "installing" || resume();
    worker.addEventListener("statechange", check);
    check();
  });
}
