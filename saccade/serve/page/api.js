// Requests to the server: JSON or a form in, JSON or events out, and errors that say what the server says.

export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function ask(path, body, token, signal) {
  return (await answer(path, body, token, signal)).json();
}

// The events of an answer as they come: { name, data }.
export async function* events(path, body, token, signal) {
  const response = await answer(path, body, token, signal);
  let rest = "";
  for await (const text of texts(response.body.getReader())) {
    const whole = (rest + text).split("\n\n");
    rest = whole.pop();
    yield* whole.map(parsed);
  }
}

async function answer(path, body, token, signal) {
  const form = body instanceof FormData; // for which the browser writes the header itself
  const headers = { ...(body && !form ? { "Content-Type": "application/json" } : {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const content = form ? body : body ? JSON.stringify(body) : null;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: content, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "The server does not answer; is it still running?");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Failed(response.status, told.error ?? `The server answered ${response.status}.`);
}

async function* texts(reader) {
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

function parsed(block) {
  const lines = block.split("\n").map((line) => line.split(/: (.*)/s));
  const found = Object.fromEntries(lines.map(([name, value]) => [name, value]));
  return { name: found.event ?? "", data: JSON.parse(found.data) };
}
