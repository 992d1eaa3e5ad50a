// Runs the search worker of the built site, as a browser does: node search_rank.js WORKER INDEX < ["term", ...].
// Prints {term: [[section, ...], ...]}: the pages that are found, best first, each with its sections, best first.

const fs = require("fs");
const vm = require("vm");

const [worker, index] = process.argv.slice(2);
let listener, answer;
const scope = { console, addEventListener: (_, call) => { listener = call; }, postMessage: (message) => answer(message) };
scope.self = scope;
vm.runInNewContext(fs.readFileSync(worker, "utf8"), scope);

const SETUP = 0, QUERY = 2;  // types of messages, as in the worker
const ask = (type, data) => new Promise((resolve) => { answer = resolve; listener({ data: { type, data } }); });

(async () => {
  await ask(SETUP, { ...JSON.parse(fs.readFileSync(index, "utf8")), options: {} });
  const found = {};
  for (const term of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { data } = await ask(QUERY, term);
    found[term] = data.items.map((sections) => sections.map((section) => section.location));
  }
  console.log(JSON.stringify(found));
})();
