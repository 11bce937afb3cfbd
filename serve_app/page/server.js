// Questions to the server, the key they need, and which of them still matter.

const KEY = "axml-ray key"; // In the tab's own storage, gone when it is closed.

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** Calls off the request before, and gives the signal of the next. */
export function turns() {
  let current = new AbortController();
  return () => {
    current.abort();
    current = new AbortController();
    return current.signal;
  };
}

/** What went wrong, to be read by a person. */
export class Refusal extends Error {
  constructor(said, status = 0, waitS = null) {
    super(said);
    this.status = status;
    this.waitS = waitS;
  }
}

/** The answer of a route as JSON; with a body it is posted. What isn't answered is a Refusal. */
export async function ask(path, signal, body) {
  const headers = { Accept: "application/json" };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
    if (response.ok) return await response.json();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal("The server can’t be reached. Is it running, and is this computer connected?");
  }
  const problem = await response.json().catch(() => ({}));
  signal.throwIfAborted();
  const detail = typeof problem.detail === "string" ? problem.detail : `The server answered ${response.status}.`;
  throw new Refusal(detail, response.status, retryAfter(response.headers.get("Retry-After")));
}

/** Seconds that a Retry-After header (a number or a date) says to wait, or null. */
function retryAfter(header) {
  if (!header) return null;
  const seconds = /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : null;
}
