// Requests to the server: JSON or a form in, JSON or server-sent events out; errors carry the server's message.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function requestJson(path, body, token, signal) {
  return (await sendRequest(path, body, token, signal)).json();
}

export async function requestFile(path, name, token) {
  const content = await (await sendRequest(path, null, token)).blob();
  return new File([content], name, { type: content.type });
}

// Yields the server-sent events of a response as they arrive: { name, data }.
export async function* streamEvents(path, body, token, signal) {
  const response = await sendRequest(path, body, token, signal);
  let rest = "";
  for await (const text of readChunks(response.body.getReader())) {
    const whole = (rest + text).split("\n\n");
    rest = whole.pop();
    yield* whole.map(parseEvent);
  }
}

async function sendRequest(path, body, token, signal) {
  const form = body instanceof FormData; // the browser sets its content type with the boundary
  const headers = { ...(body && !form ? { "Content-Type": "application/json" } : {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const content = form ? body : body ? JSON.stringify(body) : null;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: content, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer; is it still running?");
  }
  if (response.ok) return response;
  const failure = await response.json().catch(() => ({}));
  throw new ApiError(response.status, failure.error ?? `The server answered ${response.status}.`);
}

async function* readChunks(reader) {
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

function parseEvent(block) {
  const lines = block.split("\n").map((line) => line.split(/: (.*)/s));
  const found = Object.fromEntries(lines.map(([name, value]) => [name, value]));
  return { name: found.event ?? "", data: JSON.parse(found.data) };
}
